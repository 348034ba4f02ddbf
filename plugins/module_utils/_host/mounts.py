# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Mounts of a host."""

from __future__ import annotations

import os

from .command import Run


def unmount(run: Run, path: str) -> str:
    """Take a mount from the host's; why that failed, "" if none is left. A container keeps its own mount of the same."""
    if not os.path.ismount(path):
        return ""
    status, out, err = run(["umount", path])
    return "" if status == 0 else f"umount {path} failed with exit status {status}: {(err or out).strip()}; unmount it, and run again"
