# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""GPUs are exchanged, the driver's container brings another one, and others write into the folder of CDI specs: pods have their GPU."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from cdi_nodes.operator_nodes import (
    OWN,
    SPEC,
    STATE,
    Operator,
    divide,
    health,
    lab_gpu,
    named,
    published,
    seconds_between,
    spec,
    tell_of_capabilities,
    usable,
)
from e2e.api import Json
from e2e.checks import check_devices, check_environment, check_totals
from e2e.cluster import GPU_NODES, Cluster, allocation, is_running
from e2e.manifests import pod
from e2e.running import Say
from installer.visibility import foreign

FOREIGN = "/run/cdi/foreign.json"
TOOLKIT_READY = "/run/nvidia/validations/toolkit-ready"


@pytest.fixture
def empty(cluster: Cluster) -> Iterator[Cluster]:
    cluster.clear()
    yield cluster
    cluster.clear()


def pods_have_their_gpus(cluster: Cluster, node: str, word: str) -> None:
    """Two pods that only fit on different GPUs."""
    names = [f"{word}-{number}" for number in range(2)]
    for name in names:
        cluster.create(pod(name, memory=10, node=node))
    running = cluster.until_running(*names, seconds=120)
    assert check_devices(cluster, running) + check_environment(cluster, running) + check_totals(cluster) == []
    cluster.delete(*names)


@pytest.mark.parametrize("node", GPU_NODES)
def test_exchanged_gpus(empty: Cluster, node: str, say: Say) -> None:
    sizes = {"gpu1": "2x16", "gpu2": "16+24"}[node]
    before = named(empty, node)
    lab_gpu(empty, node, "set", "--gpus", sizes, "--node", node, "--seed", "exchanged")
    new = {gpu.uuid for gpu in empty.gpus(node)}
    assert not new & before
    empty.until("the spec names the new GPUs", lambda: named(empty, node) == new, 15)
    say(f"{node}: from exchanged GPUs to a CDI spec of them", seconds_between(empty, node, STATE, SPEC))
    empty.until("the node offers them", lambda: usable(empty, node), 30)
    pods_have_their_gpus(empty, node, "exchanged")
    lab_gpu(empty, node, "set", "--gpus", sizes, "--node", node, "--seed", empty.name)
    empty.until("the node offers the first ones", lambda: usable(empty, node), 30)


@pytest.fixture
def mixed(empty: Cluster) -> Iterator[str]:
    """A node with a GPU that can have MIG instances."""
    node = GPU_NODES[0]
    lab_gpu(empty, node, "set", "--gpus", "16+80", "--node", node, "--seed", "mixed")
    empty.until("the node offers them", lambda: usable(empty, node), 30)
    yield node
    empty.clear()
    lab_gpu(empty, node, "set", "--gpus", "2x16", "--node", node, "--seed", empty.name)
    empty.until("the node offers the first ones", lambda: usable(empty, node), 120)


def test_mig_instances(mixed: str, empty: Cluster) -> None:
    """Each is a device of our spec with its own device nodes, which the device plugin sees from a new container."""
    made = divide(empty, mixed, "3g,1g")

    def offered() -> bool:
        tell_of_capabilities(empty, mixed)
        gpus = {one["uuid"] for one in published(empty, mixed)["gpus"] if one["health"] == "ok"}
        return len(gpus) == 3 and set(made) <= gpus == named(empty, mixed)

    empty.until("the node offers the instances", offered, 180)
    for name, memory in (("large", 39), ("small", 9)):
        manifest = pod(name, memory=memory, node=mixed)
        manifest["metadata"]["annotations"] = {"gpushare.request/models": "MIG"}
        empty.create(manifest)
    uuids = {one["index"]: one["uuid"] for one in published(empty, mixed)["gpus"]}
    for container in empty.containers(empty.until_running("large", "small", seconds=120)):
        [index] = allocation(container.pod)
        own = set(made[uuids[index]])
        assert own <= set(container.devices)
        assert foreign(container.devices, own) == set()


