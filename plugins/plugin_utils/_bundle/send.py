# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The part of a bundle that a host gets, sent to it as one archive.

Private to this collection, used on the controller only.
"""

from __future__ import annotations

import tempfile
from collections.abc import Collection
from pathlib import Path

from ansible.plugins.action import ActionBase  # type: ignore[import-untyped]
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._bundle.archive import Bundle


def send(action: ActionBase, bundle: Bundle, names: Collection[str]) -> dict[str, str]:
    """Send these files; where the archive lies on the host, and its sum. BundleError, or what the connection raises.

    Ansible removes it at the end of the task.
    """
    with tempfile.TemporaryDirectory(prefix="gpushare-") as scratch:
        part = bundle.part(names, Path(scratch))
        folder = action._connection._shell.tmpdir or action._make_tmp_path()
        there = action._connection._shell.join_path(folder, "gpushare-part.tar")
        action._transfer_file(str(part.path), there)
        action._fixup_perms2([folder, there])
        return {"path": there, "sha256": part.sha256}
