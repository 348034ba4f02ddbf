# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Units of GPU memory, and whether a node's GPUs in a unit are few enough ids for kubelet.

Pure. The device plugin counts in the same way and is the one that decides.
"""

from __future__ import annotations

from collections.abc import Collection

from ...module_utils._formats.finding import HostFindings, few
from ...module_utils._formats.quantity import UNITS

#: kubelet's gRPC client takes messages of up to so many bytes, and the list of all ids is one.
MESSAGE_BYTES = 4 * 1024 * 1024
# An id in the list is "<UUID>-_-<n>" and its health: tags and lengths of both, and of the device itself.
_BYTES_PER_ID = 2 + len("-_-") + 2 + len("Unhealthy") + 2


def count(gpus: Collection[tuple[str, int]], unit: str) -> int:
    """How many ids these GPUs, (UUID, MiB), make in this unit."""
    return sum(mib // UNITS[unit] for _uuid, mib in gpus)


def list_bytes(gpus: Collection[tuple[str, int]], unit: str) -> int:
    """Bytes of the list of all their ids, at most."""
    total = 0
    for uuid, mib in gpus:
        first, digits, units = 0, 1, mib // UNITS[unit]
        while first < units:
            last = min(units, 10**digits)
            total += (last - first) * (len(uuid) + digits + _BYTES_PER_ID)
            first, digits = last, digits + 1
    return total


def smallest_fitting(gpus: Collection[tuple[str, int]]) -> str | None:
    """The smallest unit in which these GPUs are few enough ids."""
    return next((unit for unit in reversed(list(UNITS)) if list_bytes(gpus, unit) <= MESSAGE_BYTES), None)


def judge_unit(found: HostFindings, unit: str, gpus: Collection[tuple[str, int]], now: str, pods: Collection[str]) -> None:
    """Whether these GPUs can be published in this unit. now: the unit in which they are, "" for none; pods: UIDs of those that have
    some."""
    if unit not in UNITS:
        return  # said of the variable itself
    if list_bytes(gpus, unit) > MESSAGE_BYTES:
        seen = f"{count(gpus, unit)} ids for gpushare_memory_unit {unit}"
        fitting = smallest_fitting(gpus)
        cure = f"set gpushare_memory_unit: {fitting} for this host" if fitting else "publish fewer GPUs of this node"
        found.error("memory_unit", seen, "as many as fit into kubelet's message of 4 MiB (about 67,000)", cure)
    elif now and now != unit and pods:
        plural = "pod that has" if len(pods) == 1 else "pods that have"
        seen = f"{len(pods)} {plural} memory of the GPUs in units of {now} (UID {few(sorted(pods), 3)})"
        cure = f"delete them first (kubectl drain, or their owners), or keep gpushare_memory_unit: {now} for this host"
        found.error("memory_unit", seen, f"none, to change the unit to {unit}", cure)
