# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Keeps each pod's use of a GPU within its units: the driver limits the memory of the pod's control group (r615 and newer).

kubelet creates a pod's control group before any container, and asks before each start of a container. So the limit is there before the
first process, no container can lift it, and all containers of the pod share it. The limit ends with the control group. A kubelet that
has lost a record does not ask (see kubelet/server.py): then the limit is set as soon as the group is seen. Pods that started before
the driver could limit the GPU are told from later ones at the first comparison with the API server's list. Later processes read that
from the state file, so they need no API server for it.

The programs of a container see that limit by container_limits.py.

Only the hard limit is set. A soft limit would add to `dmem.min` of all groups above, and the driver lowers those only if a process
resets the limit before kubelet removes the group (NVIDIA, MPS v3 Memory Partitioning, "Ancestor reservation propagation"). Without
a hard limit above the GPU's memory no pod needs the guarantee that a soft limit gives.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, NoReturn, Protocol

from gpushare_runtime.core import protocol
from gpushare_runtime.core.inventory import HEALTHY
from gpushare_runtime.core.unit_ids import gpu_of_unit
from gpushare_runtime.daemon.inotify import FolderWatch
from gpushare_runtime.daemon.log_line import about
from gpushare_runtime.daemon.runner import FatalError, Status
from gpushare_runtime.daemon.sync import any_after, in_thread
from gpushare_runtime.device_plugin.gpu.container_limits import ContainerLimits
from gpushare_runtime.device_plugin.gpu.discovery import MemoryLimit, Nvml, NvmlError
from gpushare_runtime.device_plugin.gpu.dmem import enable_dmem
from gpushare_runtime.device_plugin.node.rejections import DELETE_POD, RETRIES, AllocationRejected
from gpushare_runtime.device_plugin.node.state import NodeState

log = logging.getLogger(__name__)

AUTO: Final = "auto"
DRIVER: Final = protocol.ISOLATION_DRIVER
MPS: Final = protocol.ISOLATION_MPS
WATCH: Final = protocol.ISOLATION_WATCH
NONE: Final = protocol.ISOLATION_NONE
_BY_DRIVER: Final = (AUTO, DRIVER)

INTERVAL_SECONDS: Final = 60.0
# Until the GPUs are known, and until the pods that started before are.
_UNKNOWN_SECONDS: Final = 1.0
# Between the control group of a pod and its first container's process is the start of its sandbox, which takes longer.
UNASKED_SECONDS: Final = 0.2
# kubelet waits 30 s for an answer before it starts a container.
_START_SECONDS: Final = 20.0
_STATUS: Final = "memory limits"
_NO_GROUP: Final = "this process sees no control group of pods"


class Groups(Protocol):
    """The control groups of this host. All may block."""

    def groups_of(self, uid: str) -> Sequence[str]:
        """The folders of this pod's control groups; none if it has none, or if this process cannot see them."""

    def group_of_pods(self) -> str | None:
        """The folder above those of all pods; None if this process cannot see it."""

    def groups_in(self, group: str) -> Sequence[str]:
        """The folders directly below a pod's: those of its containers. Their number is bounded."""


def limits_due(node: NodeState, uid: str) -> dict[str, int]:
    """GPU UUID → bytes that the pod may use there. Whole GPUs have no limit."""
    inventory = node.devices.inventory
    if inventory is None:
        return {}
    return {gpu: count * inventory.unit.mib * 1024 * 1024 for gpu, count in node.usage.memory_of(uid).items()}


