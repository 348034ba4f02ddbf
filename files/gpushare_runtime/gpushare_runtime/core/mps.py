# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""CUDA MPS on a node: one control daemon per GPU. Its folders, what a container gets of them, and its state as a file. Pure.

gpushare-mps runs the daemon of a GPU and writes the state. The device plugin reads it, and hands the GPU out only while it is fresh.
The device plugin writes which container has what, and whose clients are to be terminated, which gpushare-mps reads. Each writes in a
folder that no container has, and neither takes any other request.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple

from gpushare_runtime.core import protocol
from gpushare_runtime.core.bounds import MOST_TEXT, MOST_UNITS, ReportError, as_text, natural, read_versioned, typed
from gpushare_runtime.core.quantity import parse_unit
from gpushare_runtime.core.unit_ids import parse_unit_id

VERSION: Final = 1
RUN_FOLDER: Final = "/run/gpushare-mps"
LOG_FOLDER: Final = "/var/lib/gpushare-mps/log"
STATE_NAME: Final = "state.json"
PIPES: Final = "pipe"
SHARED_MEMORY: Final = "shm"

# In a container. The second is where the driver's shared memory always is.
CONTAINER_PIPES: Final = "/run/gpushare-mps/pipe"
CONTAINER_SHARED_MEMORY: Final = "/dev/shm"
# A library that CUDA loads into each process whose user owns a file of this name there, MPS servers included.
INJECTED_LIBRARY: Final = "cuda_injection_path_shm"
ENV_PIPES: Final = "CUDA_MPS_PIPE_DIRECTORY"
ENV_LOGS: Final = "CUDA_MPS_LOG_DIRECTORY"
ENV_MEMORY: Final = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"
ENV_THREADS: Final = "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"

MOST_CLIENTS: Final = 48
"""Client contexts of one GPU, on Volta and later."""
LOWEST_CAPABILITY: Final = (7, 0)
"""Compute capability of Volta. Before it clients share one address space, and have no limits."""
FRESH_SECONDS: Final = 20.0
"""A state that is older does not count: its writer hangs or is gone."""
_LATEST: Final = 2**40
USAGE_FILE: Final = "/var/lib/gpushare-device-plugin/held.json"
"""Where the device plugin records which container has which ids."""
MOST_USAGE_BYTES: Final = 32 * 1024 * 1024
_USAGE_VERSION: Final = 1
ENDING_NAME: Final = "ending.json"
"""Beside it: the processes of pods that kubelet is about to kill."""
MOST_ENDING: Final = 1024
"""Processes of a pod in it."""
MOST_ENDING_BYTES: Final = 4 * 1024 * 1024
_ENDING_VERSION: Final = 1


@dataclass(frozen=True)
class MpsState:
    """at: seconds on the host's monotonic clock. problem: why the daemon does not answer, "" if it does. servers: of how many users.

    limit: MiB that a client gets at most, whatever its environment says. 0: not known, as of the release before; no less than the GPU.
    """

    at: int
    problem: str = ""
    servers: int = 0
    limit: int = 0

    def to_json(self) -> str:
        said = {"v": VERSION, "at": self.at, "problem": as_text(self.problem), "servers": self.servers, "limit": self.limit}
        return json.dumps(said)

    @classmethod
    def from_json(cls, text: str) -> MpsState:
        """ReportError."""
        data = read_versioned(text, VERSION)
        limit = natural(data, "limit") if "limit" in data else 0
        return cls(natural(data, "at", most=_LATEST), typed(data, "problem", str), natural(data, "servers"), limit)

    def unusable(self, now: float) -> str:
        """Why no container may start on this GPU at this time of the same clock; "" if one may."""
        if self.problem:
            return f"its MPS control daemon is not usable: {self.problem}"[:MOST_TEXT]
        # A clock that went back was another boot's.
        if not self.at <= now + 1 < self.at + 1 + FRESH_SECONDS:
            return "its MPS control daemon has not answered: see `systemctl status 'gpushare-mps-*'`"
        return ""


class MpsProcess(NamedTuple):
    """started: in the kernel's ticks, because the number may belong to another process a moment later."""

    pid: int
    started: int


