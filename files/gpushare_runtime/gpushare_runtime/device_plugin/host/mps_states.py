# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Follows the MPS control daemons of this node's GPUs, by the files that gpushare-mps writes."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

from gpushare_runtime.core import mps, protocol
from gpushare_runtime.core.bounds import ReportError
from gpushare_runtime.core.mps import MpsState
from gpushare_runtime.daemon.runner import Status
from gpushare_runtime.daemon.sync import in_thread
from gpushare_runtime.device_plugin.node.rejections import RETRIES, AllocationRejected
from gpushare_runtime.device_plugin.node.state import NodeState

INTERVAL_SECONDS: Final = 1.0
_PART: Final = "MPS"
# gpushare-mps reads the record of the new container five times a second. kubelet waits for other containers of the node meanwhile.
_LIMIT_SECONDS: Final = 3.0
_POLL_SECONDS: Final = 0.05
_NO_LIMIT: Final = 2**62
_MOST_BYTES: Final = 16 * 1024


def _state_of(folder: Path, uuid: str) -> MpsState:
    """OSError, ReportError. Blocks."""
    with (folder / uuid / mps.STATE_NAME).open(encoding="utf-8", errors="replace") as file:
        return MpsState.from_json(file.read(_MOST_BYTES))


def problem_of(folder: Path, uuid: str, now: float) -> str:
    """Why no container may start on this GPU; "" if one may. now: seconds on the host's monotonic clock. Blocks."""
    path = folder / uuid / mps.STATE_NAME
    try:
        return _state_of(folder, uuid).unusable(now)
    except OSError as error:
        return f"its MPS control daemon has not run: {path} cannot be read ({error.strerror}); run site.yml with gpushare_isolation: mps"
    except ReportError as error:
        return f"its MPS control daemon has an unreadable state: {path}: {error}"


class MpsStates:
    """The states of MPS control daemons, for one event loop only. clock: the host's monotonic clock."""

    def __init__(self, node: NodeState, status: Status, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._node = node
        self._status = status
        self._folder = folder
        self._clock = clock

    async def run(self) -> NoReturn:
        """Never returns; cancel it."""
        while True:
            # Pods get no instances of MIG here, which have no control daemons.
            uuids = [gpu.uuid for gpu in self._node.devices.gpus if not gpu.is_instance]
            problems = await in_thread(partial(self._read, uuids))
            self._node.devices.set_mps(problems)
            wrong = [f"GPU {gpu.index}: {problems[gpu.uuid]}" for gpu in self._node.devices.gpus if problems.get(gpu.uuid)]
            if wrong:
                self._status.degraded(_PART, "; ".join(wrong))
            elif uuids:
                self._status.ok(_PART, f"the control daemons of {len(uuids)} GPUs answer")
            await asyncio.sleep(INTERVAL_SECONDS if uuids else INTERVAL_SECONDS / 10)

    def _read(self, uuids: list[str]) -> dict[str, str]:
        return {uuid: problem_of(self._folder, uuid, self._clock()) for uuid in uuids}

    async def before_start(self, resource: str, ids: Sequence[str]) -> None:
        """Wait until the control daemon of each GPU permits what a container with these ids has. It raises AllocationRejected if it does
        not.

        Its clients get at most the largest share that a container had before this one.
        """
        for uuid, mib in self._shares(resource, ids).items():
            deadline = self._clock() + _LIMIT_SECONDS
            while (limit := await in_thread(partial(self._limit, uuid))) < mib:
                if self._clock() > deadline:
                    raise AllocationRejected(
                        f"{resource}: the MPS control daemon of GPU {uuid} gives clients {limit} MiB, and the container has {mib} MiB; "
                        f"{RETRIES}",
                        "limit",
                    )
                await asyncio.sleep(_POLL_SECONDS)

    def _shares(self, resource: str, ids: Sequence[str]) -> dict[str, int]:
        """MiB by GPU. Ids of no known GPU were rejected before."""
        known, inventory = self._node.devices.gpu_of(resource), self._node.devices.inventory
        if inventory is None:
            return {}
        if resource == protocol.RESOURCE_GPUS:
            return {known[device_id].uuid: known[device_id].mib for device_id in ids if device_id in known}
        return {
            uuid: units * inventory.unit.mib
            for uuid, units in Counter(known[device_id].uuid for device_id in ids if device_id in known).items()
        }

    def _limit(self, uuid: str) -> int:
        try:
            # A release before had no other limit than the GPU.
            return _state_of(self._folder, uuid).limit or _NO_LIMIT
        except (OSError, ReportError):
            # Why the GPU has no usable control daemon is judged elsewhere.
            return _NO_LIMIT
