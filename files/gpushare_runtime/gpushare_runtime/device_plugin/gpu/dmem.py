# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The kernel's controller dmem (Linux 6.14), by the files of control groups. The driver limits memory by it, where the kernel has it.

Limits are set by NVML only: the driver keeps books beside these files (NVIDIA, MPS v3 Memory Partitioning, "Setting Limits").
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_MOST_BYTES: Final = 64 * 1024
_BYTES: Final = re.compile(r"[0-9]{1,19}")


def enable_dmem(group: str) -> None:
    """Let the controller count in this group: its parents may not have enabled it. OSError."""
    above = [folder for folder in reversed(Path(group).parents) if (folder / "cgroup.controllers").exists()]
    for folder in above:
        if "dmem" in (folder / "cgroup.controllers").read_text().split():
            children = folder / "cgroup.subtree_control"
            if "dmem" not in children.read_text().split():
                children.write_text("+dmem")


def region_of(pci: str) -> str:
    """The kernel's name of a GPU's memory, for domain:bus:device.function."""
    domain, _, rest = pci.partition(":")
    return f"nvidia/{domain:0>8}:{rest}/vidmem".lower()


def limits_of(group: str) -> Mapping[str, int | None]:
    """Region → bytes of the group's own limit, None for no limit. Empty where the controller does not count in this group."""
    try:
        with open(f"{group}/dmem.max", encoding="utf-8", errors="replace") as file:
            lines = [line.split() for line in file.read(_MOST_BYTES).splitlines()]
    except OSError:
        return {}
    return {line[0].lower(): int(line[1]) if _BYTES.fullmatch(line[1]) else None for line in lines if len(line) == 2}
