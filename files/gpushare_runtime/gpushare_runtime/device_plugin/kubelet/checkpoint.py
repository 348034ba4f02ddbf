# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""kubelet's record of the device ids of each container, `kubelet_internal_checkpoint`; the only reader of that file.

kubelet replaces the file before it requests devices for the next container, so it lists every earlier container exactly. It may
still list pods that have ended: kubelet removes those from the file with its next write. kubelet counts ids, so the ids of running
pods must mean the current unit of memory.
"""

from __future__ import annotations

import base64
import binascii
import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from functools import partial
from pathlib import Path
from typing import Final, NoReturn, Protocol

import orjson
from google.protobuf.message import DecodeError

from gpushare_runtime.core import protocol
from gpushare_runtime.core.bounds import MOST_GPUS
from gpushare_runtime.core.quantity import Unit
from gpushare_runtime.daemon.files import age_of
from gpushare_runtime.daemon.inotify import DirectoryWatch
from gpushare_runtime.daemon.sync import any_after, in_thread
from gpushare_runtime.device_plugin.kubelet.proto import deviceplugin_pb2 as pb
from gpushare_runtime.device_plugin.node.id_usage import Processes
from gpushare_runtime.device_plugin.node.ids import CheckpointEntry, DeviceKey
from gpushare_runtime.device_plugin.node.state import NodeState
from gpushare_runtime.errors import GpushareError

log = logging.getLogger(__name__)
_INDEX_DIGITS: Final = 3
_RESCAN_SECONDS: Final = 5.0
Parsed = Mapping[DeviceKey, tuple[object, CheckpointEntry]]
"""(pod, container, resource) → the JSON of its ids, and the entry made of it."""


class CheckpointError(GpushareError, ValueError):
    """A checkpoint in an unknown form; the text has what was found."""


def parse(known: Parsed, data: bytes, resources: Iterable[str]) -> Parsed:
    """The entries for these resources. Reads the form with ids per NUMA node, the older list, and data without a wrapper.

    known: an earlier reading, whose entries are reused where their JSON is the same.
    """
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise CheckpointError(f"not JSON: {error}") from None
    content = document.get("Data", document) if isinstance(document, dict) else None
    if not isinstance(content, dict) or not isinstance(content.get("PodDeviceEntries") or [], list):
        raise CheckpointError("no list Data.PodDeviceEntries in it")
    wanted = frozenset(resources)
    read: dict[DeviceKey, tuple[object, CheckpointEntry]] = {}
    for entry in content.get("PodDeviceEntries") or []:
        resource = entry.get("ResourceName") if isinstance(entry, dict) else None
        if isinstance(resource, str) and resource in wanted:
            try:
                pod, container, ids = entry["PodUID"], entry["ContainerName"], entry["DeviceIDs"]
            except KeyError as error:
                raise CheckpointError(f"an entry of {resource} has no {error.args[0]}") from None
            if not (isinstance(pod, str) and isinstance(container, str)):
                raise CheckpointError(f"an entry of {resource} has a PodUID or ContainerName that is not a string")
            key = DeviceKey(pod, container, resource)
            before = known.get(key)
            # Comparing lists costs a tenth of making sets of them.
            same = before is not None and before[0] == ids
            read[key] = before if same and before else (ids, CheckpointEntry(*key, frozenset(_ids(ids)), given_index(entry)))
    return read


def given_index(entry: Mapping[str, object]) -> int | None:
    """The GPU (NVML index) that the original gpushare's device plugin gave the container; None for any other plugin's.

    That plugin does not read the ids that kubelet chose: it names the GPU of the pod's annotation by its index, in the response that
    kubelet keeps for the container's next start. The plugin here names GPUs by their UUIDs.
    """
    response = entry.get("AllocResp")
    if entry.get("ResourceName") != protocol.RESOURCE_MEMORY or not isinstance(response, str):
        return None
    try:
        envs = pb.ContainerAllocateResponse.FromString(base64.b64decode(response, validate=True)).envs
    except (DecodeError, binascii.Error, ValueError):
        return None
    index = envs.get(protocol.ENV_VISIBLE_DEVICES, "")
    return (
        int(index)
        if index.isascii() and index.isdecimal() and len(index) <= _INDEX_DIGITS and envs.get(protocol.ENV_INDEX) == index
        else None
    )


def registered_gpus(data: bytes, resources: Iterable[str]) -> dict[str, list[str]]:
    """These resources, where kubelet has recorded them → the GPUs of their healthy ids ("<gpu>-_-<n>").

    One more at most than a node has: where another plugin's ids are among them, some are left.
    """
    try:
        devices = orjson.loads(data)["Data"]["RegisteredDevices"] or {}
        found = {resource: devices[resource] or [] for resource in resources if resource in devices}
    except (orjson.JSONDecodeError, LookupError, TypeError) as error:
        raise CheckpointError(f"no Data.RegisteredDevices in it: {error!r}") from None
    return {
        resource: sorted({device_id.partition("-_-")[0] for device_id in _ids(ids)})[: MOST_GPUS + 1] for resource, ids in found.items()
    }


def _ids(value: object) -> Iterator[str]:
    lists = value.values() if isinstance(value, dict) else [value]
    for ids in lists:
        if not isinstance(ids, list) or not set(map(type, ids)) <= {str}:
            raise CheckpointError(f"DeviceIDs must be lists of ids, found {type(ids).__name__}")
        yield from ids


class CheckpointFile:
    """The checkpoint on disk, parsed only after a change."""

    def __init__(self, path: Path, resources: Iterable[str]) -> None:
        self.path = path
        self.entries: tuple[CheckpointEntry, ...] = ()  # a missing file has none, an unreadable one leaves them as they were
        self.problem = ""  # why the file is unreadable
        self._resources = tuple(resources)
        self._identity: tuple[int, int, int] | None = None
        self._known: Parsed = {}

    def refresh(self) -> bool:
        """Read the file if it changed. Returns whether `entries` is new."""
        try:
            with self.path.open("rb") as file:
                stat = os.fstat(file.fileno())
                identity = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
                if identity == self._identity:
                    self.problem = ""
                    return False
                known = parse(self._known, file.read(), self._resources)
        except FileNotFoundError:
            self.problem = ""
            return self._set({}, None) if self._identity is not None else False
        except (OSError, CheckpointError) as error:
            if str(error) != self.problem:
                self.problem = str(error)
                log.warning(
                    "kubelet's checkpoint %s cannot be read (%s): using kubelet's podresources API, else the checkpoint before it; "
                    "kubelet writes a new one with the next pod",
                    self.path,
                    error,
                )
            return False
        return self._set(known, identity)

    def _set(self, known: Parsed, identity: tuple[int, int, int] | None) -> bool:
        self.entries = tuple(entry for _, entry in known.values())
        self._known, self._identity, self.problem = known, identity, ""
        return True

    def age(self) -> float:
        """Seconds since kubelet wrote it; 0 if it does not exist."""
        return age_of(self.path)


class RecordFile(Protocol):
    """A record of the ids that containers have: kubelet's checkpoint, or what takes its place."""

    path: Path
    entries: tuple[CheckpointEntry, ...]

    def refresh(self) -> bool:
        """Whether `entries` is new."""

    def age(self) -> float:
        """Seconds since it was written."""


