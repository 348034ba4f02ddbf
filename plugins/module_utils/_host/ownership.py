# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a file that root runs or installs can be another one by then: no other user may write it, nor put another one in its place."""

from __future__ import annotations

import os
import posixpath
import stat
from typing import Optional

from .host import Host


def open_to_others(host: Host, real: str) -> Optional[str]:
    """The part of the way to it, or the file itself, that others than root may change; None if nothing. OSError if it cannot be read.

    real: without links, as Host.real gives it, and by this path it must be used: the owner of a link may change it after the check.
    """
    folder = real
    while folder != "/":
        folder = posixpath.dirname(folder)
        found = os.stat(host.outside(folder))
        # In a folder such as /tmp only owners move their files, and the owner of the folder moves all.
        if _is_anothers(found) or (_is_shared(found) and not found.st_mode & stat.S_ISVTX):
            return f"the folder {folder[:80]}"
    found = os.stat(host.outside(real))
    if not stat.S_ISREG(found.st_mode) or _is_anothers(found) or _is_shared(found):
        return f"the file {real[:80]}" if stat.S_ISREG(found.st_mode) else f"{real[:80]}, which is not a file,"
    return None


def _is_anothers(status: os.stat_result) -> bool:
    return status.st_uid not in (0, os.geteuid())


def _is_shared(status: os.stat_result) -> bool:
    return bool(status.st_mode & (stat.S_IWGRP | stat.S_IWOTH))
