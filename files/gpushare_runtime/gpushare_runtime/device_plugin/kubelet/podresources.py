# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""kubelet's podresources API (v1): which ids it believes its containers to have, by pod name.

It is compared with kubelet's checkpoint, which has UIDs, and stands in for it where that cannot be read: beside the answers to
kubelet, never within them.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn

import grpc
import grpc.aio

from gpushare_runtime.device_plugin.kubelet.checkpoint import CheckpointFile
from gpushare_runtime.device_plugin.kubelet.proto import podresources_pb2 as pb
from gpushare_runtime.device_plugin.metrics import Counters
from gpushare_runtime.device_plugin.node.allocator import NodeState
from gpushare_runtime.device_plugin.node.ids import Entry
from gpushare_runtime.device_plugin.node.local_pods import PodTable

_SECONDS: Final = 10.0
# The list has every id of every pod, which is more than gRPC's default of 4 MiB on large nodes.
_OPTIONS: Final = (("grpc.max_receive_message_length", -1),)

Said = Mapping[tuple[str, str], Mapping[str, frozenset[str]]]
"""("namespace/name" of the pod, container) → resource → ids; {} for a container without any. No init containers."""


class PodResourcesError(Exception):
    """kubelet does not answer; the text says what it said."""


async def ask(socket: Path, resources: Collection[str]) -> Said:
    """What kubelet says of these resources. PodResourcesError."""
    try:
        async with grpc.aio.insecure_channel(f"unix:{socket}", options=_OPTIONS) as channel:
            list_all = channel.unary_unary(
                "/v1.PodResourcesLister/List",
                request_serializer=pb.ListPodResourcesRequest.SerializeToString,
                response_deserializer=pb.ListPodResourcesResponse.FromString,
            )
            answer = await list_all(pb.ListPodResourcesRequest(), timeout=_SECONDS)
    except grpc.aio.AioRpcError as error:
        raise PodResourcesError(f"{error.code().name}: {error.details()}") from None
    said: dict[tuple[str, str], dict[str, frozenset[str]]] = {}
    for pod in answer.pod_resources:
        for container in pod.containers:
            ids = said.setdefault((f"{pod.namespace}/{pod.name}", container.name), {})
            for devices in container.devices:
                if devices.resource_name in resources:
                    ids[devices.resource_name] = ids.get(devices.resource_name, frozenset()).union(devices.device_ids)
    return said


@dataclass(frozen=True)
class Difference:
    """One container whose ids the checkpoint (recorded) and kubelet's own word (said) do not agree on. pod: namespace/name."""

    pod: str
    container: str
    resource: str
    recorded: frozenset[str]
    said: frozenset[str]

    def __str__(self) -> str:
        return (
            f"{self.resource} of container {self.container} of pod {self.pod}: the checkpoint has {_words(self.recorded - self.said)}, "
            f"kubelet says {_words(self.said - self.recorded)}, {len(self.recorded & self.said)} in both"
        )


def differences(entries: Iterable[Entry], said: Said, pods: PodTable) -> Iterator[Difference]:
    """Where both speak of the same container: what only one of them knows (init containers, pods that have ended) is no difference."""
    recorded: dict[tuple[str, str, str], list[frozenset[str]]] = {}
    nameless: set[tuple[str, str, frozenset[str]]] = set()
    for entry in entries:
        pod = pods.get(entry.pod)
        if pod is None:
            nameless.add((entry.container, entry.resource, entry.ids))
        elif not pod.finished:
            recorded.setdefault((str(pod), entry.container, entry.resource), []).append(entry.ids)
    for (name, container), resources in said.items():
        for resource, ids in resources.items():
            known = recorded.get((name, container, resource), [])
            # A pod that was made anew under its name has two entries for a moment.
            if ids and ids not in known and (container, resource, ids) not in nameless:
                yield Difference(name, container, resource, frozenset().union(*known), ids)
    for (name, container, resource), known in recorded.items():
        if (name, container) in said and not said[name, container].get(resource):
            yield Difference(name, container, resource, frozenset().union(*known), frozenset())


