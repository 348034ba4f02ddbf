# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""kubelet's record of who got which device ids, `kubelet_internal_checkpoint`.

kubelet writes it (a new file, renamed in) before it asks for the next container, so it is exact about every earlier one.
It may still list pods that have ended: kubelet forgets those in memory first and in the file with its next write. kubelet counts
ids: those of pods that run must mean the unit of memory that is used now.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from pathlib import Path

import orjson

from gpushare_runtime.core.quantity import Unit
from gpushare_runtime.device_plugin.node.ids import Entry, Key

log = logging.getLogger(__name__)


class CheckpointError(ValueError):
    """A checkpoint that is not what kubelet writes; says what was found."""


Known = Mapping[Key, tuple[object, Entry]]
"""(pod, container, resource) → what stood for its ids, and the entry that it became."""


def parse(data: bytes, resources: Iterable[str]) -> tuple[Entry, ...]:
    """The entries for these resources. Reads the form with ids per NUMA node, the older list, and data without a wrapper."""
    return tuple(entry for _, entry in parse_again(data, resources, {}).values())


def parse_again(data: bytes, resources: Iterable[str], known: Known) -> dict[Key, tuple[object, Entry]]:
    """As `parse`; entries that are known from an earlier reading are taken over as they are."""
    try:
        document = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise CheckpointError(f"not JSON: {error}") from None
    content = document.get("Data", document) if isinstance(document, dict) else None
    if not isinstance(content, dict) or not isinstance(content.get("PodDeviceEntries") or [], list):
        raise CheckpointError("no list Data.PodDeviceEntries in it")
    wanted = frozenset(resources)
    read: dict[Key, tuple[object, Entry]] = {}
    for entry in content.get("PodDeviceEntries") or []:
        resource = entry.get("ResourceName") if isinstance(entry, dict) else None
        if isinstance(resource, str) and resource in wanted:
            try:
                pod, container, ids = entry["PodUID"], entry["ContainerName"], entry["DeviceIDs"]
            except KeyError as error:
                raise CheckpointError(f"an entry of {resource} has no {error.args[0]}") from None
            if not (isinstance(pod, str) and isinstance(container, str)):
                raise CheckpointError(f"an entry of {resource} whose PodUID or ContainerName is no text")
            key = pod, container, resource
            before = known.get(key)
            # To compare lists costs a tenth of making sets of them.
            read[key] = before if before is not None and before[0] == ids else (ids, Entry(*key, frozenset(_ids(ids))))
    return read


def _ids(value: object) -> Iterator[str]:
    lists = value.values() if isinstance(value, dict) else [value]
    for ids in lists:
        if not isinstance(ids, list) or not set(map(type, ids)) <= {str}:
            raise CheckpointError(f"DeviceIDs must be lists of ids, found {type(ids).__name__}")
        yield from ids


class CheckpointFile:
    """The checkpoint on disk, parsed again only when it changed.

    entries: as last read. A missing file has none; one that cannot be read leaves them as they were, and `problem` says why.
    """

    def __init__(self, path: Path, resources: Iterable[str]) -> None:
        self.path = path
        self.entries: tuple[Entry, ...] = ()
        self.problem = ""
        self._resources = tuple(resources)
        self._identity: tuple[int, int, int] | None = None
        self._known: Known = {}

    def refresh(self) -> bool:
        """Read it if it changed; whether `entries` is new."""
        try:
            with self.path.open("rb") as file:
                stat = os.fstat(file.fileno())
                identity = (stat.st_ino, stat.st_mtime_ns, stat.st_size)
                if identity == self._identity:
                    self.problem = ""
                    return False
                known = parse_again(file.read(), self._resources, self._known)
        except FileNotFoundError:
            self.problem = ""
            return self._set({}, None) if self._identity is not None else False
        except (OSError, CheckpointError) as error:
            if str(error) != self.problem:
                self.problem = str(error)
                log.warning(
                    "kubelet's checkpoint %s cannot be read (%s): going by kubelet's podresources API, else by what it said before; "
                    "kubelet writes a new one with the next pod",
                    self.path,
                    error,
                )
            return False
        return self._set(known, identity)

    def _set(self, known: Known, identity: tuple[int, int, int] | None) -> bool:
        self.entries = tuple(entry for _, entry in known.values())
        self._known, self._identity, self.problem = known, identity, ""
        return True


def changed_unit(unit: Unit, before: str, holders: Set[str], live: Callable[[Set[str]], Set[str]]) -> str:
    """Why the unit cannot be used now, "" if it can.

    before: the name of the unit in which these pods (UIDs) were given memory, "" if nobody knows; live: those of them that run.
    """
    running = sorted(live(holders)) if before not in ("", unit.name) and holders else []
    if not running:
        return ""
    shown = ", ".join(running[:3]) + (f" and {len(running) - 3} more" if len(running) > 3 else "")
    return (
        f"{len(running)} pods run with memory in units of {before[:80]} (UID {shown}), this plugin is to give it in units of {unit.name}: "
        f"delete these pods first, or start with --memory-unit {before[:80]}"
    )
