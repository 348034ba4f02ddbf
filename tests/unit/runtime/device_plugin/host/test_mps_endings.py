# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Whose clients of MPS are to be terminated, and when: those of pods that kubelet is about to kill, a moment before it does."""

from __future__ import annotations

import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.core.quantity import GIB as UNIT
from gpushare_runtime.device_plugin.host import mps_endings
from gpushare_runtime.device_plugin.host.mps_endings import EndingClients, patience
from gpushare_runtime.device_plugin.node.local_pods import Deletion, parse_local_pod
from unit.fakes.runtime.device_plugin.local_pods import memory, whole
from unit.fakes.runtime.device_plugin.node import Node
from unit.fakes.runtime.device_plugin.plugin import GIB, MEMORY, World, admitted, world
from unit.fakes.runtime.kube.fake_api import until
from unit.fakes.runtime.pods import gpu

NOW = 1_800_000_000.0


@pytest.mark.parametrize(
    ("left", "seconds", "waits"),
    [
        (30, 30, 25),
        (600, 600, 595),
        (10, 10, 5),
        (4, 4, 2),
        (1, 1, 0.5),
        (0, 0, 0),
        # The plugin has started in between.
        (12, 30, 7),
        (3, 30, 0),
        (-100, 30, 0),
        # The API server's clock is ahead of this host's, or behind it.
        (35, 30, 25),
        (28, 30, 23),
    ],
)
def test_programs_may_end_by_themselves_until_shortly_before(left: float, seconds: int, waits: float) -> None:
    assert patience(Deletion(NOW + left, seconds), NOW) == waits


def timestamp(at: float) -> str:
    return datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")


@pytest.mark.parametrize(
    ("metadata", "deletion"),
    [
        ({}, None),
        ({"deletionTimestamp": timestamp(NOW), "deletionGracePeriodSeconds": 30}, Deletion(NOW, 30)),
        ({"deletionTimestamp": timestamp(NOW), "deletionGracePeriodSeconds": -1}, Deletion(NOW, 0)),
        ({"deletionTimestamp": timestamp(NOW)}, None),
        ({"deletionTimestamp": timestamp(NOW), "deletionGracePeriodSeconds": True}, None),
        ({"deletionTimestamp": 7, "deletionGracePeriodSeconds": 30}, None),
        ({"deletionTimestamp": "soon", "deletionGracePeriodSeconds": 30}, None),
        ({"deletionTimestamp": "2" * 10_000, "deletionGracePeriodSeconds": 30}, None),
        ({"deletionTimestamp": "0001-01-01T00:00:00", "deletionGracePeriodSeconds": 30}, None),
    ],
)
def test_when_a_pod_is_killed(metadata: dict[str, object], deletion: Deletion | None) -> None:
    pod = memory(Inventory(UNIT, (gpu(0, 16),)), 0, 4)
    pod["metadata"].update(metadata)
    read = parse_local_pod(pod)
    assert (read.deletion, read.terminating) == (deletion, "deletionTimestamp" in metadata)


class Host:
    """A node with two GPUs, and one process for each pod."""

    def __init__(self, file: Path) -> None:
        self.gpus = Inventory(UNIT, (gpu(0, 16), gpu(1, 16)))
        self.node, self.asked = Node(self.gpus), list[str]()
        self.now, self.file = NOW, file
        self.processes: dict[str, list[tuple[int, int]]] = {}
        self.endings = EndingClients(self.node.state, self, file, lambda: self.node.now, lambda: self.now)

    def processes_of(self, uid: str, most: int) -> list[tuple[int, int]]:
        self.asked.append(uid)
        return self.processes.get(uid, [])[:most]

    def runs(self, pod: dict[str, Any], *processes: tuple[int, int]) -> dict[str, Any]:
        self.node.takes(pod)
        self.processes[pod["metadata"]["uid"]] = list(processes)
        return pod

    def passes(self, seconds: float) -> None:
        self.node.now += seconds
        self.now += seconds

    def deletes(self, pod: dict[str, Any], seconds: int) -> None:
        pod["metadata"].update(deletionTimestamp=timestamp(self.now + seconds), deletionGracePeriodSeconds=seconds)
        self.node.see(pod)

    def listed(self) -> dict[str, list[list[int]]]:
        found: dict[str, list[list[int]]] = json.loads(self.endings._render(self.endings._gpus(self.endings._ending())))["clients"]
        return found


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path / "ending.json")


def test_a_pod_that_is_deleted_is_listed_a_moment_before_it_is_killed(host: Host) -> None:
    pod, other = host.runs(memory(host.gpus, 0, 4), (7, 70), (8, 80)), host.runs(memory(host.gpus, 0, 4), (9, 90))
    assert host.listed() == {}
    host.deletes(pod, 30)
    assert host.listed() == {}
    host.passes(24.9)
    assert host.listed() == {}
    assert host.asked == []
    host.passes(0.2)
    uuid = host.gpus.by_index[0].uuid
    assert host.listed() == {uuid: [[7, 70], [8, 80]]}
    # A program of its last seconds.
    host.processes[pod["metadata"]["uid"]].append((10, 100))
    host.passes(20.0)
    assert host.listed() == {uuid: [[7, 70], [8, 80], [10, 100]]}
    assert other["metadata"]["uid"] not in host.asked