class PodLimits:
    """The limits of all pods of this node. It is used from one event loop only.

    mode: one of ISOLATIONS in `settings`. running: also limit pods that already run without a limit, because they started before this was
    possible.
    """

    def __init__(self, node: NodeState, driver: Nvml, groups: Groups, status: Status, mode: str = AUTO, *, running: bool = False) -> None:
        self.use: Mapping[tuple[str, str], MemoryLimit] = {}
        """(pod UID, GPU UUID) → limit and use at the last comparison."""
        self.corrections = 0
        self._node = node
        self._driver = driver
        self._groups = groups
        self._containers = ContainerLimits(driver, groups.groups_in, self._pci)
        self._status = status
        self._mode = mode
        self._running = running
        self._able: dict[str, str] = {}
        # GPUs whose reason in `_able` may be gone in a moment.
        self._passing: set[str] = set()
        self._unlimited: set[tuple[str, str]] = set()
        # Whether a comparison knew all pods. Some may have started while no plugin ran, and kubelet asked no plugin.
        self._compared = False
        # Bytes of the limits that this process has set or found last.
        self._most: dict[tuple[str, str], int] = {}
        # Pod UID → the version of its ids that its limits follow.
        self._followed: dict[str, int] = {}

    @property
    def active(self) -> bool:
        """Whether the driver limits every usable GPU of this node, so far as that is known."""
        gpus = [gpu for gpu in self._node.devices.gpus if gpu.health == HEALTHY]
        return self._mode in _BY_DRIVER and bool(gpus) and all(self._able.get(gpu.uuid) == "" for gpu in gpus)

    async def before_start(self, resource: str, ids: Sequence[str]) -> None:
        """Limit the pod of these ids, of which a container is about to start. It raises AllocationRejected if it would start without its
        limit."""
        if self._mode == MPS:
            # The GPU is usable only while its control daemon answers, and its environment has the limit.
            self._reject_driver_only(resource, ids)
            return
        if resource != protocol.RESOURCE_MEMORY:
            return
        gpus = sorted({gpu_of_unit(i) for i in ids})
        # kubelet makes the group of all pods before it asks for anything, and the plugin may have read earlier.
        await self._probe([gpu for gpu in gpus if gpu not in self._able or gpu in self._passing])
        uids = {uid for uid, _, _ in self._node.usage.containers_with(resource, frozenset(ids)) if not self._node.usage.released(uid)}
        unable = next((self._able[gpu] for gpu in gpus if self._able[gpu]), "")
        for uid in uids if unable else ():
            self._reject_without(uid, unable)
        failing = next((self._able[gpu] for gpu in gpus if gpu in self._passing & self._node.limits.gpus), _NO_GROUP)
        if failing != _NO_GROUP:
            raise AllocationRejected(
                f"{resource}: the memory limit of a container with {len(ids)} ids cannot be set ({failing}); {RETRIES}", "limit"
            )
        if all(self._able[gpu] for gpu in gpus):
            return
        if len(uids) != 1:
            raise AllocationRejected(
                f"{resource}: the memory limit of a container with {len(ids)} ids cannot be set, because kubelet's checkpoint lists "
                f"{'no pod' if not uids else f'{len(uids)} pods'} with them; {RETRIES}",
                "limit",
            )
        (uid,) = uids
        due = {gpu: most for gpu, most in limits_due(self._node, uid).items() if not self._able.get(gpu, "unknown")}
        try:
            await asyncio.wait_for(in_thread(partial(self._set, uid, due)), _START_SECONDS)
        except (NvmlError, OSError, asyncio.TimeoutError) as error:
            why = str(error) or f"the driver did not answer within {_START_SECONDS:.0f} s"
            raise AllocationRejected(
                f"{resource}: the memory limit of {self._node.usage.pod_name(uid)} could not be set ({why}); {RETRIES}", "limit"
            ) from None
        self._node.limits.add({(uid, gpu) for gpu in due})

    def _reject_driver_only(self, resource: str, ids: Sequence[str]) -> None:
        for uid, _, _ in self._node.usage.containers_with(resource, frozenset(ids)):
            if self._required(uid) == DRIVER and not self._node.usage.released(uid):
                self._reject_without(uid, f"--isolation {MPS}")

    def _required(self, uid: str) -> str:
        pod = self._node.pods.get(uid)
        return pod.request.rules.isolation if pod is not None and pod.request is not None else ""

    def _reject_without(self, uid: str, why: str) -> None:
        required = self._required(uid)
        if required:
            limits = "this node's driver does not limit it" if required == DRIVER else "this node does not use MPS"
            raise AllocationRejected(
                f"{self._node.usage.pod_name(uid)} requires {protocol.ASK_ISOLATION}: {required}, and {limits} ({why}); {DELETE_POD}",
                "isolation",
            )

    async def run(self) -> NoReturn:
        """Check every minute, and when there is a GPU to ask for. FatalError where the mode requires limits and the driver has none."""
        changes = self._node.changes
        async with FolderWatch() as watch:
            while True:
                await self.check()
                checked = time.monotonic()
                # The publication of the GPUs waits for the first answer.
                devices = self._node.devices
                while (left := checked + self.interval - time.monotonic()) > 0 and (devices.isolation or devices.inventory is None):
                    seen, made = changes.count, watch.changes.count
                    await self.follow()
                    await self._containers.follow(watch, time.monotonic())
                    # Most nodes have no GPU that the driver limits, so nothing to check between two checks.
                    seconds = min(left, UNASKED_SECONDS) if self._node.limits.gpus else left
                    await any_after((changes, seen), (watch.changes, made), timeout=seconds)

    @property
    def interval(self) -> float:
        """Seconds until the next check."""
        gpus = {gpu.uuid for gpu in self._node.devices.gpus if gpu.health == HEALTHY}
        asked = bool(self._able) and gpus <= self._able.keys() - self._passing
        able = {gpu for gpu, why in self._able.items() if not why}
        known = asked and able <= self._node.limits.gpus and (self._compared or not able)
        return INTERVAL_SECONDS if known or self._mode not in _BY_DRIVER else _UNKNOWN_SECONDS

    async def check(self) -> None:
        """Find out what the driver limits, and compare the limits of all pods. FatalError as `run`."""
        if self._mode not in _BY_DRIVER:
            self._node.devices.set_isolation(self._mode)
            self._node.limits.set_gpus(set(), set())
        elif self._node.devices.inventory is not None:
            await self._probe([gpu.uuid for gpu in self._node.devices.gpus if gpu.health == HEALTHY])
            self._node.devices.set_isolation(DRIVER if self.active else WATCH)
            await self._compare()

    async def follow(self) -> None:
        """Limits follow what their pods have. Where kubelet starts containers without asking, also limit the pods that it has admitted,
        as soon as they have a control group."""
        asked, usage = protocol.RESOURCE_MEMORY not in self._node.unasked, self._node.usage
        before, self._followed = self._followed, {}
        for uid in {uid for uid, _, resource in usage.snapshot() if resource == protocol.RESOURCE_MEMORY}:
            version = usage.version(uid)
            if asked and before.get(uid) == version:
                self._followed[uid] = version
                continue
            due = {gpu: most for gpu, most in limits_due(self._node, uid).items() if self._lacks(uid, gpu, most, asked=asked)}
            # The next comparison reports what fails again.
            with contextlib.suppress(NvmlError, OSError):
                if due:
                    await in_thread(partial(self._set, uid, due))
                    self._node.limits.add({(uid, gpu) for gpu in due})
                self._followed[uid] = version

    def _lacks(self, uid: str, gpu: str, most: int, *, asked: bool) -> bool:
        """Whether this limit must be set, so far as it is known without the driver. asked: kubelet asks before each start."""
        if gpu not in self._node.limits.gpus or self._able.get(gpu) != "":
            return False
        if (uid, gpu) in self._node.limits.pods:
            # Until the first check, which sets it, a limit of the process before counts as right. Later one that no check has found is of
            # a GPU that the pod had before, and has again.
            return self._most.get((uid, gpu), 0 if self._compared else most) != most
        return not asked and (uid, gpu) not in self._node.limits.exempt

    async def _probe(self, gpus: Sequence[str]) -> None:
        """Find out for which GPUs the driver has limits. A limit that it has, it has until this process ends; else it is asked again."""
        for gpu in gpus:
            if self._mode not in _BY_DRIVER:
                self._able[gpu] = f"--isolation {self._mode}"
            elif self._able.get(gpu) != "":
                self._able[gpu], passing = await in_thread(partial(self._why_not, gpu))
                self._passing = self._passing | {gpu} if passing else self._passing - {gpu}
                if self._able[gpu] and not passing:
                    # Pods start without a limit there, until the driver can limit it again.
                    self._node.limits.set_gpus(self._node.limits.gpus - {gpu}, self._node.limits.exempt)
        lacking = {why for why in self._able.values() if why}
        if self._mode == DRIVER and lacking:
            raise FatalError(
                f"--isolation {DRIVER} requires that the driver limits memory by control group, and here it does not: {min(lacking)}. "
                "Install driver 620 (long-term) or 615 on a host with cgroup v2, or set --isolation auto (gpushare_isolation)"
            )
        if not self._able:
            return
        limited = {uid for uid, gpu in self._node.limits.pods if self._able.get(gpu)}
        if limited:
            words = f"the driver limits new pods no more, and {len(limited)} pods may have lost their limits: {min(lacking)}"
            self._status.degraded(_STATUS, f"{words}; run site.yml if the driver or its unit has changed")
        else:
            self._status.ok(_STATUS, "the driver limits each pod" if not lacking else f"the driver does not limit pods: {min(lacking)}")

    def _why_not(self, gpu: str) -> tuple[str, bool]:
        """Why this GPU's memory cannot be limited by control group, "" if it can; and whether that may be over in a moment. Blocks."""
        group = self._groups.group_of_pods()
        if group is None:
            return _NO_GROUP, True
        try:
            enable_dmem(group)
            # No other program limits the group of all pods: setting no limit changes nothing, and needs all that setting one needs.
            self._driver.limit_memory(gpu, group, None)
            self._driver.memory_limit(gpu, group)
        except NvmlError as error:
            return str(error), not error.unable
        except OSError as error:
            return str(error), True
        return "", False

    def _set(self, uid: str, due: Mapping[str, int]) -> None:
        groups = self._groups.groups_of(uid)
        if not groups:
            raise NvmlError("the pod has no control group that this process sees")
        for group in groups:
            enable_dmem(group)
            for gpu, most in due.items():
                self._driver.limit_memory(gpu, group, most)
                found = self._driver.memory_limit(gpu, group).most
                if found != most:
                    raise NvmlError(f"the driver has a limit of {found} bytes after one of {most} was set on GPU {gpu}")
                self._most[uid, gpu] = most
            self._containers.took(group, due)

    async def _compare(self) -> None:
        uids = {uid for uid, _, resource in self._node.usage.snapshot() if resource == protocol.RESOURCE_MEMORY}
        due = {uid: {gpu: most for gpu, most in limits_due(self._node, uid).items() if self._able.get(gpu) == ""} for uid in uids}
        self.use, wrong = await in_thread(partial(self._read, due))
        self._most = {key: found.most for key, found in self.use.items() if found.most is not None}
        # The limits that a process before this one has set, before they were stored.
        self._node.limits.add({key for key, found in self.use.items() if found.most is not None})
        limited = self._node.limits.pods
        seen_by_nobody = not self._compared and protocol.RESOURCE_MEMORY not in self._node.unasked
        due_now = {(uid, gpu) for uid in uids for gpu in self._node.limits.gpus} - self._node.limits.exempt if seen_by_nobody else set()
        missing = {
            key for key, found in wrong.items() if found is None and key not in limited and (key in due_now or self._has_started(key[0]))
        }
        # A container that starts later is due, also if kubelet has not asked.
        exempt = self._node.limits.exempt | {key for key in missing - self._later_than_a_limited() if key[1] not in self._node.limits.gpus}
        unlimited = set() if self._running else missing & exempt
        for uid, gpu in sorted(unlimited - self._unlimited):
            log.warning(
                "%s runs without a memory limit on GPU %s: it started before",
                self._node.usage.pod_name(uid),
                gpu,
                extra=self._node.about(uid, gpu),
            )
        self._unlimited = unlimited
        for (uid, gpu), found in wrong.items():
            if found is None and ((uid, gpu) in unlimited or (uid, gpu) not in missing | limited):
                continue
            # Its containers may have ended meanwhile, or all its units are in use somewhere else by now: the next comparison shows it.
            try:
                await in_thread(partial(self._set, uid, {gpu: due[uid][gpu]}))
            except (NvmlError, OSError) as error:
                log.error(
                    "the memory limit of %s on GPU %s could not be set: %s",
                    self._node.usage.pod_name(uid),
                    gpu,
                    error,
                    extra=self._node.about(uid, gpu),
                )
            else:
                self.corrections += 1
                self._node.limits.add({(uid, gpu)})
                log.warning(
                    "set the memory limit of %s on GPU %s: found %s bytes",
                    self._node.usage.pod_name(uid),
                    gpu,
                    found,
                    extra=self._node.about(uid, gpu),
                )
        if self._node.pods.synced:
            self._compared = True
            # Just after a start kubelet's checkpoint may not have been read.
            gone = {key for key in limited | exempt if key[0] not in uids and self._node.pods.get(key[0]) is None}
            self._node.limits.remove(gone)
            self._node.limits.set_gpus(self._node.limits.gpus | {gpu for gpu, why in self._able.items() if not why}, exempt - gone)

    def _later_than_a_limited(self) -> set[tuple[str, str]]:
        """UID and GPU of the pods that came after a pod with its limit there: they started when the driver could limit them as well.

        The state file says it too, unless it is lost.
        """
        first: dict[str, str] = {}
        for (uid, gpu), found in self.use.items():
            pod = self._node.pods.get(uid)
            if pod is not None and pod.created and found.most is not None:
                first[gpu] = min(first.get(gpu, pod.created), pod.created)
        return {(uid, gpu) for uid, gpu in self.use if gpu in first and (pod := self._node.pods.get(uid)) and pod.created >= first[gpu]}

    def _has_started(self, uid: str) -> bool:
        """Whether the API server reports that a container of the pod has started."""
        pod = self._node.pods.get(uid)
        return pod is not None and any(pod.container_ids.values())

    def _read(self, due: Mapping[str, Mapping[str, int]]) -> tuple[dict[tuple[str, str], MemoryLimit], dict[tuple[str, str], int | None]]:
        """The limits that the driver has, and where they are not as due. A pod without control groups has no process to limit."""
        use: dict[tuple[str, str], MemoryLimit] = {}
        wrong: dict[tuple[str, str], int | None] = {}
        for uid, gpus in due.items():
            for group in self._groups.groups_of(uid):
                right: dict[str, int] = {}
                for gpu, most in gpus.items():
                    try:
                        found = self._driver.memory_limit(gpu, group)
                    except NvmlError as error:
                        log.warning("the memory limit of %s on GPU %s is unknown: %s", uid, gpu, error, extra=about(gpu=gpu))
                        continue
                    use[uid, gpu] = found
                    if found.most == most:
                        right[gpu] = most
                    else:
                        wrong[uid, gpu] = found.most
                self._containers.took(group, right)
        return use, wrong

    def _pci(self, gpu: str) -> str:
        known = self._node.devices.by_uuid.get(gpu)
        return known.pci if known else ""

    @property
    def unlimited(self) -> int:
        """How many pods run without their limit, because they started before there was one."""
        return len({uid for uid, _ in self._unlimited})
