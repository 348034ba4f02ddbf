# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""upgrade_driver.yml on two GPU nodes with running pods: budgets are respected, one node at a time, each proven; it stops at what fails.

The tests follow each other on one cluster.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import pytest

from driver_host.packages import Repositories
from e2e.api import Json
from e2e.cluster import GPU_NODES, Cluster, CommandError, is_running
from e2e.manifests import pod
from installer.driver_nodes import driver_of, prepare, repositories, switched_on_again, units_of, variables
from installer.site import Site
from labs import TWO, Labs

OLD, NEW = "550.163.01", "580.126.20"
FIRST, SECOND = GPU_NODES
UNITS = {"gpu1": "32", "gpu2": "40"}
DEPLOYMENTS, BUDGETS = "/apis/apps/v1/namespaces/default/deployments", "/apis/policy/v1/namespaces/default/poddisruptionbudgets"

pytestmark = pytest.mark.timeout(2400)


@dataclass(frozen=True)
class World:
    """The installed cluster, whose nodes have repositories of drivers."""

    cluster: Cluster
    site: Site
    repositories: Repositories

    def upgrade(self, version: str, **more: object) -> str:
        """What upgrade_driver.yml prints. CommandError with it if it fails."""
        return self.site.play("playbooks/upgrade_driver.yml", *variables(self.repositories, version, **more))[1]

    def drivers(self) -> list[str]:
        return [driver_of(self.cluster, node) for node in GPU_NODES]

    def check_whole(self) -> None:
        """Every node can be scheduled and offers all units."""
        assert {node: bool(self.cluster.node(node)["spec"].get("unschedulable")) for node in GPU_NODES} == dict.fromkeys(GPU_NODES, False)
        for node in GPU_NODES:
            self.cluster.until(f"{node} offers its units", partial(self._is_whole, node), 120)

    def _is_whole(self, node: str) -> bool:
        return units_of(self.cluster, node) == UNITS[node]


@pytest.fixture(scope="module")
def world(labs: Labs, tmp_path_factory: pytest.TempPathFactory) -> World:
    cluster, folder = labs.installed(TWO), tmp_path_factory.mktemp("drivers")
    made = repositories(folder, (OLD, NEW))
    for node in GPU_NODES:
        prepare(cluster, node, made)
    return World(cluster, Site(cluster, folder, GPU_NODES), made)


def deployment(cluster: Cluster, name: str, replicas: int, available: int, node: str | None = None) -> None:
    """Pods that share GPUs, of which so many must always be available."""
    template = {"metadata": {"labels": {"app": name}}, "spec": pod(name, memory=2, node=node)["spec"]}
    selector = {"matchLabels": {"app": name}}
    cluster.api.create(
        DEPLOYMENTS, {"metadata": {"name": name}, "spec": {"replicas": replicas, "selector": selector, "template": template}}
    )
    cluster.api.create(BUDGETS, {"metadata": {"name": name}, "spec": {"minAvailable": available, "selector": selector}})
    cluster.until(f"{name} runs", lambda: len(running(cluster, name)) == replicas, 120)


def running(cluster: Cluster, name: str) -> list[Json]:
    return [one for one in cluster.pods() if one["metadata"].get("labels", {}).get("app") == name and is_running(one)]


def remove(cluster: Cluster, name: str) -> None:
    cluster.api.delete(f"{DEPLOYMENTS}/{name}", propagationPolicy="Foreground")
    cluster.api.delete(f"{BUDGETS}/{name}")
    cluster.until(f"{name} is gone", lambda: not [p for p in cluster.pods() if p["metadata"].get("labels", {}).get("app") == name], 60)


@pytest.fixture
def fewest(world: World) -> Iterator[list[int]]:
    """How many pods of the Deployment `served` ran, seen again and again."""
    deployment(world.cluster, "served", 3, 2)
    seen: list[int] = []
    stop = threading.Event()

    def watch() -> None:
        while not stop.wait(0.5):
            seen.append(len(running(world.cluster, "served")))

    thread = threading.Thread(target=watch)
    thread.start()
    yield seen
    stop.set()
    thread.join()
    remove(world.cluster, "served")


def test_a_driver_that_nobody_manages_becomes_a_managed_one(world: World) -> None:
    world.upgrade(OLD)
    assert world.drivers() == [OLD, OLD]
    world.check_whole()
    for node in GPU_NODES:
        assert "nvidia-smi" in world.cluster.on(node, "apt-mark", "showhold")


def test_a_pod_that_no_budget_gives_away_stops_the_run_and_is_named(world: World) -> None:
    deployment(world.cluster, "precious", 1, 1, FIRST)
    (before,) = running(world.cluster, "precious")
    with pytest.raises(CommandError) as error:
        world.upgrade(NEW, gpushare_drain_timeout=20)
    name = before["metadata"]["name"]
    assert f"default/{name}" in str(error.value)
    assert f"Hosts that were not changed: {SECOND}" in str(error.value)
    assert [one["metadata"]["uid"] for one in running(world.cluster, "precious")] == [before["metadata"]["uid"]]
    assert world.drivers() == [OLD, OLD]
    world.check_whole()
    remove(world.cluster, "precious")


def test_each_node_is_drained_changed_rebooted_and_proven_before_the_next(world: World, fewest: list[int]) -> None:
    with switched_on_again(world.cluster, GPU_NODES) as rebooted:
        output = world.upgrade(NEW, gpushare_driver_reboot_ok=True)
    assert rebooted == [FIRST, SECOND], output
    assert world.drivers() == [NEW, NEW]
    world.check_whole()
    assert min(fewest) >= 2, fewest
    world.cluster.until("all pods run", lambda: len(running(world.cluster, "served")) == 3, 120)


def test_a_second_node_that_fails_leaves_the_first_good_and_both_schedulable(world: World) -> None:
    cluster = world.cluster
    package = f"nvidia-smi_{OLD}-1_amd64.deb"
    cluster.on(SECOND, "sh", "-ec", f"mv /packages/driver/{package} /root; echo broken > /packages/driver/{package}")
    with switched_on_again(cluster, GPU_NODES) as rebooted, pytest.raises(CommandError) as error:
        world.upgrade(OLD, gpushare_driver_reboot_ok=True)
    assert f"The driver of {SECOND} is not as required" in str(error.value)
    assert f"Hosts with the new driver: {FIRST}." in str(error.value)
    assert rebooted == [FIRST]
    assert world.drivers() == [OLD, NEW]
    world.check_whole()

    cluster.on(SECOND, "sh", "-ec", f"mv /root/{package} /packages/driver")
    with switched_on_again(cluster, GPU_NODES) as rebooted:
        world.upgrade(OLD, gpushare_driver_reboot_ok=True)
    assert rebooted == [SECOND], "what was done before is done again"
    assert world.drivers() == [OLD, OLD]
    world.check_whole()