class CheckpointReader:
    """Keeps the node's usage up to date with the checkpoint. processes: of this host; terminated pods without one release their ids."""

    def __init__(self, file: RecordFile, node: NodeState, processes: Processes) -> None:
        self._file = file
        self._node = node
        self._processes = processes

    def refresh(self) -> None:
        """Update the usage if the file changed."""
        if self._file.refresh():
            self._node.recorder.set_checkpoint(self._file.entries, self._file.age())

    def start(self) -> None:
        """The first reading; of a missing file as well, which `refresh` would not take for a change."""
        self.refresh()
        if not self._file.path.exists():
            self._node.recorder.set_checkpoint(())

    async def run(self, watch: DirectoryWatch) -> NoReturn:
        """Never returns; cancel it. watch: of the file's directory."""
        changes, recorder = self._node.changes, self._node.recorder
        while True:
            files = watch.changes.count
            self.refresh()
            doubtful = recorder.detect_terminated()
            seen = (watch.changes, files), (changes, changes.count)
            if doubtful:
                live = await in_thread(partial(self._processes.pods, doubtful))
                recorder.apply_process_scan(doubtful, live)
            # No file changes with the end of their last process, and with the back end DRA a GPU is closed until then.
            await any_after(*seen, timeout=_RESCAN_SECONDS if doubtful else None)


def changed_unit(unit: Unit, before: str, uids: Set[str], live: Callable[[Set[str]], Set[str]]) -> str:
    """Why the plugin cannot use this unit now; "" if it can.

    before: the name of the unit in which these pods got their memory, "" if unknown.
    live: returns those of the pods that have a process.
    """
    running = sorted(live(uids)) if before not in ("", unit.name) and uids else []
    if not running:
        return ""
    shown = ", ".join(running[:3]) + (f" and {len(running) - 3} more" if len(running) > 3 else "")
    return (
        f"{len(running)} pods run with memory in units of {before[:80]} (UID {shown}), this plugin should allocate units of {unit.name}: "
        f"delete these pods first, or start with --memory-unit {before[:80]}"
    )
