# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The generation of a GPU by its PCI device id, and the drivers and kernel modules that serve it.

Pure. NVIDIA assigns device ids in blocks by chip; the blocks are those of the public PCI id database. The branches are NVIDIA's: its driver
archive, and its installation guide for what the open kernel modules support.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Tuple

#: The oldest branch with open kernel modules, the one from which NVIDIA installs them by default, and the first without others.
FIRST_OPEN, DEFAULT_OPEN, ONLY_OPEN = 515, 560, 620
# By the public PCI id database, read 2026-11-24. The NVSwitches of the first are behind network controllers of the host, those of the
# others in other machines of the rack, which IMEX makes one domain.
HIDDEN_FABRIC = ("0x2901", "0x2909", "0x2920", "0x3182")
DOMAINS = {"0x2941": "GB200", "0x31a1": "GB300", "0x31c2": "GB300", "0x31c3": "GB300"}


@dataclass(frozen=True)
class Generation:
    """A generation of GPUs. first, last: driver branches that serve it, last None while it is served; open_module: "no" (the open kernel
    modules do not support it), "yes" (both kinds do), or "only"."""

    name: str
    first: int
    last: Optional[int]
    open_module: str


KEPLER = Generation("Kepler", 304, 470, "no")
MAXWELL = Generation("Maxwell", 340, 580, "no")
PASCAL = Generation("Pascal", 367, 580, "no")
VOLTA = Generation("Volta", 384, 580, "no")
TURING = Generation("Turing", 410, None, "yes")
AMPERE = Generation("Ampere", 450, None, "yes")
ADA = Generation("Ada Lovelace", 520, None, "yes")
HOPPER = Generation("Hopper", 520, None, "yes")
# The processor's memory is the GPU's, too: only the open modules drive it.
GRACE_HOPPER = Generation("Grace Hopper", 535, None, "only")
BLACKWELL = Generation("Blackwell", 570, None, "only")


# First and last device id of a block. Where blocks lie in each other, the first that has the id counts.
_BLOCKS: Tuple[Tuple[int, int, Generation], ...] = (
    (0x2342, 0x2348, GRACE_HOPPER),
    (0x0FC0, 0x103F, KEPLER),
    (0x1180, 0x11FF, KEPLER),
    (0x1280, 0x12BF, KEPLER),
    (0x1340, 0x143F, MAXWELL),
    (0x15C0, 0x15FF, PASCAL),
    (0x1600, 0x167F, MAXWELL),
    (0x1700, 0x173F, PASCAL),
    (0x1740, 0x17FF, MAXWELL),
    (0x1B00, 0x1D7F, PASCAL),
    (0x1D80, 0x1DFF, VOLTA),
    (0x1E00, 0x1FFF, TURING),
    (0x2080, 0x20FF, AMPERE),
    (0x2180, 0x21FF, TURING),
    (0x2200, 0x22BF, AMPERE),
    (0x2300, 0x237F, HOPPER),
    (0x2400, 0x25FF, AMPERE),
    (0x2600, 0x28FF, ADA),
    (0x2900, 0x29FF, BLACKWELL),
    (0x2B00, 0x2FFF, BLACKWELL),
    (0x3180, 0x323F, BLACKWELL),
    (0x3340, 0x337F, BLACKWELL),
)


def generation(device: str) -> Optional[Generation]:
    """Of the GPU with this PCI device id, such as "0x1eb8"; None for one that is not known here."""
    try:
        number = int(device, 16)
    except ValueError:
        return None
    return next((found for first, last, found in _BLOCKS if first <= number <= last), None)


def is_coherent(device: str) -> bool:
    """Whether the GPU shares its memory with a Grace processor."""
    return device.lower() in DOMAINS or generation(device) is GRACE_HOPPER
