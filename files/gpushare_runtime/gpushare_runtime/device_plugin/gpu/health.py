# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Health state of each GPU: XID errors, the GPU's own checks, and when pods may use a GPU again. No I/O.

The numbers and actions are those of NVIDIA's XID catalogue for Ampere and newer, up to XID 172, as read on 2026-11-25:
https://docs.nvidia.com/deploy/xid-errors/analyzing-xid-catalog.html. The words are ours. docs/operate/on-call.md has the same table.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Final, NamedTuple

from gpushare_runtime.core.inventory import HEALTHY

# Immediate actions of the catalogue. The first two leave the GPU as it is.
RESTART_APP: Final = "restart the program"
IGNORE: Final = "none"
RESET: Final = "reset the GPU"
RESTART_HOST: Final = "restart the host"
WORKFLOW: Final = "a procedure"
_DEBUG: Final = "search for the fault in the program (compute-sanitizer, cuda-gdb); if several programs have it, test the GPU"
_RESET: Final = "end its pods and run `nvidia-smi --gpu-reset`; if it comes again, call the vendor"
# The catalogue's others whose immediate action is to restart the program, or none.
_OTHERS: Final = frozenset(
    (8, 11, 25, 32, 39, 40, 41, 60, 68, 69, 70, 71, 72, 75, 76, 77, 80, 82, 83, 84, 85, 86, 88, 89, 139, *range(96, 106), *range(126, 136))
) | frozenset((14, 37, 38, 44, 66, 67, 93, 106, 107, 108, 121, 137, 141, 152, 153, 157, 160, 161))
# Consecutive checks that a failed GPU must pass before pods may use it again.
CHECKS: Final = 3
# Consecutive readings that say it is the GPU which has failed: pods may be ended for that, or for an XID alone.
SIGNS: Final = 3


class Xid(NamedTuple):
    """action: immediate, by the catalogue. meaning: what has happened. cure: what a person does."""

    action: str
    meaning: str
    cure: str


XIDS: Final = {
    13: Xid(RESTART_APP, "a fault in a program's code on the GPU, mostly an access behind the end of an array", _DEBUG),
    31: Xid(RESTART_APP, "a program has accessed an address of GPU memory that is not its own", _DEBUG),
    43: Xid(IGNORE, "a program was ended after a fault of its own", "read the log of the pod"),
    45: Xid(
        IGNORE, "the driver has removed what a program that ended had on the GPU", "read about the XID before it; alone it needs nothing"
    ),
    48: Xid(WORKFLOW, "a memory error that cannot be corrected", _RESET),
    61: Xid(RESET, "a breakpoint in the GPU's power controller (before Ampere)", _RESET),
    62: Xid(RESET, "the GPU's power controller has halted", _RESET),
    63: Xid(IGNORE, "a bad part of the memory is noted and will be replaced at the next reset", "reset the GPU when its pods have ended"),
    64: Xid(RESET, "a bad part of the memory could not be noted for replacement", _RESET),
    74: Xid(
        WORKFLOW,
        "a fault of an NVLink connection, here or at its other end",
        "read `nvidia-smi nvlink --errorcounters`; then reset the GPU",
    ),
    79: Xid(RESTART_HOST, "the GPU has fallen off the bus", "drain the node and restart the host, with power off if that does not help"),
    92: Xid(IGNORE, "many single-bit errors of the memory, each corrected", "watch it; if they go on, call the vendor"),
    94: Xid(RESTART_APP, "a memory error that has ended one program only", "start that pod again; reset the GPU when its pods have ended"),
    95: Xid(RESET, "a memory error that several programs may have met", _RESET),
    109: Xid(RESET, "the GPU did not switch from one program to the next in time", _RESET),
    110: Xid(
        RESET, "a security fault, mostly of the hardware", "undo the last change of the hardware, and start the host with power off between"
    ),
    119: Xid(RESET, "the GPU's system processor (GSP) does not answer the driver", _RESET),
    120: Xid(RESET, "an error in the code of the GPU's system processor (GSP)", _RESET),
    140: Xid(RESET, "a memory error that the driver could not note for replacement", _RESET),
    143: Xid(RESET, "the GPU could not be initialized", _RESET),
    154: Xid(
        IGNORE, "the driver asks for another recovery than before; another XID has the cause", "follow `nvidia-smi -q`, GPU Recovery Action"
    ),
    158: Xid(RESET, "the GPU did not answer in time", _RESET),
}
"""The XIDs that a person may meet, with words."""
SPARED_XIDS: Final = _OTHERS | {number for number, xid in XIDS.items() if xid.action in (RESTART_APP, IGNORE)}
"""The XIDs that leave the GPU usable."""


def describe(number: int) -> str:
    """The meaning of an XID, with what a person does."""
    xid = XIDS.get(number)
    return f"XID {number}: {xid.meaning}; {xid.cure}" if xid else f"XID {number}: see `dmesg` and NVIDIA's XID catalogue"


@dataclass
class _Failure:
    """The reason that took a GPU out of use. told: by an XID.

    passed: checks since then, in a row. against: readings in a row that say the GPU itself has failed; an XID is as many as are needed.
    """

    why: str
    told: bool = False
    passed: int = 0
    against: int = 0


class GpuHealth:
    """Remembers failures by GPU UUID. It is used from several threads. checks: number that a failed GPU must pass consecutively."""

    def __init__(self, checks: int = CHECKS) -> None:
        self._checks = checks
        self._lock = threading.Lock()
        self._failures: dict[str, _Failure] = {}

    def xid(self, uuid: str, number: int) -> bool:
        """Take an XID error that the driver reported for a GPU. Returns whether the GPU becomes unhealthy."""
        if number in SPARED_XIDS:
            return False
        with self._lock:
            failure = self._set(uuid, describe(number))
            failure.told = True
            failure.against = max(failure.against, SIGNS)
        return True

    def fails(self, uuid: str, why: str, *, itself: bool = True) -> str:
        """The GPU does not answer, or fails a check. Returns the failure. itself: whether it is the GPU, and not the driver of all."""
        with self._lock:
            self._set(uuid, why).against += itself
        return why

    def answers(self, uuid: str, unfit: str = "", recovery: str = "") -> str:
        """The GPU answers. Returns "ok" or the failure.

        unfit: why pods must not use it again after a failure; recovery: what the driver requires first, also without a known failure.
        """
        with self._lock:
            if recovery:
                self._failures.setdefault(uuid, _Failure(recovery))
            failure = self._failures.get(uuid)
            if failure is None:
                return HEALTHY
            why = recovery or unfit
            failure.passed = 0 if why else failure.passed + 1
            # One that was silent for a moment has not failed, even if it must not be used before a reset.
            failure.against = failure.against + 1 if recovery or failure.told else 0
            # However few checks the administrator wants, who follows the sign of an XID shall see it.
            if failure.passed >= (max(self._checks, SIGNS) if failure.told else self._checks):
                del self._failures[uuid]
                return HEALTHY
            return f"{failure.why} ({why})" if why not in ("", failure.why) else failure.why

    def defective(self, uuid: str) -> bool:
        """Whether the GPU itself has failed: by an XID until it may be used again, or by several readings in a row."""
        with self._lock:
            failure = self._failures.get(uuid)
            return failure is not None and failure.against >= SIGNS

    def _set(self, uuid: str, why: str) -> _Failure:
        failure = self._failures.setdefault(uuid, _Failure(why))
        failure.why, failure.passed = why, 0
        return failure
