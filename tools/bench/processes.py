# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What the kernel tells of a process: its parent, CPU time and memory (`proc_pid_stat(5)`, `proc_pid_statm(5)`). OSError of one that is
gone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_TICKS: Final = os.sysconf("SC_CLK_TCK")
_PAGE: Final = os.sysconf("SC_PAGE_SIZE")


def cpu_seconds(pid: int) -> float:
    """CPU time that it has used so far."""
    fields = _fields(pid)
    return (int(fields[11]) + int(fields[12])) / _TICKS


def parent(pid: int) -> int:
    """The process that started it, or that has taken it over."""
    return int(_fields(pid)[1])


def resident_mib(pid: int) -> float:
    """Memory that it has resident now."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE / 2**20


def _fields(pid: int) -> list[str]:
    """From its state on: the name before may have blanks and brackets."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
