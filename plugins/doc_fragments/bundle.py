# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The options of modules that take files from a bundle."""

from __future__ import annotations


class ModuleDocFragment:
    """The keys that must have signed the bundle; RECEIVED: what an action plugin has sent of it."""

    DOCUMENTATION = r"""
options:
  bundle_key:
    description: Public keys on the controller, of which one must have signed the bundle. Empty for any bundle.
    type: str
    default: ""
"""

    RECEIVED = r"""
options:
  received:
    description: The files of the bundle on the host. This module's action plugin on the controller sets it, not users.
    type: dict
    suboptions:
      path: {description: Where their archive lies., type: path, required: true}
      sha256: {description: Its hash., type: str, required: true}
"""
