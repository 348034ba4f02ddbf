# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""kubelet's podresources API (v1): the ids of each container by kubelet's memory, with pod names instead of UIDs.

The plugin compares it with kubelet's checkpoint, and uses it instead of an unreadable checkpoint. It never does so within a request
of kubelet.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NoReturn, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import Message

from gpushare_runtime.daemon.log_line import about
from gpushare_runtime.device_plugin.kubelet.checkpoint import CheckpointFile
from gpushare_runtime.device_plugin.kubelet.proto import podresources_pb2 as pb
from gpushare_runtime.device_plugin.kubelet.server import ResourceService
from gpushare_runtime.device_plugin.node.counters import Counters
from gpushare_runtime.device_plugin.node.ids import CheckpointEntry
from gpushare_runtime.device_plugin.node.local_pods import PodTable
from gpushare_runtime.device_plugin.node.state import NodeState
from gpushare_runtime.errors import GpushareError

T = TypeVar("T", bound=Message)
_SECONDS: Final = 10.0
# The list has every id of every pod, which exceeds gRPC's default of 4 MiB on large nodes.
_OPTIONS: Final = (("grpc.max_receive_message_length", -1),)

Reported = Mapping[tuple[str, str], Mapping[str, frozenset[str]]]
"""("namespace/name" of the pod, container) → resource → ids; {} for a container without any. No init containers."""
log = logging.getLogger(__name__)
INTERVAL_SECONDS: Final = 60.0
# kubelet writes its checkpoint a moment after a change in memory: only a lasting difference counts.
_AGAIN_SECONDS: Final = 5.0
HEALTHY_SECONDS: Final = 30.0
# kubelet takes a moment over a list of many ids.
_SUSPECT_SECONDS: Final = 5.0
# Without a readable checkpoint podresources is the only source.
_ALONE_SECONDS: Final = 1.0


class PodResourcesError(GpushareError):
    """kubelet does not answer; the text has the gRPC error."""


async def _ask(socket: Path, method: str, request: Message, response: type[T]) -> T:
    """PodResourcesError."""
    try:
        async with grpc.aio.insecure_channel(f"unix:{socket}", options=_OPTIONS) as channel:
            call = channel.unary_unary(
                f"/v1.PodResourcesLister/{method}",
                request_serializer=type(request).SerializeToString,
                response_deserializer=response.FromString,
            )
            answer: T = await call(request, timeout=_SECONDS)
            return answer
    except grpc.aio.AioRpcError as error:
        raise PodResourcesError(f"{error.code().name}: {error.details()}") from None


async def healthy_ids(socket: Path) -> Mapping[str, frozenset[str]]:
    """Resource → the ids that kubelet has as healthy. PodResourcesError; from Kubernetes 1.23 on kubelet answers by default."""
    response = await _ask(socket, "GetAllocatableResources", pb.AllocatableResourcesRequest(), pb.AllocatableResourcesResponse)
    found: dict[str, set[str]] = {}
    for devices in response.devices:
        found.setdefault(devices.resource_name, set()).update(devices.device_ids)
    return {resource: frozenset(ids) for resource, ids in found.items()}


async def list_ids(socket: Path, resources: Collection[str]) -> Reported:
    """The ids that kubelet reports for these resources. PodResourcesError."""
    response = await _ask(socket, "List", pb.ListPodResourcesRequest(), pb.ListPodResourcesResponse)
    reported: dict[tuple[str, str], dict[str, frozenset[str]]] = {}
    for pod in response.pod_resources:
        for container in pod.containers:
            ids = reported.setdefault((f"{pod.namespace}/{pod.name}", container.name), {})
            for devices in container.devices:
                if devices.resource_name in resources:
                    ids[devices.resource_name] = ids.get(devices.resource_name, frozenset()).union(devices.device_ids)
    return reported


