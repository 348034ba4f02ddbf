# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""gpushare-device-plugin: the GPUs of this node for kubelet, by memory and whole. Wiring only."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import time
from collections.abc import Callable, Iterator, Sequence, Set
from functools import partial
from pathlib import Path
from typing import Final, NoReturn, Protocol

from gpushare_runtime.core import protocol
from gpushare_runtime.core.mps import ENDING_NAME
from gpushare_runtime.daemon import exposition, health_server, metrics_server
from gpushare_runtime.daemon.inotify import DirectoryWatch
from gpushare_runtime.daemon.runner import Signals, Status, keep_alive, run, run_all
from gpushare_runtime.device_plugin import dra_backend
from gpushare_runtime.device_plugin.dra_backend import DraBackend
from gpushare_runtime.device_plugin.gpu import pod_limits
from gpushare_runtime.device_plugin.gpu.discovery import INTERVAL_SECONDS, GpuPoller, GpuReader, Nvml
from gpushare_runtime.device_plugin.gpu.health import GpuHealth
from gpushare_runtime.device_plugin.gpu.pod_limits import Groups, PodLimits
from gpushare_runtime.device_plugin.gpu.pod_memory import MemoryWatch
from gpushare_runtime.device_plugin.gpu.use import Identities
from gpushare_runtime.device_plugin.gpu.xid_events import XidListener
from gpushare_runtime.device_plugin.host import usage_file
from gpushare_runtime.device_plugin.host.cdi_poller import CdiPoller
from gpushare_runtime.device_plugin.host.cdi_specs import SpecFolders
from gpushare_runtime.device_plugin.host.mps_endings import EndingClients, PodProcesses
from gpushare_runtime.device_plugin.host.mps_states import MpsStates
from gpushare_runtime.device_plugin.host.own_spec import HostFiles, OwnSpec
from gpushare_runtime.device_plugin.host.pod_processes import HostProcesses
from gpushare_runtime.device_plugin.host.usage_file import StateFile
from gpushare_runtime.device_plugin.kubelet.checkpoint import CheckpointFile, CheckpointReader, changed_unit
from gpushare_runtime.device_plugin.kubelet.podresources import CrossCheck, KubeletIds
from gpushare_runtime.device_plugin.kubelet.registration import Registration
from gpushare_runtime.device_plugin.kubelet.server import SOCKETS, ResourceService
from gpushare_runtime.device_plugin.metrics import families
from gpushare_runtime.device_plugin.node.counters import Counters
from gpushare_runtime.device_plugin.node.id_usage import Processes
from gpushare_runtime.device_plugin.node.local_pods import LocalPod, PodTable, parse_local_pod, unreadable_local_pod
from gpushare_runtime.device_plugin.node.state import NodeState
from gpushare_runtime.device_plugin.node.strategy import changed_isolation, changed_strategy, left_limits, no_instances
from gpushare_runtime.device_plugin.options import NAME, PluginSettings, parse_arguments
from gpushare_runtime.device_plugin.publish.eviction_requests import EvictionRequests
from gpushare_runtime.device_plugin.publish.gpu_events import GpuEvents
from gpushare_runtime.device_plugin.publish.node_annotations import NodePublisher
from gpushare_runtime.device_plugin.publish.pod_annotations import Assigner
from gpushare_runtime.device_plugin.publish.unhealthy_configmap import UnhealthyMap
from gpushare_runtime.device_plugin.publish.use_reports import UseReports
from gpushare_runtime.device_plugin.wait_for_node import prepared
from gpushare_runtime.kube.client import KubeClient, path
from gpushare_runtime.kube.events import EventRecorder, ObjectReference
from gpushare_runtime.kube.reflector import Reflector
from gpushare_runtime.kube.service_account import TokenFiles, TokenRenewer, connect
from gpushare_runtime.settings.device_plugin import DRA, EVICT, NODE

log = logging.getLogger(__name__)

# The API server sends a bookmark about every minute.
_API_SILENCE_SECONDS: Final = 150.0
# The first list takes less; a longer absence is worth a status.
_API_FIRST_SECONDS: Final = 3.0
# systemd starts kubelet after this daemon has started. It shall find the ids of running pods, and come up also where a driver hangs.
START_SECONDS: Final = 20.0
# kubelet starts an ended container at once the first time, then after a pause that it doubles.
CONTAINER_ENDING_SECONDS: Final = 10.0


