# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Follows the CDI specs of this host, and keeps our own up to date where no other fits its GPUs."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final, NoReturn

from gpushare_runtime.core import protocol
from gpushare_runtime.core.inventory import Gpu
from gpushare_runtime.daemon.inotify import DirectoryWatch
from gpushare_runtime.daemon.runner import Status
from gpushare_runtime.daemon.sync import any_after, in_thread
from gpushare_runtime.device_plugin.host.cdi_specs import SpecFolders
from gpushare_runtime.device_plugin.host.own_spec import OwnSpec, OwnSpecError
from gpushare_runtime.device_plugin.node.cdi import CdiSpecs
from gpushare_runtime.device_plugin.node.state import NodeState

_PART: Final = "CDI"
_POLL_SECONDS: Final = 1.0
# A program that writes a spec writes several times.
_TOGETHER_SECONDS: Final = 0.05
# Between two attempts to write our spec that fail.
_RETRY_SECONDS: Final = 5.0
_SHOWN: Final = 3


class CdiPoller:
    """Reads the folders whenever something changes in them, and once a second, because a driver upgrade changes other folders.

    report: takes what is wrong, each time that this changes. own: our spec; None where others write it.
    """

    def __init__(
        self, folders: SpecFolders, node: NodeState, status: Status, report: Callable[[str], None], own: OwnSpec | None = None
    ) -> None:
        self._folders = folders
        self._node = node
        self._status = status
        self._report = report
        self._own = own
        self._not_written = ""
        self._wait_until = 0.0
        self._reported = ""

    def start(self) -> None:
        """The first reading. Blocks; what it finds decides what kubelet gets first."""
        if self._own and (self._node.devices.cdi_kind == protocol.CDI_KIND_OWN or not self._folders.read().names(protocol.CDI_KIND)):
            self._write(self._own, ())
        self._node.devices.set_cdi(self._read())

    async def run(self) -> NoReturn:
        """Never returns; cancel it."""
        async with contextlib.AsyncExitStack() as stack:
            watches = [await stack.enter_async_context(DirectoryWatch(Path(folder))) for folder in self._folders.folders]
            changes, devices = self._node.changes, self._node.devices
            while True:
                seen = [(watch.changes, watch.changes.count) for watch in watches]
                count = changes.count
                look = partial(self._look, devices.answering, tuple(devices.by_uuid), devices.driver, devices.cdi_kind)
                devices.set_cdi(await in_thread(look))
                self._set_status()
                # The GPUs may change as well, for which the same specs mean something else.
                await any_after(*seen, (changes, count), timeout=_POLL_SECONDS)
                await asyncio.sleep(_TOGETHER_SECONDS)

    def _look(self, gpus: Sequence[Gpu], known: Sequence[str], driver: str, kind: str) -> CdiSpecs:
        """Read the CDI specs, and write ours first where it is out of date.

        gpus: those that answer. known: UUIDs of all. kind: of the devices so far.
        """
        specs = self._read()
        if self._own is None or not gpus or specs.kind(gpus, driver, kind) != protocol.CDI_KIND_OWN:
            return specs
        gone = specs.names(protocol.CDI_KIND_OWN) - set(known)
        wrong = specs.foreign or bool(gone) or any(specs.problem(gpu, driver, protocol.CDI_KIND_OWN) for gpu in gpus)
        if not wrong or time.monotonic() < self._wait_until:
            return specs
        self._write(self._own, [gpu.uuid for gpu in gpus])
        return self._read()

    def _read(self) -> CdiSpecs:
        specs = self._folders.read()
        if self._own is None:
            return specs
        return replace(specs, own_file=str(self._own.path), foreign=not self._own.intact(), not_written=self._not_written)

    def _write(self, own: OwnSpec, uuids: Sequence[str]) -> None:
        try:
            own.write(uuids)
            self._not_written = ""
        except OwnSpecError as error:
            self._not_written, self._wait_until = str(error), time.monotonic() + _RETRY_SECONDS

    def _set_status(self) -> None:
        devices = self._node.devices
        if devices.inventory is None:
            return
        names = {gpu.uuid: f"GPU {gpu.index}" for gpu in devices.gpus}
        wrong = [f"{names.get(uuid, uuid)}: {why}" for uuid, why in devices.unusable_specs().items()]
        text = "; ".join(wrong[:_SHOWN]) + (f"; and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else "")
        if wrong:
            self._status.degraded(_PART, text)
        else:
            self._status.ok(_PART, f"a spec names every GPU as {devices.cdi_kind}")
        if text and text != self._reported:
            self._report(text)
        self._reported = text
