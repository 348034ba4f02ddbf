# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""kubelet's checkpoint beside its podresources API: differences are said with both sides, and each stands in for the other."""

from __future__ import annotations

import os
from typing import Any

import pytest

from gpushare_runtime.device_plugin.checkpoint import Entry
from gpushare_runtime.device_plugin.podresources import Said
from gpushare_runtime.device_plugin.pods import PodTable, parse_local_pod
from gpushare_runtime.device_plugin.records import differences, entries_of
from unit.runtime.device_plugin.fake_pod_resources import FakePodResources, serving_pod_resources
from unit.runtime.device_plugin.local_pods import memory
from unit.runtime.device_plugin.plugin import World, world
from unit.runtime.device_plugin.test_plugin import GIB, MEMORY, running
from unit.runtime.kube.fake_api import until
from unit.runtime.pods import inventory

NODE = inventory(16)
A = frozenset({"GPU-0-_-0", "GPU-0-_-1"})
B = frozenset({"GPU-0-_-1", "GPU-0-_-2"})


def table(**phases: str) -> PodTable:
    """Pods whose UID is "uid of <name>"."""
    pods = PodTable()
    pods.replace([parse_local_pod(memory(NODE, 0, 2, name=name, uid=f"uid of {name}", phase=phase)) for name, phase in phases.items()])
    return pods


def entry(pod: str, ids: frozenset[str], container: str = "main") -> Entry:
    return Entry(f"uid of {pod}", container, MEMORY, ids)


def said(**pods: frozenset[str]) -> Said:
    return {(f"default/{name}", "main"): {MEMORY: ids} if ids else {} for name, ids in pods.items()}


def test_what_only_one_of_them_can_know_is_no_difference() -> None:
    pods = table(a="Running", ended="Succeeded")
    entries = [entry("a", A), entry("a", B, "init"), entry("ended", B), entry("nobody", B)]
    assert list(differences(entries, said(a=A, ended=frozenset(), other=frozenset()), pods)) == []
    # The watch has not shown the pod yet: the same ids are the same container.
    assert list(differences(entries, said(late=B), pods)) == []


def test_a_pod_made_anew_under_its_name_is_either_of_the_two() -> None:
    pods = table(a="Running")
    pods.event("ADDED", parse_local_pod(memory(NODE, 0, 2, name="a", uid="uid of b")))
    assert list(differences([entry("a", A), entry("b", B)], said(a=B), pods)) == []


@pytest.mark.parametrize(
    ("recorded", "spoken", "words"),
    [
        (A, B, r"the checkpoint has 1 of its own \(GPU-0-_-0\), kubelet says 1 of its own \(GPU-0-_-2\), 1 in both"),
        (A, frozenset(), "the checkpoint has 2 of its own .* kubelet says none of its own, 0 in both"),
        (None, A, "the checkpoint has none of its own, kubelet says 2 of its own"),
    ],
)
def test_a_difference_is_said_with_both_sides(recorded: frozenset[str] | None, spoken: frozenset[str], words: str) -> None:
    [difference] = differences([entry("a", recorded)] if recorded else [], said(a=spoken), table(a="Running"))
    with pytest.raises(ValueError, match=f"^{MEMORY} of container main of pod default/a: {words}"):
        raise ValueError(difference)


def test_kubelets_word_as_entries_with_init_containers_as_they_were() -> None:
    pods = table(a="Running", b="Running", ended="Failed")
    before = [entry("a", B), entry("a", A, "init"), entry("gone", A)]
    assert set(entries_of(said(a=A, b=frozenset(), ended=B, unknown=B), pods, before)) == {entry("a", A), entry("a", A, "init")}


async def admitted(it: World, fake: FakePodResources) -> dict[str, Any]:
    """A pod with three units that both records have."""
    pod = await it.bind(memory(it.inventory, 0, 3))
    await it.kubelet.manager.admit(pod)
    ids = it.kubelet.manager.given[pod["metadata"]["uid"]]["main"][MEMORY]
    fake.said["default", pod["metadata"]["name"], "main"] = {MEMORY: sorted(ids)}
    return pod


@running
async def test_a_difference_that_stays_is_counted_once() -> None:
    async with world(8 * GIB) as it, serving_pod_resources(it.kubelet.directory.parent) as fake:
        await it.registered()
        pod = await admitted(it, fake)
        await until(lambda: fake.asked >= 2, seconds=15)
        assert it.plugin.counters.record_mismatches == 0
        fake.said["default", pod["metadata"]["name"], "main"][MEMORY].pop()
        await until(lambda: it.plugin.counters.record_mismatches == 1, seconds=15)
        asked = fake.asked
        await until(lambda: fake.asked >= asked + 2, seconds=15)
        assert it.plugin.counters.record_mismatches == 1


@running
async def test_while_the_checkpoint_cannot_be_read_kubelets_word_stands_in() -> None:
    async with world(8 * GIB, 8 * GIB) as it, serving_pod_resources(it.kubelet.directory.parent) as fake:
        await it.registered()
        first = await admitted(it, fake)
        await until(lambda: it.annotations(first)["ALIYUN_COM_GPU_MEM_ASSIGNED"] == "true")
        manager, write = it.kubelet.manager, it.kubelet.manager.write
        assert manager.checkpoint is not None
        broken = manager.checkpoint
        manager.write = lambda: os.truncate(broken, 10)  # type: ignore[method-assign]
        manager.write()
        second = await admitted(it, fake)
        await until(lambda: it.annotations(second)["ALIYUN_COM_GPU_MEM_ASSIGNED"] == "true", seconds=15)
        assert {e.pod for e in it.plugin.node.holders.entries} == {pod["metadata"]["uid"] for pod in (first, second)}
        broken.unlink()
        manager.write = write  # type: ignore[method-assign]
        manager.write()
        await until(lambda: it.plugin._checkpoint.entries == it.plugin.node.holders.entries)
        assert len(it.plugin.node.holders.entries) == 2
