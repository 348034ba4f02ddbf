# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Which pods still have a process on this host, whatever kubelet and the API server say: from /proc and its control groups.

The container runtime is not asked as well: it knows containers, and what holds memory of a card is a process, also one whose
container the runtime has lost. It could only add pods whose processes are gone.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

PROC: Final = Path("/proc")

# The pod's UID in the name of its control group: `pod<uid>` (cgroupfs), `…-pod<uid with _ for ->.slice` (systemd), a static
# pod's UID without dashes.
_POD: Final = re.compile(rb"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?![0-9a-f])")


def live_pods(proc: Path = PROC) -> set[str]:
    """UIDs of the pods that have a process which is not merely waiting to be collected.

    Needs to see the processes of the host: as a container with hostPID. A process that ends meanwhile is left out.
    """
    found: set[str] = set()
    with os.scandir(proc) as entries:
        pids = [entry.name for entry in entries if entry.name.isdigit()]
    for pid in pids:
        match = _POD.search(_read(f"{proc}/{pid}/cgroup"))
        if match is None:
            continue
        uid = match.group(1).replace(b"_", b"-").decode()
        if uid not in found and not _dead(_read(f"{proc}/{pid}/stat")):
            found.add(uid)
    return found


def _dead(stat: bytes) -> bool:
    """A zombie has given back its memory, the card's as well. The name in parentheses may contain anything."""
    state = stat.rpartition(b") ")[2][:1]
    return state in (b"", b"Z", b"X")


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""