def test_a_second_deletion_shortens_the_time(host: Host) -> None:
    pod = host.runs(memory(host.gpus, 0, 4), (7, 70))
    host.deletes(pod, 600)
    host.passes(10.0)
    assert host.listed() == {}
    host.deletes(pod, 2)
    assert host.listed() == {}
    host.passes(1.0)
    assert list(host.listed().values()) == [[[7, 70]]]


def test_each_gpu_has_its_own_pods(host: Host) -> None:
    first, second, all_of_it = memory(host.gpus, 0, 4), memory(host.gpus, 0, 4), whole(host.gpus, 1)
    for pid, pod in enumerate((first, second, all_of_it), 7):
        host.runs(pod, (pid, 10 * pid))
        host.deletes(pod, 0)
    uuids = [host.gpus.by_index[index].uuid for index in (0, 1)]
    assert host.listed() == {uuids[0]: [[7, 70], [8, 80]], uuids[1]: [[9, 90]]}


def test_a_deleted_pod_is_listed_also_once_the_api_server_has_it_no_more(host: Host) -> None:
    pod = host.runs(memory(host.gpus, 0, 4), (7, 70))
    host.deletes(pod, 0)
    host.node.pods.event("DELETED", parse_local_pod(pod))
    assert list(host.listed().values()) == [[[7, 70]]]


def test_a_pod_that_a_list_lacks_is_not_taken_for_deleted(host: Host) -> None:
    """An API server that lags behind the others has an older list."""
    host.runs(memory(host.gpus, 0, 4), (7, 70))
    host.node.pods.replace([])
    host.passes(600.0)
    assert host.listed() == {}


def test_what_kubelet_runs_on_is_never_listed(host: Host) -> None:
    """A static pod, whatever becomes of the copy of it; and whoever has ended."""
    pod = host.runs(memory(host.gpus, 0, 4), (7, 70))
    host.deletes(pod, 0)
    seen = parse_local_pod(pod)
    assert host.listed()
    for other in (replace(seen, static=True), replace(seen, phase="Succeeded")):
        host.node.pods.event("MODIFIED", other)
        assert host.listed() == {}
    host.node.pods.event("DELETED", replace(seen, static=True))
    assert host.listed() == {}


def test_a_deletion_that_cannot_be_read_leaves_no_time(host: Host) -> None:
    pod = host.runs(memory(host.gpus, 0, 4), (7, 70))
    pod["metadata"].update(deletionTimestamp="soon", deletionGracePeriodSeconds=30)
    host.node.see(pod)
    assert list(host.listed().values()) == [[[7, 70]]]


def test_a_pod_lists_no_more_processes_than_are_read(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mps_endings, "MOST_ENDING", 2)
    host.deletes(host.runs(memory(host.gpus, 0, 4), (7, 70), (8, 80), (9, 90)), 0)
    assert list(host.listed().values()) == [[[7, 70], [8, 80]]]


def test_a_file_that_cannot_be_written_is_said_once_and_tried_again(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "not a folder").touch()
    host = Host(tmp_path / "not a folder/ending.json")
    for _ in range(2):
        host.endings._write(b"x")
    assert caplog.text.count("clients of MPS are killed without being terminated first") == 1
    (tmp_path / "not a folder").unlink()
    host.endings._write(b"x")
    assert host.file.read_bytes() == host.endings._written == b"x"


# The whole plugin.


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mps_endings, "INTERVAL_SECONDS", 0.02)


@asynccontextmanager
async def with_pod(isolation: str, folder: Path) -> AsyncIterator[tuple[World, Callable[[], dict[str, Any]]]]:
    async with world(16 * GIB, isolation=isolation, mps_folder=folder, registered=False) as it:
        await until(lambda: it.plugin.node.devices.gpus)
        file = it.plugin._settings.state / "ending.json"
        yield it, lambda: json.loads(file.read_bytes())["clients"] if file.exists() else {"": "no file"}


@pytest.mark.usefixtures("often")
async def test_the_plugin_lists_for_gpushare_mps_what_its_watch_and_the_host_show(tmp_path: Path) -> None:
    uuid = "GPU-00000000-0000-0000-0000-000000000000"
    (tmp_path / uuid).mkdir()
    (tmp_path / uuid / "state.json").write_text(json.dumps({"v": 1, "at": int(time.monotonic()), "problem": "", "servers": 1}))
    async with with_pod("mps", tmp_path) as (it, listed):
        # With a control daemon that serves, which kubelet learns a moment after the inventory.
        await until(lambda: it.kubelet.manager.healthy.get(MEMORY))
        await until(lambda: listed() == {})
        pod = memory(it.inventory, 0, 4)
        uid = await admitted(it, pod)
        it.host.processes[7] = 70, uid
        pod["metadata"].update(deletionTimestamp=timestamp(time.time()), deletionGracePeriodSeconds=0)
        await it.api.put(f"/api/v1/namespaces/default/pods/{pod['metadata']['name']}", pod)
        await until(lambda: listed() == {uuid: [[7, 70]]})


@pytest.mark.usefixtures("often")
async def test_without_mps_it_lists_nothing(tmp_path: Path) -> None:
    async with with_pod("watch", tmp_path) as (it, listed):
        await it.registered()
        await it.stays(lambda: listed() == {"": "no file"})
