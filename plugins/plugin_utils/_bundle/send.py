# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files that a host gets: any of the controller, or the part of a bundle as one archive."""

from __future__ import annotations

import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path

from ansible.plugins.action import ActionBase  # type: ignore[import-untyped]

from .archive import Bundle


def send(action: ActionBase, bundle: Bundle, names: Collection[str]) -> dict[str, str]:
    """Send these files; where the archive lies on the host, and its sum. BundleError, or what the connection raises."""
    with tempfile.TemporaryDirectory(prefix="gpushare-") as scratch:
        path, sha256 = bundle.part(names, Path(scratch))
        return {"path": place(action, {"gpushare-part.tar": path})[0], "sha256": sha256}


def place(action: ActionBase, files: Mapping[str, Path | bytes]) -> list[str]:
    """Copy these files, by name, into the folder of the task on the host; their paths there. Ansible removes it at the end of the task."""
    # Without pipelining the first call of the module has made it already.
    folder = action._connection._shell.tmpdir or action._make_tmp_path()
    paths = [action._connection._shell.join_path(folder, name) for name in files]
    for path, source in zip(paths, files.values(), strict=True):
        if isinstance(source, bytes):
            action._transfer_data(path, source)
        else:
            action._transfer_file(str(source), path)
    action._fixup_perms2([folder, *paths])
    return paths
