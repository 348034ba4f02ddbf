# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Which pods get which limit: at a start, although kubelet does not ask, over the ends of processes and of the API server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpushare_runtime.core import protocol
from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.core.quantity import GIB, UNITS
from gpushare_runtime.daemon.runner import FatalError, Status
from gpushare_runtime.device_plugin.gpu import pod_limits
from gpushare_runtime.device_plugin.gpu.discovery import MemoryLimit, NvmlError
from gpushare_runtime.device_plugin.gpu.dmem import enable_dmem
from gpushare_runtime.device_plugin.gpu.pod_limits import INTERVAL_SECONDS, UNASKED_SECONDS, PodLimits
from gpushare_runtime.device_plugin.host.usage_file import StateFile
from gpushare_runtime.device_plugin.node.ids import CheckpointEntry
from gpushare_runtime.device_plugin.node.local_pods import PodTable, parse_local_pod
from gpushare_runtime.device_plugin.node.rejections import AllocationRejected
from gpushare_runtime.device_plugin.node.state import NodeState
from unit.fakes.runtime.device_plugin.fake_nvml import FakeNvml
from unit.fakes.runtime.device_plugin.fake_processes import FakeProcesses
from unit.fakes.runtime.device_plugin.local_pods import memory
from unit.fakes.runtime.device_plugin.plugin import FakeHost
from unit.fakes.runtime.pods import gpu
from unit.golden import Golden

MEMORY = "aliyun.com/gpu-mem"
BYTES = 1024**3


class Machine:
    """One node: the driver, the control groups, kubelet's checkpoint and the pods of the API server. `process` is the plugin that runs."""

    def __init__(self, path: Path) -> None:
        self.path = path / "held.json"
        self.nvml, self.host = FakeNvml(16 * 1024, 16 * 1024), FakeHost(path)
        self.nvml.unlimited = None
        self.gpus = Inventory(GIB, tuple(gpu(index, 16, uuid=of.uuid) for index, of in enumerate(self.nvml.gpus)))
        self.given: dict[str, dict[int, int]] = {}
        self.started: set[str] = set()
        self.boot = "one"
        self.start()

    def start(self, mode: str = "auto", *, seen: bool = False, running: bool = False) -> None:
        """The next process, which reads what the one before has stored. seen: it reaches the API server."""
        self.node = NodeState(PodTable(), lambda: 0.0, lambda: 0.0, FakeProcesses())
        self.file = StateFile(self.path, self.node, lambda: self.boot)
        self.file.load()
        self.node.devices.set_inventory(self.gpus)
        self.status = Status(required=[])
        self.limits = PodLimits(self.node, self.nvml, self.host, self.status, mode, running=running)
        self.give({})
        if seen:
            self.see()

    def give(self, given: dict[str, dict[int, int]]) -> None:
        """kubelet's checkpoint lists these as well: pod → GPU index → units."""
        self.given |= given
        entries = []
        for uid, units in self.given.items():
            entries.append(CheckpointEntry(uid, "main", MEMORY, frozenset(self.ids(units))))
        self.node.recorder.set_checkpoint(tuple(entries))

    def ids(self, units: dict[int, int]) -> list[str]:
        """The first units of each GPU."""
        return [f"{self.nvml.gpus[index].uuid}-_-{slot}" for index, count in units.items() for slot in range(count)]

    def asks(self, uid: str, resource: str = MEMORY) -> None:
        """kubelet asks whether it may start the container of this pod."""
        asyncio.run(self.limits.before_start(resource, self.ids(self.given[uid])))

    def run(self, *uids: str, **given: dict[int, int]) -> None:
        """These pods have their control groups, and their containers start. given: those that kubelet's checkpoint has from now on."""
        if given:
            self.give(given)
        self.host.pods |= {*uids, *given}
        self.started |= {*uids, *given}

    def see(self, **changes: Any) -> None:
        """The API server lists all pods, with these changes of them, and knows which have started."""
        pods = []
        for uid, units in self.given.items():
            [(index, count)] = list(units.items())[:1]
            pod = memory(self.gpus, index, count, uid=uid, name=uid, **changes)
            if uid in self.started:
                status = {"name": pod["spec"]["containers"][0]["name"], "state": {"running": {}}, "containerID": "containerd://1"}
                pod["status"] = {"phase": "Running", "containerStatuses": [status]}
            pods.append(parse_local_pod(pod))
        self.node.pods.replace(pods)

    def look(self, *, check: bool = False) -> dict[str, dict[int, int]]:
        """What the plugin does between two checks, or a check; then pod → GPU index → units of its limits."""
        asyncio.run(self.limits.check() if check else self.limits.follow())
        self.file._write(self.file._render(self.gpus))
        return self.limited()

    def limited(self) -> dict[str, dict[int, int]]:
        """Pod → GPU index → units of its limits in the driver."""
        index = {of.uuid: number for number, of in enumerate(self.nvml.gpus)}
        found: dict[str, dict[int, int]] = {}
        for (uuid, group), most in self.nvml.limits.items():
            found.setdefault(group.rpartition("/pod")[2], {})[index[uuid]] = most // BYTES
        return found


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def settled(machine: Machine, *before: str) -> None:
    """A first process that has seen the pods that started before, and limits all others."""
    machine.give({uid: {0: 2} for uid in before})
    machine.run(*before)
    machine.see()
    assert machine.look(check=True) == {}
    assert machine.limits.unlimited == len(before)


