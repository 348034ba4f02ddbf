# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Pods come and go, plugin and kubelet restart, and no container ever runs without its pod's limit in the simulated driver.

GPUSHARE_FULL=1: 11 worlds instead of 5.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import uuid
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.core.quantity import GIB
from gpushare_runtime.daemon.runner import Status
from gpushare_runtime.device_plugin.gpu import pod_limits
from gpushare_runtime.device_plugin.gpu.discovery import MemoryLimit, Nvml, NvmlError
from gpushare_runtime.device_plugin.gpu.pod_limits import PodLimits
from gpushare_runtime.device_plugin.host.pod_processes import HostProcesses
from gpushare_runtime.device_plugin.node.allocator import AllocationRejected
from gpushare_runtime.device_plugin.node.ids import gpu_of_unit
from unit.lab.nvml.child import Child
from unit.runtime.device_plugin.churn import Churn, Pod
from unit.runtime.device_plugin.device_manager import StartError
from unit.runtime.device_plugin.matching import Ours
from unit.runtime.pods import gpu as inventory_gpu

SIZES = (16, 16, 24, 8, 16, 16)
# In 401 a GPU is taken from an init container, in 425 a pod gets more units of a GPU, in 438 a plugin starts without the API server;
# each time kubelet does not ask.
SEEDS, STEPS = (*range(8 if os.environ.get("GPUSHARE_FULL") == "1" else 2), 401, 425, 438), 400
# Virtual seconds between two comparisons of the plugin; on a node it is a minute, longer than most pods live here.
COMPARES = 5.0
UNIT_BYTES = 1024**3
MEMORY = "aliyun.com/gpu-mem"


class Driver:
    """The simulated library, by the plugin's own code in a process of its own."""

    def __init__(self, machine: Any) -> None:
        self._child = Child(machine)

    def limit_memory(self, uuid: str, group: str, most: int | None) -> None:
        self._ask(f"limit {uuid} {group} {json.dumps(most)}")

    def memory_limit(self, uuid: str, group: str) -> MemoryLimit:
        return MemoryLimit(*self._ask(f"limited {uuid} {group}"))

    def _ask(self, request: str) -> Any:
        found = self._child(request)
        if isinstance(found, dict):
            raise NvmlError(found["error"])
        return found


class Limiting(Ours):
    """Ours with its limits: the process that a kill leaves behind has stored what this one had at its last look."""

    def __init__(self, world: LimitedChurn, state: Any) -> None:
        super().__init__(world, state)
        self.world = world
        for known, stored in zip(self.known, world.stored, strict=True):
            known |= stored
        self.limits = PodLimits(self.node, world.driver, world.host, Status(required=[]), "driver")
        self._check_at = 0.0

    @property
    def known(self) -> tuple[set[Any], ...]:
        """What the plugin stores about limits."""
        return self.node.limited, self.node.limited_gpus, self.node.exempt

    def start(self, resource: str, ids: list[str]) -> None:
        self.world.maybe_kill()
        super().start(resource, ids)
        self.world.maybe_kill()
        self.limit(resource, ids)
        self.world.maybe_kill()

    def limit(self, resource: str, ids: list[str]) -> None:
        try:
            self.world.loop.run_until_complete(self.limits.before_start(resource, ids))
        except AllocationRejected as rejection:
            raise StartError(str(rejection)) from None

    def settle(self) -> None:
        super().settle()
        self.node.unasked = set() if self.world.asks else {MEMORY}
        self.world.loop.run_until_complete(self.limits.follow())
        if self.world.clock >= self._check_at:
            self.world.loop.run_until_complete(self.limits.check())
            self._check_at = self.world.clock + min(COMPARES, self.limits.interval)
        self.world.stored = tuple(map(set, self.known))