def entries_of(said: Said, pods: PodTable, before: Iterable[Entry]) -> tuple[Entry, ...]:
    """What kubelet says as the checkpoint would have it, as far as the pods are known; init containers' as they were `before`."""
    uids: dict[str, str] = {str(pod): pod.uid for pod in pods if not pod.finished}
    entries = {
        (uids[name], container, resource): Entry(uids[name], container, resource, ids)
        for (name, container), resources in said.items()
        for resource, ids in resources.items()
        if name in uids
    }
    listed = {(uids[name], container) for name, container in said if name in uids}
    names = {uid for uid, _ in listed}
    kept = [entry for entry in before if entry.pod in names and (entry.pod, entry.container) not in listed]
    return (*kept, *entries.values())


def _words(ids: frozenset[str]) -> str:
    return f"{len(ids)} of its own ({', '.join(sorted(ids)[:3])}{' …' if len(ids) > 3 else ''})" if ids else "none of its own"


log = logging.getLogger(__name__)

INTERVAL_SECONDS: Final = 60.0
# kubelet writes its checkpoint a moment after it has taken note: only what stays is a difference.
_AGAIN_SECONDS: Final = 5.0
# Without a checkpoint this is all there is.
_ALONE_SECONDS: Final = 1.0


class CrossCheck:
    """refresh: brings `checkpoint` and the node's state up to the file; socket: of podresources; scale: of all pauses."""

    def __init__(
        self,
        node: NodeState,
        checkpoint: CheckpointFile,
        refresh: Callable[[], None],
        socket: Path,
        resources: Collection[str],
        counters: Counters,
        scale: float = 1.0,
    ) -> None:
        self._node = node
        self._checkpoint = checkpoint
        self._refresh = refresh
        self._socket = socket
        self._resources = resources
        self._counters = counters
        self._scale = scale
        self._seen: frozenset[Difference] = frozenset()
        self._told: frozenset[Difference] = frozenset()
        self._silent = ""

    async def run(self) -> NoReturn:
        """Never returns; cancel it."""
        while True:
            pause = await self._look()
            await asyncio.sleep(pause * self._scale)

    async def _look(self) -> float:
        """How long to wait before the next look."""
        self._refresh()
        alone = bool(self._checkpoint.problem)
        if not self._node.pods.synced or not (self._node.holders.entries or alone):
            return _AGAIN_SECONDS
        try:
            said = await ask(self._socket, self._resources)
        except PodResourcesError as error:
            if str(error) != self._silent:
                self._silent = str(error)
                log.warning("kubelet's podresources API on %s does not answer, its checkpoint is not compared: %s", self._socket, error)
            return _ALONE_SECONDS if alone else INTERVAL_SECONDS
        self._silent = ""
        self._refresh()
        if self._checkpoint.problem:
            self._stand_in(said)
            return _ALONE_SECONDS
        found = frozenset(differences(self._node.holders.entries, said, self._node.pods))
        self._tell(found & self._seen)
        self._seen = found
        return _AGAIN_SECONDS if found - self._told else INTERVAL_SECONDS

    def _stand_in(self, said: Said) -> None:
        holders = self._node.holders
        entries = entries_of(said, self._node.pods, holders.entries)
        if set(entries) != set(holders.entries):
            log.info("by kubelet's podresources API %d containers have ids, while its checkpoint cannot be read", len(entries))
            holders.set_checkpoint(entries)

    def _tell(self, staying: frozenset[Difference]) -> None:
        """staying: seen twice in a row."""
        for difference in staying - self._told:
            self._counters.record_mismatches += 1
            log.error(
                "kubelet's checkpoint and its podresources API differ: %s. This plugin goes by the checkpoint: "
                "delete the pod, and restart kubelet if it happens again",
                difference,
            )
        self._told = staying