def messages(caplog: pytest.LogCaptureFixture) -> Iterable[str]:
    return [record.getMessage() for record in caplog.records if "started before" in record.getMessage()]


def test_a_process_that_starts_without_the_api_server_limits_who_starts_then(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    settled(machine)
    machine.start()
    assert machine.look(check=True) == {}
    machine.run(new={0: 3})
    assert machine.look() == {"new": {0: 3}}
    machine.run(later={1: 4})
    machine.see()
    # As long as nothing looked, the check must not take it for a pod of before.
    assert machine.look(check=True) == {"new": {0: 3}, "later": {1: 4}}
    assert machine.limits.unlimited == 0
    assert not messages(caplog)


def test_pods_of_before_stay_without_a_limit_over_the_ends_of_processes(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    settled(machine, "old")
    for seen in (False, True, False):
        machine.start(seen=seen)
        assert machine.look(check=True) == {}
        assert machine.look() == {}
    machine.see()
    assert machine.look(check=True) == {}
    assert machine.limits.unlimited == 1
    assert len(list(messages(caplog))) == 3, "once for each process that knows its name"


def test_no_pod_has_started_before_a_reboot(machine: Machine) -> None:
    settled(machine, "old")
    machine.boot = "two"
    machine.start()
    assert machine.look(check=True) == {}
    assert machine.look() == {"old": {0: 2}}


def test_until_a_first_process_knows_the_pods_of_before_it_checks_often(machine: Machine) -> None:
    machine.run(old={0: 2})
    assert machine.look(check=True) == machine.look() == {}
    assert machine.limits.interval <= 1
    machine.see()
    assert machine.look(check=True) == {}
    assert machine.limits.interval == INTERVAL_SECONDS
    machine.run(new={0: 3})
    assert machine.look() == {"new": {0: 3}}


def test_where_the_driver_has_no_limits_it_is_asked_once_a_minute(machine: Machine) -> None:
    machine.nvml.unlimited = NvmlError("the driver has no such call", unable=True)
    assert machine.look(check=True) == {}
    assert machine.limits.interval == INTERVAL_SECONDS


@pytest.mark.parametrize("how", ["driver", "mode"])
def test_who_starts_while_nothing_limits_is_a_pod_of_before(machine: Machine, how: str) -> None:
    settled(machine)
    machine.nvml.unlimited = NvmlError("the driver has no such call", unable=True) if how == "driver" else None
    machine.start("auto" if how == "driver" else "watch", seen=True)
    machine.run(old={0: 2})
    machine.see()
    assert machine.look(check=True) == machine.look() == {}
    machine.nvml.unlimited = None
    machine.start(seen=True)
    assert machine.look(check=True) == machine.look() == {}
    assert machine.limits.unlimited == 1


def test_a_host_whose_control_groups_are_not_there_yet_limits_as_before(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """kubelet makes the group above all pods some time after a boot."""
    settled(machine)
    machine.start()
    with monkeypatch.context() as patch:
        patch.setattr(machine.host, "group_of_pods", lambda: None)
        machine.look(check=True)
    machine.run(new={0: 3})
    assert machine.look(check=True) == {}
    assert machine.look() == {"new": {0: 3}}


def test_a_limit_follows_the_units_of_its_pod_at_once(machine: Machine) -> None:
    """kubelet asks anew for a pod whose record it lost, and gives it other ids, more or fewer of a GPU than it had."""
    settled(machine)
    machine.run(pod={0: 2})
    assert machine.look() == {"pod": {0: 2}}
    for units in (5, 3):
        machine.give({"pod": {0: units}})
        assert machine.look() == {"pod": {0: units}}
    machine.start()
    assert machine.look(check=True) == {"pod": {0: 3}}
    machine.give({"pod": {1: 4}})
    assert machine.look()["pod"][1] == 4
    machine.give({"pod": {0: 4}})
    assert machine.look()["pod"][0] == 4
    # Where kubelet asks before each start, between two starts as well; a pod without a limit is limited only then.
    machine.node.set_asked(protocol.RESOURCE_MEMORY, True)
    machine.give({"pod": {0: 3}, "other": {0: 1}})
    machine.run("other")
    assert machine.look() == {"pod": {0: 3, 1: 4}}


def test_a_pod_that_comes_back_to_a_gpu_has_not_the_limit_that_it_had_there(machine: Machine) -> None:
    settled(machine)
    machine.run(pod={0: 1})
    machine.look()
    machine.give({"pod": {1: 1}})
    machine.look(check=True)
    machine.give({"pod": {0: 2}})
    assert machine.look()["pod"][0] == 2


def test_a_limit_that_is_right_is_not_set_again(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    settled(machine)
    machine.run(pod={0: 2})
    machine.look()
    monkeypatch.setattr(machine.nvml, "limit_memory", None)
    assert machine.look() == {"pod": {0: 2}}


def test_that_a_pod_with_a_limit_has_gone_is_stored_whatever_else_happens(machine: Machine) -> None:
    settled(machine)
    machine.run(pod={0: 2})
    machine.see()
    machine.look(check=True)
    del machine.given["pod"]
    machine.give({})
    machine.see()
    machine.node.recorder.release_terminated(lambda uids: set())
    before = machine.node.changes.count
    machine.look(check=True)
    assert machine.node.limits.pods == set()
    assert machine.node.changes.count == before + 1
    machine.look(check=True)
    assert machine.node.changes.count == before + 1


def limits_only(machine: Machine, monkeypatch: pytest.MonkeyPatch, able: set[int]) -> None:
    """The driver limits the memory of these GPUs only, by index."""
    limit, uuids = machine.nvml.limit_memory, {machine.nvml.gpus[index].uuid for index in able}

    def only(uuid: str, group: str, most: int | None) -> None:
        if uuid not in uuids:
            raise NvmlError("not this GPU", unable=True)
        limit(uuid, group, most)

    monkeypatch.setattr(machine.nvml, "limit_memory", only)


def test_a_start_limits_the_pod_on_each_of_its_gpus(machine: Machine) -> None:
    machine.give({"pod": {0: 2, 1: 3}})
    machine.host.pods.add("pod")
    before = machine.node.changes.count
    machine.asks("pod", "aliyun.com/gpu-count")
    assert machine.limited() == {}, "whole GPUs have none"
    machine.asks("pod")
    assert machine.limited() == {"pod": {0: 2, 1: 3}}
    assert machine.node.limits.pods == {("pod", of.uuid) for of in machine.nvml.gpus}
    assert machine.node.changes.count > before


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("ignored", "the driver has a limit of None bytes after one of 2147483648 was set"),
        ("failure", "out of handles"),
        ("group", "the pod has no control group that this process sees"),
    ],
)
def test_a_pod_whose_limit_cannot_be_set_does_not_start(machine: Machine, fault: str, words: str) -> None:
    settled(machine)
    machine.give({"pod": {0: 2}})
    machine.host.pods |= {"pod"} if fault != "group" else set()
    machine.nvml.ignored = fault == "ignored"
    machine.nvml.unlimited = NvmlError("out of handles") if fault == "failure" else None
    with pytest.raises(AllocationRejected) as rejected:
        machine.asks("pod")
    assert words in str(rejected.value)
    assert machine.node.limits.pods == set()


@pytest.mark.parametrize(("pods", "words"), [((), "lists no pod with them"), (("a", "b"), "lists 2 pods with them")])
def test_without_one_owner_of_its_ids_a_container_does_not_start(machine: Machine, pods: tuple[str, ...], words: str) -> None:
    settled(machine)
    machine.give({uid: {0: 2} for uid in pods})
    machine.host.pods |= set(pods)
    with pytest.raises(AllocationRejected) as rejected:
        asyncio.run(machine.limits.before_start(MEMORY, machine.ids({0: 2})))
    assert words in str(rejected.value)
    assert machine.limited() == {}


@pytest.mark.parametrize(
    ("mode", "able", "required", "words"),
    [
        ("auto", True, "driver", ""),
        ("auto", False, "", ""),
        ("auto", False, "driver", "this node's driver does not limit it (the driver has no such call)"),
        ("auto", False, "mps", "this node does not use MPS (the driver has no such call)"),
        ("none", True, "driver", "this node's driver does not limit it (--isolation none)"),
        ("watch", True, "", ""),
        ("mps", True, "", ""),
        ("mps", True, "mps", ""),
        ("mps", True, "driver", "this node's driver does not limit it (--isolation mps)"),
    ],
)
def test_a_pod_starts_only_where_what_it_requires_limits_it(machine: Machine, mode: str, able: bool, required: str, words: str) -> None:
    machine.start(mode)
    machine.nvml.unlimited = None if able else NvmlError("the driver has no such call", unable=True)
    machine.give({"pod": {0: 2}})
    machine.host.pods.add("pod")
    machine.see(annotations={"gpushare.request/isolation": required} if required else {})
    if words:
        with pytest.raises(AllocationRejected) as rejected:
            machine.asks("pod")
        assert words in str(rejected.value)
    else:
        machine.asks("pod")
    assert machine.limited() == ({"pod": {0: 2}} if mode == "auto" and able else {})


@pytest.mark.parametrize(
    ("mode", "able", "lost", "isolation"),
    [
        ("auto", {0, 1}, set(), "driver"),
        ("driver", {0, 1}, set(), "driver"),
        # A GPU that does not answer says nothing of the driver.
        ("auto", {0}, {1}, "driver"),
        ("auto", {0}, set(), "watch"),
        ("auto", set(), set(), "watch"),
        ("auto", {0, 1}, {0, 1}, "watch"),
        ("watch", {0, 1}, set(), "watch"),
        ("none", {0, 1}, set(), "none"),
        ("mps", {0, 1}, set(), "mps"),
    ],
)
def test_the_node_says_what_keeps_pods_to_their_units(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, mode: str, able: set[int], lost: set[int], isolation: str
) -> None:
    limits_only(machine, monkeypatch, able)
    gpus = tuple(replace(of, health="XID 79") if index in lost else of for index, of in enumerate(machine.gpus.gpus))
    machine.gpus = replace(machine.gpus, gpus=gpus)
    machine.start(mode, seen=True)
    assert not machine.limits.active
    machine.look(check=True)
    assert machine.limits.active is (isolation == "driver")
    assert machine.node.devices.inventory is not None
    assert machine.node.devices.inventory.isolation == isolation
    words = "the driver limits each pod" if isolation == "driver" else "the driver does not limit pods: not this GPU"
    assert (words in machine.status.report()[1]) == (mode in ("auto", "driver") and lost != {0, 1})
    assert (machine.limits.interval == INTERVAL_SECONDS) == (lost != {0, 1})


def test_a_driver_that_sets_limits_and_does_not_tell_them_limits_nothing(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def limit(uuid: str, group: str) -> MemoryLimit:
        raise NvmlError("no right to read")

    monkeypatch.setattr(machine.nvml, "memory_limit", limit)
    machine.look(check=True)
    assert not machine.limits.active


def test_until_the_gpus_are_known_nothing_is_limited(machine: Machine) -> None:
    machine.run(pod={0: 2})
    machine.node.devices.inventory = None
    assert machine.look(check=True) == machine.look() == {}
    assert machine.limits.interval <= 1


def test_of_two_gpus_that_is_limited_which_the_driver_limits(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    limits_only(machine, monkeypatch, {0})
    machine.give({"pod": {0: 2, 1: 3}})
    machine.host.pods.add("pod")
    machine.asks("pod")
    assert machine.limited() == {"pod": {0: 2}}
    machine.nvml.limits.clear()
    assert machine.look(check=True) == {"pod": {0: 2}}


def test_a_gpu_that_does_not_tell_its_limits_keeps_none_from_another(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    settled(machine)
    machine.run(pod={0: 2, 1: 3})
    machine.look()
    machine.nvml.limits.clear()
    tell = machine.nvml.memory_limit

    def only_second(uuid: str, group: str) -> MemoryLimit:
        if uuid == machine.nvml.gpus[0].uuid:
            raise NvmlError("fallen off the bus")
        return tell(uuid, group)

    monkeypatch.setattr(machine.nvml, "memory_limit", only_second)
    assert machine.look(check=True) == {"pod": {1: 3}}
    assert "fallen off the bus" in caplog.text


def test_a_pod_that_has_not_started_is_none_of_before(machine: Machine) -> None:
    """Its image may have to come first."""
    machine.give({"pod": {0: 2}})
    machine.host.pods.add("pod")
    machine.see()
    machine.node.set_asked(protocol.RESOURCE_MEMORY, True)
    assert machine.look(check=True) == {}
    machine.started.add("pod")
    machine.see()
    assert machine.look(check=True) == {"pod": {0: 2}}
    assert machine.limits.unlimited == 0


def test_a_limit_that_was_set_and_not_stored_is_known_by_the_driver(machine: Machine) -> None:
    settled(machine)
    machine.run(pod={0: 2})
    machine.look()
    machine.path.unlink()
    machine.start(seen=True)
    machine.look(check=True)
    assert machine.node.limits.pods == {("pod", machine.nvml.gpus[0].uuid)}


def test_without_its_file_it_limits_who_came_after_the_first_pod_with_a_limit(machine: Machine) -> None:
    settled(machine)
    machine.run(first={0: 2}, last={0: 2})
    machine.look()
    machine.path.unlink()
    machine.start()
    machine.run(before={0: 1}, beside={0: 1}, between={0: 1})
    machine.see()
    created = {"before": "2026-01-01", "first": "2026-01-02", "beside": "2026-01-02", "between": "2026-01-03", "last": "2026-01-04"}
    machine.node.pods.replace([replace(pod, created=f"{created[pod.uid]}T00:00:00Z") for pod in machine.node.pods])
    assert machine.look(check=True).keys() == created.keys() - {"before"}


def test_a_pod_keeps_its_place_among_the_limited_while_kubelet_or_the_api_server_knows_it(machine: Machine) -> None:
    settled(machine)
    machine.run(pod={0: 2})
    machine.look()
    limited = {("pod", machine.nvml.gpus[0].uuid)}
    machine.node.pods.replace([])
    machine.look(check=True)
    assert machine.node.limits.pods == limited, "kubelet's record has it"
    # Just after a start that may not have been read.
    stored = ("stored", machine.nvml.gpus[0].uuid)
    machine.node.limits.add({stored})
    machine.node.pods.replace([parse_local_pod(memory(machine.gpus, 0, 2, uid="stored"))])
    machine.look(check=True)
    assert machine.node.limits.pods == limited | {stored}
    machine.node.pods.replace([])
    machine.look(check=True)
    assert machine.node.limits.pods == limited


def test_the_kernel_counts_in_the_groups_of_limited_pods(machine: Machine) -> None:
    root = machine.host.root
    (root / "kubepods/podpod").mkdir(parents=True)
    for place in (root, root / "kubepods", root / "kubepods/podpod"):
        (place / "cgroup.controllers").write_text("cpu dmem\n")
        (place / "cgroup.subtree_control").write_text("cpu\n")
    machine.look(check=True)
    assert [(place / "cgroup.subtree_control").read_text() for place in (root, root / "kubepods")] == ["+dmem", "cpu\n"]
    machine.give({"pod": {0: 2}})
    machine.host.pods.add("pod")
    machine.asks("pod")
    assert (root / "kubepods/cgroup.subtree_control").read_text() == "+dmem"


@pytest.mark.parametrize("mode", ["auto", "watch"])
def test_it_looks_for_pods_between_two_checks_where_the_driver_limits_gpus(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    machine.start(mode)
    done: list[str] = []
    sleeps: list[float] = []
    now = 0.0

    async def after(*_: object, timeout: float) -> None:
        nonlocal now
        sleeps.append(timeout)
        now += timeout
        if done.count("check") > 2:
            raise asyncio.CancelledError

    def noted(name: str) -> None:
        does = getattr(machine.limits, name)

        async def note() -> None:
            done.append(name)
            await does()

        monkeypatch.setattr(machine.limits, name, note)

    machine.see()
    noted("check")
    noted("follow")
    monkeypatch.setattr(pod_limits, "any_after", after)
    monkeypatch.setattr(pod_limits, "time", SimpleNamespace(monotonic=lambda: now))
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(machine.limits.run())
    looks = round(INTERVAL_SECONDS / UNASKED_SECONDS) if mode == "auto" else 1
    of_one = done[1 : done.index("check", 1)]
    assert set(of_one) == {"follow"}
    assert abs(len(of_one) - looks) <= 1
    assert max(sleeps) == (UNASKED_SECONDS if mode == "auto" else INTERVAL_SECONDS)


def test_a_plugin_that_needs_the_drivers_limits_ends_without_them(machine: Machine, golden: Golden) -> None:
    machine.start("driver")
    machine.nvml.unlimited = NvmlError("the driver has no such call", unable=True)
    with golden.raised(FatalError):
        machine.look(check=True)


def test_a_limit_that_somebody_has_changed_is_set_again_and_counted(machine: Machine) -> None:
    settled(machine)
    machine.run(pod={0: 2})
    machine.see()
    machine.look()
    for found in (1, None):
        [key] = machine.nvml.limits
        machine.nvml.limit_memory(*key, found)
        before = machine.limits.corrections
        assert machine.look(check=True) == {"pod": {0: 2}}
        assert machine.limits.corrections == before + 1
        assert machine.limits.use["pod", key[0]].most == found
    machine.look(check=True)
    assert machine.limits.corrections == 2
    assert machine.limits.use["pod", key[0]].most == 2 * BYTES


def test_pods_of_before_are_limited_where_the_administrator_wants_it(machine: Machine) -> None:
    settled(machine, "old")
    machine.start(running=True, seen=True)
    assert machine.look(check=True) == {"old": {0: 2}}
    assert machine.limits.unlimited == 0


def test_until_a_process_has_registered_it_limits_what_kubelet_starts_as_the_one_before_told_it(machine: Machine) -> None:
    settled(machine)
    machine.start(seen=True)
    machine.look(check=True)
    machine.run(pod={0: 2})
    assert machine.look() == {"pod": {0: 2}}


def test_while_kubelet_asks_nothing_is_limited_between_two_checks(machine: Machine) -> None:
    settled(machine)
    machine.node.set_asked(protocol.RESOURCE_MEMORY, True)
    machine.run(pod={0: 2})
    assert machine.look() == {}


def test_a_driver_that_limits_no_more_is_reported_while_pods_have_limits(machine: Machine, golden: Golden) -> None:
    settled(machine)
    golden(machine.status.report()[1])
    machine.run(pod={0: 2})
    machine.look()
    machine.nvml.unlimited = NvmlError("the driver has no such call", unable=True)
    machine.start(seen=True)
    machine.look(check=True)
    ready, text = machine.status.report()
    assert (ready, "1 pods may have lost their limits" in text) == (False, True)


def test_limits_are_in_the_units_of_the_node(machine: Machine) -> None:
    machine.gpus = replace(machine.gpus, unit=UNITS["256MiB"])
    machine.start()
    machine.give({"pod": {0: 4}})
    machine.host.pods.add("pod")
    machine.asks("pod")
    assert set(machine.nvml.limits.values()) == {4 * 256 * 1024 * 1024}


def test_the_kernels_controller_counts_in_a_group_when_all_above_let_it(tmp_path: Path) -> None:
    """Neither kubelet nor systemd does it. A folder without the controller is left as it is."""

    def group_at(folder: Path, controllers: str, children: str) -> None:
        folder.mkdir()
        (folder / "cgroup.controllers").write_text(controllers)
        (folder / "cgroup.subtree_control").write_text(children)

    root = tmp_path / "fs"
    places: Sequence[Path] = (root, root / "kubepods", root / "kubepods/pod1")
    for place in places:
        group_at(place, "cpu memory dmem", "cpu memory")
    enable_dmem(str(places[-1]))
    assert [(place / "cgroup.subtree_control").read_text() for place in places] == ["+dmem", "+dmem", "cpu memory"]
    for place in places:
        (place / "cgroup.controllers").write_text("cpu memory\n")
        (place / "cgroup.subtree_control").write_text("cpu memory\n")
    enable_dmem(str(places[-1]))
    assert [(place / "cgroup.subtree_control").read_text() for place in places] == ["cpu memory\n"] * 3


def test_a_container_that_starts_before_the_plugin_has_looked_for_groups_again_is_limited(machine: Machine) -> None:
    """At a boot the plugin is quicker than kubelet, which has made the group of all pods when it asks."""
    group = machine.host.group_of_pods
    machine.host.group_of_pods = lambda: None  # type: ignore[method-assign]
    machine.look(check=True)
    assert machine.limits.interval <= 1
    machine.host.group_of_pods = group  # type: ignore[method-assign]
    machine.run(pod={0: 2})
    machine.asks("pod")
    assert machine.limited() == {"pod": {0: 2}}


def test_an_error_that_passes_does_not_let_pods_start_without_their_limit(machine: Machine, golden: Golden) -> None:
    settled(machine)
    machine.nvml.unlimited = NvmlError("the driver is busy")
    machine.start(seen=True)
    machine.run(pod={0: 2})
    machine.look(check=True)
    assert machine.limits.interval <= 1
    with golden.raised(AllocationRejected, "limit"):
        machine.asks("pod")
    machine.see()
    machine.look(check=True)
    machine.nvml.unlimited = None
    machine.asks("pod")
    assert machine.limited() == {"pod": {0: 2}}
    assert machine.limits.unlimited == 0


def test_a_gpu_that_comes_back_is_asked_for_at_once(machine: Machine) -> None:
    settled(machine)
    gpus = machine.gpus
    machine.gpus = replace(gpus, gpus=(replace(gpus.gpus[0], health="lost"), gpus.gpus[1]))
    machine.start(seen=True)
    machine.look(check=True)
    assert machine.limits.interval == INTERVAL_SECONDS
    machine.node.devices.set_inventory(gpus)
    assert machine.limits.interval <= 1


def test_who_started_while_no_plugin_ran_is_limited_before_the_api_server_says_that_it_started(machine: Machine) -> None:
    settled(machine)
    machine.run(pod={0: 2})
    machine.start()
    machine.node.set_asked(protocol.RESOURCE_MEMORY, True)
    assert machine.look(check=True) == {"pod": {0: 2}}
    assert machine.limits.interval <= 1
