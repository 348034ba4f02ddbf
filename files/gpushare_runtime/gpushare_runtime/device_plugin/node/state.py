# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The parts of this node's state, wired together. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from gpushare_runtime.core import protocol
from gpushare_runtime.daemon.log_line import about
from gpushare_runtime.device_plugin.node.allocator import Allocator
from gpushare_runtime.device_plugin.node.container_start import ContainerStarts
from gpushare_runtime.device_plugin.node.devices import Devices
from gpushare_runtime.device_plugin.node.id_recorder import UsageRecorder
from gpushare_runtime.device_plugin.node.id_usage import Processes, Usage
from gpushare_runtime.device_plugin.node.known_limits import KnownLimits
from gpushare_runtime.device_plugin.node.local_pods import PodTable
from gpushare_runtime.device_plugin.node.preferred_ids import Candidates
from gpushare_runtime.device_plugin.node.rejections import Rejections
from gpushare_runtime.device_plugin.node.requesting_container import PendingContainers
from gpushare_runtime.device_plugin.node.turns import Turns


@dataclass(frozen=True)
class Told:
    """The troubles of GPUs that Events have told of.

    bad: GPU UUID → why it was unusable. gone: (UID of the pod's object at the API server, GPU UUID) of GPUs that were not in the node.
    """

    bad: Mapping[str, str] = field(default_factory=dict)
    gone: frozenset[tuple[str, str]] = frozenset()


class NodeState:
    """The state of the node that its parts share, for one event loop only. changes: see PodTable.

    clock: monotonic seconds. now: Unix time. processes: of this host. strategy: of protocol.STRATEGIES.
    """

    def __init__(
        self,
        pods: PodTable,
        clock: Callable[[], float],
        now: Callable[[], float],
        processes: Processes,
        strategy: str = protocol.STRATEGY_ENVIRONMENT,
    ) -> None:
        self.pods = pods
        self.changes = pods.changes
        self.limits = KnownLimits(pods.changes)
        self.unasked = frozenset((protocol.RESOURCE_MEMORY, protocol.RESOURCE_GPUS))
        """The resources with which kubelet may start containers without asking the plugin, because it has lost a record. Until this
        process has registered, kubelet goes by the registration of the one before."""
        self.turns = Turns(clock)
        self.usage = Usage(pods, clock)
        self.recorder = UsageRecorder(self.usage, processes.containers)
        self.devices = Devices(self.usage, strategy)
        self.told = Told()
        self.pending = PendingContainers(pods, self.usage, processes)
        self.candidates = Candidates(pods, self.devices, self.usage, self.pending, processes)
        self.rejections = Rejections(clock, now, self.devices.users_key, self.changes)
        self.starts = ContainerStarts(pods, self.devices, self.usage, self.recorder, processes)
        self.allocator = Allocator(
            self.devices, self.usage, self.recorder, self.pending, self.candidates, self.rejections, self.starts, processes
        )

    def about(self, uid: str, gpu: str) -> dict[str, dict[str, str]]:
        """The keys of a log line about a pod and a GPU. gpu: UUID."""
        known = self.devices.by_uuid.get(gpu)
        return about(self.usage.name(uid), gpu=known.index if known else gpu)

    def set_asked(self, resource: str, asked: bool) -> None:
        """Take whether kubelet asks the plugin before each start of a container with this resource."""
        self.unasked = self.unasked - {resource} if asked else self.unasked | {resource}
