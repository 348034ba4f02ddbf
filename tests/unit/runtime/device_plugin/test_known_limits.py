# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Which pods get a limit although kubelet does not ask, over the ends of the plugin's processes and of the API server."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from pathlib import Path

import pytest

from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.core.quantity import GIB
from gpushare_runtime.daemon.runner import Status
from gpushare_runtime.device_plugin.gpu.discovery import NvmlError
from gpushare_runtime.device_plugin.gpu.pod_limits import INTERVAL_SECONDS, PodLimits
from gpushare_runtime.device_plugin.host.usage_file import StateFile
from gpushare_runtime.device_plugin.node.ids import CheckpointEntry
from gpushare_runtime.device_plugin.node.local_pods import PodTable, parse_local_pod
from gpushare_runtime.device_plugin.node.state import NodeState
from unit.runtime.device_plugin.fake_nvml import FakeNvml
from unit.runtime.device_plugin.fake_processes import FakeProcesses
from unit.runtime.device_plugin.local_pods import memory
from unit.runtime.device_plugin.plugin import FakeHost
from unit.runtime.pods import card

MEMORY = "aliyun.com/gpu-mem"
BYTES = 1024**3


class Machine:
    """One node: the driver, the control groups, kubelet's checkpoint and the pods of the API server. `process` is the plugin that runs."""

    def __init__(self, path: Path) -> None:
        self.path = path / "held.json"
        self.nvml, self.host = FakeNvml(16 * 1024, 16 * 1024), FakeHost(path)
        self.nvml.unlimited = None
        self.cards = Inventory(GIB, tuple(card(index, 16, uuid=of.uuid) for index, of in enumerate(self.nvml.cards)))
        self.given: dict[str, dict[int, int]] = {}
        self.started: set[str] = set()
        self.boot = "one"
        self.start()

    def start(self, mode: str = "auto", *, seen: bool = False) -> None:
        """The next process, which reads what the one before has stored. seen: it reaches the API server."""
        self.node = NodeState(PodTable(), lambda: 0.0, lambda: 0.0, FakeProcesses())
        self.file = StateFile(self.path, self.node, lambda: self.boot)
        self.file.load()
        self.node.devices.set_inventory(self.cards)
        self.node.unasked = {MEMORY}
        self.limits = PodLimits(self.node, self.nvml, self.host, Status(required=[]), mode)
        self.give({})
        if seen:
            self.see()

    def give(self, given: dict[str, dict[int, int]]) -> None:
        """kubelet's checkpoint lists these as well: pod → card index → units."""
        self.given |= given
        entries = []
        for uid, units in self.given.items():
            ids = frozenset(f"{self.nvml.cards[index].uuid}-_-{slot}" for index, count in units.items() for slot in range(count))
            entries.append(CheckpointEntry(uid, "main", MEMORY, ids))
        self.node.usage.set_checkpoint(tuple(entries))

    def run(self, *uids: str) -> None:
        """These pods have their control groups, and their containers start."""
        self.host.pods |= set(uids)
        self.started |= set(uids)

    def see(self) -> None:
        """The API server lists all pods, and knows which have started."""
        pods = []
        for uid, units in self.given.items():
            [(index, count)] = list(units.items())[:1]
            pod = memory(self.cards, index, count, uid=uid, name=uid)
            if uid in self.started:
                status = {"name": pod["spec"]["containers"][0]["name"], "state": {"running": {}}, "containerID": "containerd://1"}
                pod["status"] = {"phase": "Running", "containerStatuses": [status]}
            pods.append(parse_local_pod(pod))
        self.node.pods.replace(pods)

    def look(self, *, check: bool = False) -> dict[str, dict[int, int]]:
        """What the plugin does between two checks, or a check; then pod → card index → units of its limits."""
        asyncio.run(self.limits.check() if check else self.limits.limit_unasked())
        self.file._write(self.file._render(self.cards))
        index = {of.uuid: number for number, of in enumerate(self.nvml.cards)}
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
    machine.give({"new": {0: 3}})
    machine.run("new")
    assert machine.look() == {"new": {0: 3}}
    machine.give({"later": {1: 4}})
    machine.run("later")
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
    machine.give({"old": {0: 2}})
    machine.run("old")
    assert machine.look(check=True) == machine.look() == {}
    assert machine.limits.interval <= 1
    machine.see()
    assert machine.look(check=True) == {}
    assert machine.limits.interval == INTERVAL_SECONDS
    machine.give({"new": {0: 3}})
    machine.run("new")
    assert machine.look() == {"new": {0: 3}}


def test_where_the_driver_has_no_limits_it_is_asked_once_a_minute(machine: Machine) -> None:
    machine.nvml.unlimited = NvmlError("the driver has no such call")
    assert machine.look(check=True) == {}
    assert machine.limits.interval == INTERVAL_SECONDS


@pytest.mark.parametrize("how", ["driver", "mode"])
def test_who_starts_while_nothing_limits_is_a_pod_of_before(machine: Machine, how: str) -> None:
    settled(machine)
    machine.nvml.unlimited = NvmlError("the driver has no such call") if how == "driver" else None
    machine.start("auto" if how == "driver" else "watch", seen=True)
    machine.give({"old": {0: 2}})
    machine.run("old")
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
    machine.give({"new": {0: 3}})
    machine.run("new")
    assert machine.look(check=True) == {}
    assert machine.look() == {"new": {0: 3}}


def test_a_limit_follows_the_units_of_its_pod_at_once(machine: Machine) -> None:
    """kubelet asks anew for a pod whose record it lost, and gives it other ids, more or fewer of a card than it had."""
    settled(machine)
    machine.give({"pod": {0: 2}})
    machine.run("pod")
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


def test_a_limit_that_is_right_is_not_set_again(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    settled(machine)
    machine.give({"pod": {0: 2}})
    machine.run("pod")
    machine.look()
    monkeypatch.setattr(machine.nvml, "limit_memory", None)
    assert machine.look() == {"pod": {0: 2}}


def test_that_a_pod_with_a_limit_has_gone_is_stored_whatever_else_happens(machine: Machine) -> None:
    settled(machine)
    machine.give({"pod": {0: 2}})
    machine.run("pod")
    machine.see()
    machine.look(check=True)
    del machine.given["pod"]
    machine.give({})
    machine.see()
    machine.node.usage.release_terminated(lambda uids: set())
    before = machine.node.changes.count
    machine.look(check=True)
    assert machine.node.limited == set()
    assert machine.node.changes.count == before + 1
    machine.look(check=True)
    assert machine.node.changes.count == before + 1
