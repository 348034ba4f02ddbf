# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Package files in a folder of the host. They need no signature, so that a user who may write them is root of the host."""

from __future__ import annotations

import os
from typing import List

from .._change.undo import Rejected
from .._host.host import Host
from .._host.ownership import open_to_others

_MOST = 1000


def package_files(folder: str, suffix: str) -> List[str]:
    """The files with this suffix by their paths without links, sorted by name. It raises Rejected if others than root may write one."""
    if not os.path.isdir(folder):
        raise Rejected(f"there is no folder {folder[:80]} on this host; nothing was changed: put the packages there, or correct its path")
    names = sorted(name for name in os.listdir(folder) if name.endswith(suffix))
    if len(names) > _MOST:
        raise Rejected(f"the folder {folder[:80]} has {len(names)} packages, expected at most {_MOST}; nothing was changed")
    return [_checked(folder, name, suffix) for name in names]


def _checked(folder: str, name: str, suffix: str) -> str:
    host, path = Host(), os.path.join(folder, name)
    real = host.real(path)
    try:
        open_ = open_to_others(host, real)
    except OSError as error:
        raise Rejected(f"the package {path[:200]} cannot be read ({error.strerror}); nothing was changed: remove it") from error
    if open_ is not None:
        raise Rejected(
            f"the package {path[:200]} would be installed as root, and others than root may write {open_}; nothing was changed: move the "
            "packages to a folder of root's with files of root's"
        )
    if not real.endswith(suffix):
        raise Rejected(f"the package {path[:200]} is a link to {real[:200]}, expected a name that ends in {suffix}; nothing was changed")
    return real
