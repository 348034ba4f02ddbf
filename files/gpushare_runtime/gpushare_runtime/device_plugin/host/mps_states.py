# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Follows the MPS control daemons of this node's cards, by the files that gpushare-mps writes."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

from gpushare_runtime.core import mps
from gpushare_runtime.core.mps import MpsState, MpsStateError
from gpushare_runtime.daemon.runner import Status
from gpushare_runtime.daemon.sync import in_thread
from gpushare_runtime.device_plugin.node.state import NodeState

INTERVAL_SECONDS: Final = 1.0
_PART: Final = "MPS"
_MOST_BYTES: Final = 16 * 1024


def problem_of(folder: Path, uuid: str, now: float) -> str:
    """Why no container may start on this card; "" if one may. now: seconds on the host's monotonic clock. Blocks."""
    path = folder / uuid / mps.STATE_NAME
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return MpsState.from_json(file.read(_MOST_BYTES)).unusable(now)
    except OSError as error:
        return f"its MPS control daemon has not run: {path} cannot be read ({error.strerror}); run site.yml with gpushare_isolation: mps"
    except MpsStateError as error:
        return f"its MPS control daemon has an unreadable state: {path}: {error}"


class MpsStates:
    """Used from one event loop only. clock: the host's monotonic clock."""

    def __init__(self, node: NodeState, status: Status, folder: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._node = node
        self._status = status
        self._folder = folder
        self._clock = clock

    async def run(self) -> NoReturn:
        """Never returns; cancel it."""
        while True:
            uuids = [card.uuid for card in self._node.devices.cards]
            problems = await in_thread(partial(self._read, uuids))
            self._node.devices.set_mps(problems)
            wrong = [f"card {card.index}: {problems[card.uuid]}" for card in self._node.devices.cards if problems.get(card.uuid)]
            if wrong:
                self._status.degraded(_PART, "; ".join(wrong))
            elif uuids:
                self._status.ok(_PART, f"the control daemons of {len(uuids)} cards answer")
            await asyncio.sleep(INTERVAL_SECONDS if uuids else INTERVAL_SECONDS / 10)

    def _read(self, uuids: list[str]) -> dict[str, str]:
        return {uuid: problem_of(self._folder, uuid, self._clock()) for uuid in uuids}