class GroupsAndIdentities(Groups, Identities, PodProcesses, Protocol):
    """The questions that the plugin asks about this host's control groups and processes."""


class DevicePlugin:
    """The whole plugin; its dependencies are arguments."""

    def __init__(
        self,
        settings: PluginSettings,
        nvml: Nvml,
        client: KubeClient,
        renewer: TokenRenewer | None = None,  # None if the client's credentials need none
        *,
        gpu_interval: float = INTERVAL_SECONDS,  # between two readings of the GPUs
        check_scale: float = 1.0,  # factor of the pauses between two comparisons with podresources
        processes: Processes | None = None,  # None for those of this host
        host: GroupsAndIdentities | None = None,  # its control groups and processes; None for those of this host
    ) -> None:
        self._client = client
        self._renewer = renewer
        self._settings = settings
        self._processes = processes or HostProcesses(root=settings.cgroup_root)
        self._check_scale = check_scale
        self.status = Status(required=dra_backend.REQUIRED if settings.backend == DRA else SOCKETS)
        self.counters = Counters()
        pods = PodTable(lambda: self._pods.last_contact)
        self.node = NodeState(pods, time.monotonic, time.time, self._processes, settings.strategy)
        self._pods: Reflector[LocalPod] = Reflector(
            client,
            path("api/v1", "pods"),
            on_replace=self.node.pods.replace,
            on_event=self.node.pods.event,
            field_selector=f"spec.nodeName={settings.node}",
            transform=parse_local_pod,
            unreadable=unreadable_local_pod,
        )
        self._directory = settings.device_plugins_dir
        self._checkpoint = CheckpointFile(self._directory / protocol.KUBELET_CHECKPOINT, SOCKETS)
        self._dra = self._dra_backend() if settings.backend == DRA else None
        self._reader = CheckpointReader(self._dra.record if self._dra else self._checkpoint, self.node, self._processes)
        self._state = StateFile(settings.state / usage_file.NAME, self.node)
        self._state.load()
        self.node.devices.node_kind = settings.node_kind
        if settings.cdi_dir and self._state.gpus and self._state.gpus.cdi_kind == protocol.CDI_KIND_OWN:
            self.node.devices.cdi_kind = protocol.CDI_KIND_OWN
        health = GpuHealth(settings.health_checks)
        self._gpus = GpuPoller(
            GpuReader(nvml, settings.unit, health, self._state.gpus, no_instances(settings.strategy, settings.isolation)),
            self.node,
            self.status,
            gpu_interval,
            self._unusable_settings,
            CONTAINER_ENDING_SECONDS if settings.in_container else 0.0,
        )
        host = host or HostProcesses(root=settings.cgroup_root)
        if settings.isolation == pod_limits.MPS:
            # From the first reading of the GPUs on: no id is healthy before its control daemon answers.
            self.node.devices.set_isolation(protocol.ISOLATION_MPS)
        self._limits = PodLimits(self.node, nvml, host, self.status, settings.isolation, running=settings.limit_running_pods)
        self._mps = MpsStates(self.node, self.status, settings.mps_folder) if settings.isolation == pod_limits.MPS else None
        self._endings = EndingClients(self.node, host, settings.state / ENDING_NAME)
        self._events = EventRecorder(client, NAME, settings.node)
        watched = settings.isolation != pod_limits.NONE
        exceeded, by_claim = self._report_exceeded if watched else None, settings.backend == DRA
        self._memory = MemoryWatch(self.node, nvml, host, exceeded, by_claim=by_claim)
        self._xids = XidListener(nvml, health, self.counters.xids, self._gpus.read_now)

    def _unusable_settings(self) -> str | None:
        """Why pods exclude the unit, the strategy or the isolation; "" if they do not, None if only the API server can tell."""
        used = self.node.usage.snapshot()
        uids = {uid for uid, _, resource in used if resource == protocol.RESOURCE_MEMORY}
        why = changed_unit(self._settings.unit, self._state.unit, uids, self._still_count)
        if not why and self._state.unit not in ("", self._settings.unit.name) and uids & self._recorded() and not self.node.pods.synced:
            return None
        every = {uid for uid, _, _ in used}
        why = why or changed_strategy(self.node.devices.strategy, self._state.strategy, every, self._processes.pods)
        why = why or changed_isolation(self._settings.isolation, self._state.isolation, every, self._processes.pods)
        return why or left_limits(self._settings.isolation, {uid for uid, _ in self.node.limits.pods}, self._processes.pods)

    def _keep_strategy(self) -> None:
        """A strategy that was chosen by what is seen of the node is not worth the pods that have GPUs by another."""
        uids = {uid for uid, _, _ in self.node.usage.snapshot()}
        if changed_strategy(self._settings.strategy, self._state.strategy, uids, self._processes.pods):
            log.warning("device strategy %s as long as pods have GPUs by it, then %s", self._state.strategy, self._settings.strategy)
            self.node.devices.strategy = self._state.strategy

    def _still_count(self, uids: Set[str]) -> Set[str]:
        """The pods of these that have a process, or will have: after a boot kubelet starts them again with the ids of its record."""
        known = ((uid, self.node.pods.get(uid)) for uid in uids & self._recorded())
        return {uid for uid, pod in known if pod is not None and pod.active}.union(self._processes.pods(uids))

    def _recorded(self) -> Set[str]:
        """The pods in kubelet's record."""
        return {entry.pod for entry in self.node.usage.entries}

    def _dra_backend(self) -> DraBackend:
        settings = self._settings
        cdi_dir = settings.cdi_dir or Path(settings.cdi_folders[-1])
        registry = settings.kubelet_root / protocol.KUBELET_REGISTRATIONS
        before_start, evicts = self._before_start, settings.unhealthy == EVICT
        folders = settings.state, cdi_dir, registry
        return DraBackend(
            self._client,
            settings.node,
            self.node,
            self.status,
            folders,
            before_start,
            unit=settings.unit,
            evicts=evicts,
            alive=self._processes.pods,
        )

    async def run(self, stop: asyncio.Event | None = None) -> None:
        """Run until `stop` is set, this is cancelled, or a part fails; then it raises that part's exception."""
        publisher = NodePublisher(self.node, self._client, self._settings.node)
        reports = GpuEvents(self.node, self._events, self._settings.node)
        unhealthy = UnhealthyMap(self.node, self._client, self._settings.node)
        assigner = Assigner(self.node, self._client, self.counters, self._events, self._settings.node, time.time_ns)
        settings = self._settings
        evictions = EvictionRequests(
            self.node, publisher, self._memory, settings.overuse, settings.overuse_grace, unstartable=settings.unstartable
        )
        uses = UseReports(self.node, publisher, self._memory, enabled=settings.publish_use == NODE)
        published = (publisher, assigner, evictions)
        socket = self._settings.kubelet_root / protocol.KUBELET_POD_RESOURCES
        cross_check = CrossCheck(self.node, self._checkpoint, self._reader.refresh, socket, SOCKETS, self.counters, self._check_scale)
        async with DirectoryWatch(self._directory) as watch:
            self._reader.start()
            if self._settings.choose:
                self._keep_strategy()
            specs = self._cdi(self._events)
            if specs:
                specs.start()
            asyncio.get_running_loop().call_later(START_SECONDS, self.status.wait_no_longer)
            ids = KubeletIds(socket, self._check_scale)
            if self._dra:
                serving, beside = await self._dra.start()
            else:
                makers = {resource: self._service_maker(resource) for resource in SOCKETS}
                serving = [Registration(resource, makers[resource], self.node, watch, self.status, ids).run() for resource in SOCKETS]
                beside = [unhealthy.run(), cross_check.run(), ids.run(), *(part.run() for part in published)]
            await run_all(
                serving,
                stop,
                # The responses to kubelet's last requests need these.
                base=[
                    self._gpus.run(),
                    self._xids.run(),
                    self._limits.run(),
                    self._memory.run(),
                    self._state.run(),
                    *([specs.run()] if specs else []),
                    *([self._mps.run(), self._endings.run()] if self._mps else []),
                    self._reader.run(watch),
                    *beside,
                    uses.run(),
                    self._pods.run(),
                    publisher.reflector().run(),
                    reports.run(),
                    self._events.run(),
                    self._report_api(),
                    *([self._renewer.run(self._client, partial(self.status.set, "token"))] if self._renewer else []),
                    *metrics_server.parts(
                        self._settings.metrics_listen, self._settings.metrics_token_file, self.metrics_text, self.status.report
                    ),
                    *health_server.parts(self._settings.health_listen, self.status.readiness),
                    keep_alive(lambda: self.status.ready),
                ],
            )

    def _report_exceeded(self, pod: LocalPod, text: str) -> None:
        about = ObjectReference("Pod", pod.name, pod.uid, pod.namespace)
        self._events.emit(about, "Warning", protocol.EVENT_EXCEEDED, text)

    def _cdi(self, events: EventRecorder) -> CdiPoller | None:
        """The task that follows the CDI specs; None with another strategy."""
        settings = self._settings
        if self.node.devices.strategy != protocol.STRATEGY_CDI:
            return None
        # kubelet's own Events on its node have the name as UID as well.
        node = ObjectReference("Node", settings.node, settings.node)
        report = partial(events.emit, node, "Warning", protocol.EVENT_CDI)
        folders = SpecFolders(settings.cdi_folders, in_container=settings.in_container)
        own = None
        if settings.cdi_dir and settings.host_root:
            settings.state.mkdir(mode=0o700, parents=True, exist_ok=True)
            own = OwnSpec(settings.cdi_dir / protocol.CDI_FILE, HostFiles(settings.host_root, settings.driver_root), settings.state)
        return CdiPoller(folders, self.node, self.status, report, own)

    def metrics_text(self) -> Iterator[str]:
        """The response to a scrape."""
        healthy, expires = self.status.report()[0], self._renewer.expires if self._renewer else None
        claims = len(self._dra.claims.by_uid) if self._dra else None
        values = families(self.node, self.counters, self._limits, self._memory, healthy=healthy, token_expires=expires, claims=claims)
        return exposition.render(values)

    def _service_maker(self, resource: str) -> Callable[[], ResourceService]:
        dev = self._settings.dev_root
        return lambda: ResourceService(resource, self.node, self._reader.refresh, self.counters, self._before_start, dev)

    async def _before_start(self, resource: str, ids: Sequence[str]) -> None:
        await self._limits.before_start(resource, ids)
        if self._mps:
            await self._mps.before_start(resource, ids)

    async def _report_api(self) -> NoReturn:
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(self._pods.synced.wait(), _API_FIRST_SECONDS)
        while True:
            contact = self._pods.last_contact
            if not self.node.pods.synced:
                why = f" ({self._pods.trouble})" if self._pods.trouble else ""
                self.status.degraded("API server", f"not reached yet{why}; until then containers get a GPU without the scheduler's plan")
            elif contact is None or time.monotonic() - contact > _API_SILENCE_SECONDS:
                self.status.degraded("API server", "silent for minutes; until it answers, new pods may get another GPU than planned")
            else:
                self.status.ok("API server", "watching the pods of this node")
            await asyncio.sleep(1.0)


async def serve(settings: PluginSettings, nvml: Nvml, signals: Signals) -> None:
    """Run the plugin until SIGTERM or SIGINT. FatalError if it cannot start or continue."""
    for note in settings.notes:
        log.warning("%s", note)
    async with connect(settings.kubeconfig, TokenFiles.of(settings), NAME) as (client, renewer):
        known = await prepared(settings, client, signals.stop)
        if known is not None:
            await DevicePlugin(known, nvml, client, renewer).run(signals.stop)


def main(argv: Sequence[str] | None = None, nvml: Nvml | None = None) -> int:
    """The console command. Returns the exit status. nvml: None for the installed one."""
    settings = parse_arguments(argv)
    if nvml is None:
        # It is imported here, so that tests of everything else do not need pynvml.
        from gpushare_runtime.device_plugin.gpu.nvml import Pynvml

        files = HostFiles(settings.host_root, settings.driver_root) if settings.host_root else None
        nvml = Pynvml(
            in_container=settings.in_container,
            library=lambda: (found[1] if (found := files.library()) else None) if files else None,
            host_dev=settings.dev_root if settings.in_container else None,
        )
    return run(partial(serve, settings, nvml), settings.log_level, node=settings.node)


if __name__ == "__main__":
    sys.exit(main())