class KubeletIds:
    """Whether kubelet has the ids that the plugin has sent it last: the list alone does not tell.

    Another device plugin may have registered the resource. When that one ends, kubelet up to 1.36 has no healthy id left, and a newer one
    keeps its ids; both still read our list. served: resource → what serves it now.
    """

    def __init__(self, socket: Path, scale: float = 1.0) -> None:
        self.served: dict[str, ResourceService] = {}
        self._socket = socket
        self._scale = scale  # factor of all pauses
        self._suspects: set[ResourceService] = set()
        self._lost: set[ResourceService] = set()

    def are_lost(self, service: ResourceService) -> bool:
        """Whether kubelet had other ids than this service has sent it, each time that it was asked twice in a row."""
        return service in self._lost

    async def run(self) -> NoReturn:
        """Never returns; cancel it."""
        while True:
            found = await self._differing()
            self._lost, self._suspects = found & self._suspects, found
            await asyncio.sleep((_SUSPECT_SECONDS if found - self._lost else HEALTHY_SECONDS) * self._scale)

    async def _differing(self) -> set[ResourceService]:
        sent = {service: service.healthy for service in self.served.values() if service.streams}
        if not sent:
            return set()
        try:
            found = await healthy_ids(self._socket)
        except PodResourcesError:
            # The comparison with the checkpoint says so; old kubelets do not have this question.
            return set()
        # A list that has changed meanwhile may be on its way.
        return {
            service
            for service, ids in sent.items()
            if ids is not None and ids == service.healthy and found.get(service.resource, frozenset()) != ids
        }


@dataclass(frozen=True)
class Difference:
    """One container for which the checkpoint and podresources list different ids."""

    pod: str  # namespace/name
    container: str
    resource: str
    recorded: frozenset[str]  # by the checkpoint
    reported: frozenset[str]  # by podresources

    def __str__(self) -> str:
        return (
            f"{self.resource} of container {self.container} of pod {self.pod}: the checkpoint has {_own(self.recorded - self.reported)}, "
            f"podresources has {_own(self.reported - self.recorded)}, {len(self.recorded & self.reported)} in both"
        )


def differences(entries: Iterable[CheckpointEntry], reported: Reported, pods: PodTable) -> Iterator[Difference]:
    """Containers that both list with different ids. Init containers and ended pods, which only one of them lists, do not count."""
    recorded: dict[tuple[str, str, str], list[frozenset[str]]] = {}
    nameless: set[tuple[str, str, frozenset[str]]] = set()
    for entry in entries:
        pod = pods.get(entry.pod)
        if pod is None:
            nameless.add((entry.container, entry.resource, entry.ids))
        elif not pod.finished:
            recorded.setdefault((str(pod), entry.container, entry.resource), []).append(entry.ids)
    for (name, container), resources in reported.items():
        for resource, ids in resources.items():
            known = recorded.get((name, container, resource), [])
            # A pod that was recreated under its name has two entries for a moment.
            if ids and ids not in known and (container, resource, ids) not in nameless:
                yield Difference(name, container, resource, frozenset().union(*known), ids)
    for (name, container, resource), known in recorded.items():
        if (name, container) in reported and not reported[name, container].get(resource):
            yield Difference(name, container, resource, frozenset().union(*known), frozenset())


def twice(entries: Iterable[CheckpointEntry], pods: PodTable) -> Iterator[tuple[str, str, str]]:
    """(resource, pod, pod) for which kubelet's record has the same id. Of one pod containers pass ids on."""
    owners: dict[tuple[str, str], str] = {}
    found: set[tuple[str, str, str]] = set()
    for entry in entries:
        pod = pods.get(entry.pod)
        for device_id in entry.ids if pod is not None and pod.active else ():
            owner = owners.setdefault((entry.resource, device_id), entry.pod)
            if owner != entry.pod:
                name, other = sorted((str(pods.get(owner)), str(pod)))
                found.add((entry.resource, name, other))
    yield from sorted(found)