@pytest.mark.parametrize("node", GPU_NODES)
def test_a_replaced_driver(empty: Cluster, node: str, say: Say) -> None:
    """As the operator's driver container does it, without its files in between."""
    empty.create(pod("stays", memory=2, node=node))
    empty.until_running("stays")
    lab_gpu(empty, node, "driver", "580.65.06")

    def of_the_new() -> bool:
        mounts = [one["hostPath"] for one in spec(empty, node).get("containerEdits", {}).get("mounts", [])]
        return any("580.65.06" in path for path in mounts) and not any("535." in path for path in mounts)

    empty.until("the spec has the new driver's files", of_the_new, 180)
    say(f"{node}: from another driver to a CDI spec of it", seconds_between(empty, node, STATE, SPEC))
    empty.until("the node offers its GPUs", lambda: usable(empty, node), 120)
    # The container of before starts again, by the answer that kubelet has kept.
    [container] = empty.pod("stays")["status"]["containerStatuses"]
    empty.on(node, "ctr", "-n", "k8s.io", "tasks", "kill", "-s", "KILL", container["containerID"].partition("://")[2])

    def again() -> bool:
        return bool(is_running(empty.pod("stays")) and empty.pod("stays")["status"]["containerStatuses"][0]["restartCount"] == 1)

    empty.until("the container runs again", again, 120)
    assert check_devices(empty, [empty.pod("stays")]) == []
    empty.delete("stays")
    pods_have_their_gpus(empty, node, "driver")


@pytest.mark.parametrize("node", GPU_NODES)
def test_half_written_and_foreign_specs(empty: Cluster, node: str) -> None:
    good = empty.on(node, "cat", SPEC)
    # Two GPUs with each other's device nodes.
    swapped = good.replace("/dev/nvidia0", "/dev/nvidiaX").replace("/dev/nvidia1", "/dev/nvidia0").replace("/dev/nvidiaX", "/dev/nvidia1")
    for bad in (good[: len(good) // 2], swapped):
        empty.on(node, "python3", "-c", f"open({SPEC!r}, 'w').write({bad!r})")
        empty.until("our spec is back", lambda: empty.on(node, "cat", SPEC) == good, 15)
    pods_have_their_gpus(empty, node, "written")
    devices = json.loads(swapped)["devices"]
    foreign = json.dumps({"cdiVersion": "0.5.0", "kind": OWN, "devices": devices})
    empty.on(node, "python3", "-c", f"open({FOREIGN!r}, 'w').write({foreign!r})")
    empty.until("no GPU is offered", lambda: all("both name it" in one for one in health(empty, node)), 15)
    empty.create(pod("waits", memory=10, node=node))
    empty.until_unschedulable("waits")
    empty.on(node, "rm", FOREIGN)
    running = empty.until_running("waits", seconds=60)
    assert check_devices(empty, running) == []
    assert empty.on(node, "cat", SPEC) == good


def test_the_device_plugin_waits_for_the_operators_toolkit(empty: Cluster, here: Operator) -> None:
    node = GPU_NODES[0]
    # With this pod kubelet forgets those before it. A device plugin that has just started holds back what kubelet still records.
    empty.create(pod("small", memory=1, node=node))
    empty.until_running("small")
    empty.delete("small")
    empty.on(node, "rm", TOOLKIT_READY)

    def own() -> Json:
        [found] = [one for one in here.pods("gpushare-device-plugin") if one["spec"]["nodeName"] == node]
        return found

    before = own()["metadata"]["uid"]
    empty.kubectl("delete", "pod", "-n", "gpushare-system", own()["metadata"]["name"], "--wait=true")

    def waits() -> bool:
        found = own()
        if found["metadata"]["uid"] == before:
            return False
        said = empty.kubectl("logs", "-n", "gpushare-system", found["metadata"]["name"])
        return f"waiting for {TOOLKIT_READY}" in said

    def serves() -> bool:
        # What the one before has published is still there.
        ready = [one for one in own()["status"]["conditions"] if one["type"] == "Ready" and one["status"] == "True"]
        return bool(ready) and usable(empty, node)

    empty.until("it waits", waits, 120)
    empty.on(node, "touch", TOOLKIT_READY)
    empty.until("it serves", serves, 120)
    pods_have_their_gpus(empty, node, "ready")
