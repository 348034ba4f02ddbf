# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What kubelet 1.36.3 does, pinned on the simulation: each test names the place in pkg/kubelet/cm/devicemanager/manager.go."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from unit.fakes.runtime.device_plugin.device_manager import RESOURCES, AdmissionError, DeviceManager, StartError
from unit.fakes.runtime.pods import container, pod

MEMORY, GPUS = RESOURCES


class Kubelet:
    """A device manager over eight ids, with a plugin that prefers what `prefers` says and notes what it is asked."""

    def __init__(self, checkpoint: Path | None = None, seed: int = 0) -> None:
        self.questions: list[tuple[set[str], set[str], int]] = []
        self.prefers: list[str] = []
        self.rejects = False
        self.manager = DeviceManager(checkpoint, self._prefer, self._allocate, seed)
        self.manager.healthy = {MEMORY: set("abcdefgh")}

    async def _prefer(self, resource: str, available: list[str], must: list[str], size: int) -> list[str]:
        self.questions.append((set(available), set(must), size))
        return self.prefers

    async def _allocate(self, resource: str, ids: list[str]) -> dict[str, str]:
        if self.rejects:
            raise AdmissionError("rejected")
        return {"IDS": "".join(sorted(ids))}

    def admit(self, uid: str, *containers: dict[str, Any], init: list[dict[str, Any]] | None = None) -> dict[str, str]:
        made = pod(*containers, init=init, uid=uid)
        return {name: env.get("IDS", "") for name, env in asyncio.run(self.manager.admit(made)).items()}


def test_exactly_the_preferred_ids_are_taken() -> None:
    """devicesToAllocate: allocateRemainingFrom(preferred.Intersection(available))."""
    kubelet = Kubelet()
    kubelet.prefers = ["c", "h"]
    assert kubelet.admit("1", container(mem=2)) == {"main": "ch"}
    kubelet.prefers = ["c", "d"]
    got = kubelet.admit("2", container(mem=2))["main"]
    assert "d" in got
    assert "c" not in got


def test_an_init_containers_ids_are_reused_before_anything_is_asked() -> None:
    """Allocate: devicesToReuse; devicesToAllocate: allocateRemainingFrom(reusableDevices) comes first."""
    kubelet = Kubelet()
    kubelet.prefers = ["a", "b", "c"]
    got = kubelet.admit("1", container("x", mem=2), container("y", mem=2), init=[container("i", mem=3)])
    assert got["i"] == "abc"
    assert set(got["x"]) < set("abc")
    assert len(kubelet.questions) == 2
    available, must, size = kubelet.questions[1]
    assert must == set("abc") - set(got["x"])
    assert (must < available, size) == (True, 2)
    assert must < set(got["y"])


def test_a_sidecar_takes_from_the_pool_and_keeps() -> None:
    """Allocate: removeContainerAllocatedResources for restartable init containers."""
    kubelet = Kubelet()
    kubelet.prefers = ["a", "b"]
    side = container("side", mem=1) | {"restartPolicy": "Always"}
    got = kubelet.admit("1", container("x", mem=1), init=[container("i", mem=2), side])
    assert sorted(got["side"] + got["x"]) == ["a", "b"]


def test_which_of_the_pool_a_smaller_container_gets_is_chance() -> None:
    """allocateRemainingFrom ranges over a Go map."""
    seen = {Kubelet(seed=seed).admit("1", container("x", mem=1), init=[container("i", mem=8)])["x"] for seed in range(30)}
    assert len(seen) > 3


def test_pods_that_no_longer_count_are_forgotten_when_the_next_container_asks_and_in_the_file_with_it(tmp_path: Path) -> None:
    """allocateContainerResources: UpdateAllocatedDevices once per container; writeCheckpoint after it."""
    kubelet = Kubelet(tmp_path / "file")
    kubelet.admit("1", container(mem=8))
    kubelet.manager.active.clear()
    assert set(kubelet.manager.given) == {"1"}
    assert kubelet.admit("2", container(mem=8))["main"] == "abcdefgh"
    assert [e["PodUID"] for e in json.loads((tmp_path / "file").read_text())["Data"]["PodDeviceEntries"]] == ["2"]


def test_a_rejected_allocation_gives_its_ids_back_and_writes_nothing(tmp_path: Path) -> None:
    kubelet = Kubelet(tmp_path / "file")
    kubelet.rejects = True
    with pytest.raises(AdmissionError, match="rejected"):
        kubelet.admit("1", container(mem=8))
    assert not (tmp_path / "file").exists()
    kubelet.rejects = False
    assert kubelet.admit("2", container(mem=8))["main"] == "abcdefgh"


def test_too_few_ids_are_rejected_without_a_question() -> None:
    kubelet = Kubelet()
    kubelet.admit("1", container(mem=6))
    with pytest.raises(AdmissionError, match=r"requested number of devices unavailable for aliyun.com/gpu-mem. Requested: 3, Available: 2"):
        kubelet.admit("2", container(mem=3))
    assert len(kubelet.questions) == 1


def test_after_a_restart_nothing_is_healthy_and_what_runs_is_passed_by(tmp_path: Path) -> None:
    """readCheckpoint; devicesToAllocate: !sourcesReady && isContainerAlreadyRunning."""
    kubelet = Kubelet(tmp_path / "file")
    kubelet.admit("1", container(mem=2))
    kubelet.manager.read()
    kubelet.manager.sources_ready = False
    kubelet.manager.running = {("1", "main")}
    assert kubelet.admit("1", container(mem=2)) == {"main": ""}
    with pytest.raises(AdmissionError, match="no healthy devices present"):
        kubelet.admit("2", container(mem=2))
    kubelet.manager.healthy[MEMORY] = set("abcdefgh")
    kubelet.manager.sources_ready = True
    assert len(kubelet.admit("2", container(mem=6))["main"]) == 6


def test_ids_that_are_no_longer_healthy_fail_a_pod_that_is_not_running(tmp_path: Path) -> None:
    kubelet = Kubelet(tmp_path / "file")
    kubelet.prefers = ["a"]
    kubelet.admit("1", container(mem=1))
    kubelet.manager.read()
    kubelet.manager.healthy[MEMORY] = set("bcdefgh")
    with pytest.raises(AdmissionError, match="previously allocated devices are no longer healthy"):
        kubelet.admit("1", container(mem=1))


def test_a_resource_that_nobody_registered_is_passed_over() -> None:
    """isDevicePluginResource: the pod runs without it."""
    kubelet = Kubelet()
    assert kubelet.admit("1", container(count=1)) == {"main": ""}


def test_a_container_without_record_is_not_started_where_a_start_is_asked_for_and_allocated_anew_where_not() -> None:
    """GetDeviceRunContainerOptions: callPreStartContainerIfNeeded comes before needsReAllocate."""
    kubelet = Kubelet()
    made = pod(container(mem=1), uid="1")
    kubelet.manager.active.add("1")

    async def pre_start(resource: str, ids: list[str]) -> None:
        raise AssertionError("asked")

    kubelet.manager.pre_start = pre_start
    with pytest.raises(StartError, match="no devices found allocated in local cache"):
        asyncio.run(kubelet.manager.start(made, made["spec"]["containers"][0]))
    kubelet.manager.pre_start_required = lambda _: False
    assert len(asyncio.run(kubelet.manager.start(made, made["spec"]["containers"][0]))["IDS"]) == 1