def ending_to_json(processes: Mapping[str, Iterable[tuple[int, int]]]) -> bytes:
    """processes: by GPU UUID, of the pods whose clients of MPS are to be terminated."""
    clients = {uuid: sorted({(pid, started) for pid, started in found}) for uuid, found in sorted(processes.items())}
    return json.dumps({"v": _ENDING_VERSION, "clients": clients}).encode()


def ending_of(text: bytes, uuid: str) -> frozenset[MpsProcess]:
    """The clients that end on this GPU. ReportError for a file of another form."""
    data = read_versioned(text.decode(errors="replace"), _ENDING_VERSION, MOST_ENDING_BYTES)
    try:
        found = frozenset(MpsProcess(pid, started) for pid, started in data["clients"].get(uuid, ()))
        if not all(type(number) is int and 0 < number <= _LATEST for process in found for number in process):
            raise ValueError("a process needs its number and its start")
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise ReportError(f"found no list of processes ({as_text(repr(error), 80)}); expected clients by GPU") from None
    return found


class Shared(NamedTuple):
    """MiB that containers have of a GPU. largest: the one with the most. together: all of them; what they share counts once."""

    largest: int = 0
    together: int = 0


def shares_of(usage: bytes, boot: str, uuid: str, gpu_mib: int) -> Shared:
    """By the device plugin's record; all of a whole GPU.

    boot: ID of this boot, because no container survives one. ReportError for a record of another form.
    """
    try:
        data = json.loads(usage)
        if data["v"] != _USAGE_VERSION:
            raise ValueError(f"its version is {data['v']!r}"[:MOST_TEXT])
        if data["boot"] != boot:
            return Shared()
        unit, most, ids = parse_unit(data["unit"]).mib, 0, set[str]()
        for pod in data["pods"].values():
            for resources in pod["containers"].values():
                if uuid in resources.get(protocol.RESOURCE_GPUS, ()):
                    return Shared(gpu_mib, gpu_mib)
                mine = [unit_id for unit_id in resources.get(protocol.RESOURCE_MEMORY, ()) if parse_unit_id(unit_id)[0] == uuid]
                most = max(most, len(mine) * unit)
                ids.update(mine)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ReportError(
            f"found no record of the device plugin ({as_text(repr(error), 80)}); expected its version {_USAGE_VERSION}"
        ) from None
    highest = min(gpu_mib, MOST_UNITS)
    return Shared(min(most, highest), min(len(ids) * unit, highest))


@dataclass(frozen=True)
class Mount:
    """inside: path in the container; outside: path on the host."""

    inside: str
    outside: str
    read_only: bool = True


@dataclass(frozen=True)
class ClientAccess:
    """The things that a container gets beside its GPU."""

    environment: tuple[tuple[str, str], ...]
    mounts: tuple[Mount, ...]


def client_access(uuid: str, mib: int | None, core: int) -> ClientAccess:
    """Of a container with this much memory (None: all of it) and per cent of the compute (0: all of it) of one GPU.

    The limit names the GPU by its index, because releases of the driver ignore UUIDs there. The index is 0: the control daemon has only
    this GPU, and renumbers it.

    The control daemon is root on the host, and opens its own files beside the pipes by their names. So no container makes a file
    there: to connect, and to write into a pipe, does not change a read-only folder. A process cannot remove what is a mount point to it, so
    none can name a library to the servers and to the other containers of the GPU.
    """
    environment = [(ENV_PIPES, CONTAINER_PIPES)]
    if mib is not None:
        environment.append((ENV_MEMORY, f"0={mib}M"))
    if core:
        environment.append((ENV_THREADS, str(core)))
    mounts = (
        Mount(CONTAINER_PIPES, f"{RUN_FOLDER}/{uuid}/{PIPES}"),
        Mount(CONTAINER_SHARED_MEMORY, f"{RUN_FOLDER}/{uuid}/{SHARED_MEMORY}", read_only=False),
        Mount(f"{CONTAINER_SHARED_MEMORY}/{INJECTED_LIBRARY}", "/dev/null"),
    )
    return ClientAccess(tuple(environment), mounts)