class LimitedChurn(Churn):
    """kubelet makes a pod's control group before it asks for a start, and removes it after the pod's last process.

    groups: the folder above all; driver, host: what each plugin is given; kills: of the plugin while kubelet waits for its answer;
    limited: pods whose containers ran with the limit of their units; wrong: what a container ran with instead; given: the GPUs that
    kubelet ever gave to each pod. Of one that it took away with a lost record the limit stays, and no container has its device.
    unrecorded: pods of which kubelet has lost its record.
    """

    def __init__(self, gpus: Inventory, make: Callable[[Any, Any], Any], seed: int, machine: Any, driver: Nvml) -> None:
        self.machine = machine
        self.driver = driver
        self.host = HostProcesses(machine.root / "proc", lambda folder: 0)
        self.loop = asyncio.new_event_loop()
        self.groups: Path = machine.groups / "kubepods"
        self.stored: tuple[set[Any], ...] = (set(), set(), set())
        self.kills = 0
        self.limited: set[str] = set()
        self.wrong: list[str] = []
        self.given: dict[str, set[int]] = {}
        self.unrecorded: set[str] = set()
        super().__init__(gpus, make, seed)

    @property
    def asks(self) -> bool:
        """Whether kubelet asks before it starts a container with memory."""
        return self._asked_before.get(MEMORY, True)

    def maybe_kill(self) -> None:
        """kill -9, and the next process serves before kubelet asks again."""
        if self._restarts and self.random.random() < 0.03:
            self.kills += 1
            self.restart_plugin()
            raise StartError("the connection was closed")

    def create(self) -> None:
        known = len(self._waiting)
        super().create()
        for made in self._waiting[known:]:
            made["metadata"]["uid"] = str(uuid.UUID(int=self.random.getrandbits(128)))

    def _start(self, pod: Pod) -> None:
        group = self.groups / f"pod{pod.uid}"
        if not group.exists():
            group.mkdir()
            (group / "cgroup.controllers").write_text("cpu memory\n")
        super()._start(pod)

    def _end_processes(self) -> None:
        super()._end_processes()
        for group in self.groups.glob("pod*"):
            if group.name.removeprefix("pod") not in self.processes:
                shutil.rmtree(group)

    def in_force(self) -> dict[str, Counter[int]]:
        """Name of each group that exists and has a limit → GPU → units, by the driver's own record."""
        index = {gpu.uuid: gpu.index for gpu in self.gpus.gpus}
        found: dict[str, Counter[int]] = {}
        for line in (self.machine.root / "limits").read_text().splitlines():
            gpu, inode, soft, hard, group = line.split(" ", 4)
            if Path(group).exists() and Path(group).stat().st_ino == int(inode):
                assert (int(soft), int(hard) % UNIT_BYTES) == (0, 0), line
                found.setdefault(Path(group).name, Counter())[index[gpu]] = int(hard) // UNIT_BYTES
        return found

    def _check_gpus(self) -> None:
        super()._check_gpus()
        known = self.in_force()
        for uid, containers in self.manager.given.items():
            ids = {i for of in containers.values() for i in of.get(MEMORY, ())}
            self.given.setdefault(uid, set()).update(self.gpus.by_uuid[gpu_of_unit(i)].index for i in ids)
        strangers = known.keys() - {f"pod{uid}" for uid in self.processes}
        self.wrong += [f"a limit of {name}" for name in strangers]
        for pod in self.processes.values():
            has = known.get(f"pod{pod.uid}", Counter())
            if not pod.up:
                continue
            due, full = self._due(pod)
            never = has.keys() - self.given.get(pod.uid, set())
            if not never and full and all(has[index] == units for index, units in due.items()):
                self.limited.add(pod.uid)
            elif never or any(has[index] < units for index, units in due.items()) or (full and not self._moved(pod)):
                self.wrong.append(f"{pod.object['metadata']['name']}: {dict(has)} instead of {dict(due)}")

    def restart_kubelet(self, *, lost: bool) -> None:
        self.unrecorded |= set(self.processes) if lost else set()
        super().restart_kubelet(lost=lost)

    def _moved(self, pod: Pod) -> bool:
        """kubelet has lost its record, and asks anew for what an init container had. It keeps these ids beside those of the others,
        also on another GPU, and what the init container had before is free for other pods."""
        return pod.uid in self.unrecorded and any(not of.keeps for of in pod.request.containers)

    def _due(self, pod: Pod) -> tuple[Counter[int], bool]:
        """GPU → units of the containers that run; whether these are all: one that starts again may get another GPU. kubelet keeps
        an init container's units as well."""
        due: Counter[int] = Counter()
        if pod.request.whole_gpus:
            return due, True
        for name in pod.up:
            due.update(pod.devices[name])
        full = pod.up == {c.name for c in pod.request.containers if c.keeps}
        if full and not self._moved(pod) and pod.request.units > due.total():
            ((index, units),) = due.items()
            due[index] += pod.request.units - units
        return due, full

    def emptied(self) -> None:
        """All pods are deleted, and their processes end."""
        self.quiet()
        for pod in list(self.api.values()):
            self.delete(pod, force=False)
        for _ in range(400):
            self.clock += 0.1
            self._end_processes()
        self.loop.close()


