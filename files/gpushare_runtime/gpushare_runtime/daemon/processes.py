# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A process of this host that is certainly the one that was meant: its number may belong to another one a moment later."""

from __future__ import annotations

from pathlib import Path

PROC = Path("/proc")
_LARGEST = 4096


def started(pid: int, proc: Path = PROC) -> int | None:
    """When the process started, in the kernel's ticks; None if it does not exist, or /proc hides it. Blocks."""
    try:
        # It is asked about every program on a GPU, every two seconds: no Path.
        with open(f"{proc}/{pid}/stat", "rb") as file:
            text = file.read(_LARGEST)
    except OSError:
        return None
    # The name in it may have spaces and brackets. Field 22 is the start.
    fields = text.rpartition(b")")[2].split()
    return int(fields[19]) if len(fields) >= 20 and fields[19].isdigit() else None


def user_of(pid: int, proc: Path = PROC) -> tuple[int, int] | None:
    """The effective user and group of the process; None if it does not exist, or /proc hides it. Blocks."""
    try:
        with (proc / str(pid) / "status").open("rb") as file:
            lines = file.read(_LARGEST).splitlines()
    except OSError:
        return None
    # Real, effective, saved and of file systems.
    found = {line[:4]: line[4:].split() for line in lines if line[:4] in (b"Uid:", b"Gid:")}
    if len(found) != 2 or any(len(ids) != 4 or not ids[1].isdigit() for ids in found.values()):
        return None
    return int(found[b"Uid:"][1]), int(found[b"Gid:"][1])