def entries_of(reported: Reported, pods: PodTable, before: Iterable[CheckpointEntry]) -> tuple[CheckpointEntry, ...]:
    """The entries of a checkpoint with what podresources lists for known pods; init containers keep their entries of `before`."""
    uids: dict[str, str] = {str(pod): pod.uid for pod in pods if not pod.finished}
    entries = {
        (uids[name], container, resource): CheckpointEntry(uids[name], container, resource, ids)
        for (name, container), resources in reported.items()
        for resource, ids in resources.items()
        if name in uids
    }
    listed = {(uids[name], container) for name, container in reported if name in uids}
    names = {uid for uid, _ in listed}
    kept = [entry for entry in before if entry.pod in names and (entry.pod, entry.container) not in listed]
    return (*kept, *entries.values())


def _own(ids: frozenset[str]) -> str:
    return f"{len(ids)} of its own ({', '.join(sorted(ids)[:3])}{' …' if len(ids) > 3 else ''})" if ids else "none of its own"


class CrossCheck:
    """Compares podresources with the checkpoint, and logs lasting differences."""

    def __init__(
        self,
        node: NodeState,
        checkpoint: CheckpointFile,
        refresh: Callable[[], None],  # updates `checkpoint` and the node's state from the file
        socket: Path,  # of podresources
        resources: Collection[str],
        counters: Counters,
        scale: float = 1.0,  # factor of all pauses
    ) -> None:
        self._node = node
        self._checkpoint = checkpoint
        self._refresh = refresh
        self._socket = socket
        self._resources = resources
        self._counters = counters
        self._scale = scale
        self._seen: frozenset[Difference] = frozenset()
        self._logged: frozenset[Difference] = frozenset()
        self._twice: frozenset[tuple[str, str, str]] = frozenset()
        self._problem = ""

    async def run(self) -> NoReturn:
        """Never returns; cancel it."""
        while True:
            pause = await self._compare()
            await asyncio.sleep(pause * self._scale)

    async def _compare(self) -> float:
        """Returns the pause before the next comparison."""
        self._refresh()
        alone = bool(self._checkpoint.problem)
        if not self._node.pods.synced or not (self._node.usage.entries or alone):
            return _AGAIN_SECONDS
        try:
            reported = await list_ids(self._socket, self._resources)
        except PodResourcesError as error:
            if str(error) != self._problem:
                self._problem = str(error)
                log.warning("kubelet's podresources API on %s does not answer, the checkpoint is not compared: %s", self._socket, error)
            return _ALONE_SECONDS if alone else INTERVAL_SECONDS
        self._problem = ""
        self._refresh()
        if self._checkpoint.problem:
            self._use(reported)
            return _ALONE_SECONDS
        self._log_twice(frozenset(twice(self._node.usage.entries, self._node.pods)))
        found = frozenset(differences(self._node.usage.entries, reported, self._node.pods))
        self._log(found & self._seen)
        self._seen = found
        return _AGAIN_SECONDS if found - self._logged else INTERVAL_SECONDS

    def _use(self, reported: Reported) -> None:
        usage = self._node.usage
        entries = entries_of(reported, self._node.pods, usage.entries)
        if set(entries) != set(usage.entries):
            log.info("kubelet's podresources API lists ids of %d containers, while its checkpoint cannot be read", len(entries))
            self._node.recorder.set_checkpoint(entries)

    def _log_twice(self, found: frozenset[tuple[str, str, str]]) -> None:
        for resource, pod, other in sorted(found - self._twice):
            self._counters.checkpoint_mismatches += 1
            log.error(
                "kubelet's checkpoint has the same ids of %s for pods %s and %s: delete the one created later",
                resource,
                pod,
                other,
                extra=about(pod),
            )
        self._twice = found

    def _log(self, lasting: frozenset[Difference]) -> None:
        """lasting: found twice in a row."""
        for difference in lasting - self._logged:
            self._counters.checkpoint_mismatches += 1
            log.error(
                "kubelet's checkpoint and its podresources API differ: %s. This plugin uses the checkpoint: "
                "delete the pod, and restart kubelet if it happens again",
                difference,
                extra=about(difference.pod),
            )
        self._logged = lasting