@pytest.fixture
def ready(machine: Any, gpu: Any, monkeypatch: pytest.MonkeyPatch) -> Callable[..., LimitedChurn]:
    """Makes a world on the machine, whose driver limits."""
    # All but the library's answers is in virtual time: a busy machine must not make a start fail.
    monkeypatch.setattr(pod_limits, "_START_SECONDS", 600.0)
    present = [gpu(index, memory_mib=size * 1024) for index, size in enumerate(SIZES)]
    machine.write(*present)
    machine.command("limits", "misc")
    (machine.root / "proc/self").mkdir(parents=True)
    mounted = f"30 20 0:26 / {machine.groups} rw,nosuid - cgroup2 cgroup2 rw\n"
    (machine.root / "proc/self/mountinfo").write_text(mounted)
    (machine.groups / "kubepods").mkdir(parents=True)
    (machine.groups / "kubepods/cgroup.controllers").write_text("cpu memory\n")
    gpus = Inventory(GIB, tuple(inventory_gpu(index, size, uuid=present[index].uuid) for index, size in enumerate(SIZES)))
    driver: Any = Driver(machine)

    def made(make: Callable[[Any, Any], Any], seed: int) -> LimitedChurn:
        return LimitedChurn(gpus, make, seed, machine, driver)

    return made


def test_every_container_runs_with_the_limit_of_its_pod_and_no_group_is_left(
    ready: Callable[..., LimitedChurn], caplog: pytest.LogCaptureFixture
) -> None:
    placed = kills = limited = 0
    for seed in SEEDS:
        world = ready(Limiting, seed)
        for _ in range(STEPS):
            world.step()
        world.emptied()
        assert world.wrong == [], (seed, len(world.wrong), world.wrong[:5])
        assert (world.in_force(), list(world.groups.glob("pod*"))) == ({}, [])
        assert world.counts.over_steps == 0
        assert "without a memory limit" not in caplog.text
        placed, kills, limited = placed + world.counts.placed, kills + world.kills, limited + len(world.limited)
    # As 11 worlds have at least, a part for each world.
    assert placed * 11 >= 1000 * len(SEEDS)
    assert limited * 11 >= 700 * len(SEEDS)
    assert kills * 11 >= 50 * len(SEEDS)


class Unlimited(Limiting):
    """Without the limit before a start: the minute's comparison is all that sets one."""

    def limit(self, resource: str, ids: list[str]) -> None: ...


def test_the_check_notices_a_plugin_that_does_not_limit_before_a_start(ready: Callable[..., LimitedChurn]) -> None:
    world = ready(Unlimited, 0)
    for _ in range(STEPS // 4):
        world.step()
    world.emptied()
    assert world.wrong
