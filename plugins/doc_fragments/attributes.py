# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The promises of every module of this collection about check mode, diff mode and second runs."""

from __future__ import annotations


class ModuleDocFragment:
    """The attributes that modules declare."""

    DOCUMENTATION = r"""
options: {}
attributes:
  check_mode:
    description: Can run in C(check_mode) and return changed status prediction without modifying the target.
  diff_mode:
    description: Will return details on what has changed (or possibly needs changing in C(check_mode)), when in diff mode.
  idempotent:
    description:
      - When run twice in a row outside check mode, with the same arguments, the second invocation indicates no change.
      - This assumes that the system controlled or queried by the module has not changed in a relevant way.
"""

    CHANGES = r"""
options: {}
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  idempotent:
    support: full
"""

    INFO = r"""
options: {}
attributes:
  check_mode:
    support: full
    details: This module does not modify anything.
  diff_mode:
    support: N/A
    details: This module does not modify anything.
  idempotent:
    support: full
    details: This module does not modify anything.
"""
