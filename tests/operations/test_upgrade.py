# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""upgrade.yml under running pods: a release that does not start is rolled back on the first node, one that works goes through, and back."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from e2e.cluster import Cluster
from e2e.manifests import pod
from installer.releases import next_release, play
from installer.site import RESOURCES
from operations.hosts import counts, process, run, words

PLANE, NODE, SECOND = "cp1", "gpu1", "gpu2"
EXTENDER, PLUGIN = "gpushare-extender", "gpushare-device-plugin"
# The lab's inventory changes all nodes at once.
BATCHES = ("--extra-vars", json.dumps({"gpushare_serial": [1, "25%"]}))
DAEMONS = ((NODE, PLUGIN), (SECOND, PLUGIN), (PLANE, EXTENDER))


@pytest.fixture(scope="module")
def cluster(installed: Cluster) -> Cluster:
    """With a pod on each node that has a share of a GPU."""
    for node in (NODE, SECOND):
        installed.create(pod(f"holder-{node}", memory=2, node=node))
    installed.until_running(*(f"holder-{node}" for node in (NODE, SECOND)))
    return installed


def container(cluster: Cluster, name: str) -> tuple[str, int]:
    status = cluster.pod(name)["status"]["containerStatuses"][0]
    return status["containerID"], status["restartCount"]


def units(cluster: Cluster, node: str) -> dict[str, str]:
    return {name: cluster.node(node)["status"]["allocatable"].get(name, "") for name in RESOURCES[:2]}


def offers(cluster: Cluster, node: str, expected: dict[str, str]) -> bool:
    return units(cluster, node) == expected


def test_a_release_whose_device_plugin_ends_at_once_stops_at_the_first_node(cluster: Cluster, folder: Path) -> None:
    pods = {node: container(cluster, f"holder-{node}") for node in (NODE, SECOND)}
    files = (
        f"cat /etc/systemd/system/{PLUGIN}.service /etc/gpushare/{PLUGIN}.env /etc/gpushare/{PLUGIN}.yaml; readlink /opt/gpushare/current"
    )
    before = {node: (cluster.on(node, "sh", "-c", files), process(cluster, node, PLUGIN), units(cluster, node)) for node in pods}

    done = play(next_release(folder, "0.1.1", plugin_exits=1), cluster, "playbooks/upgrade.yml", *BATCHES)
    said = words(done)
    assert done.returncode != 0, said[-6000:]
    assert f"{NODE} is not as required" in said
    assert f"Nodes whose services were not changed: {SECOND}" in said
    assert "The way back is the same playbook of the release that ran before" in said

    # The first is rolled back, code and unit; the other was never touched.
    assert cluster.on(NODE, "sh", "-c", files) == before[NODE][0]
    assert process(cluster, NODE, PLUGIN)[1] == before[NODE][1][1]
    assert "/opt/gpushare/0.1.0-" in process(cluster, NODE, PLUGIN)[1]
    assert (cluster.on(SECOND, "sh", "-c", files), process(cluster, SECOND, PLUGIN)) == before[SECOND][:2]
    for node in pods:
        cluster.until("the units are as before", partial(offers, cluster, node, before[node][2]), 60)
        assert container(cluster, f"holder-{node}") == pods[node]


def test_a_release_that_works_goes_through_node_by_node_and_the_same_playbook_leads_back(cluster: Cluster, folder: Path) -> None:
    pods = {node: container(cluster, f"holder-{node}") for node in (NODE, SECOND)}
    said = run(cluster, "upgrade", *BATCHES, folder=next_release(folder, "0.1.2"))
    assert {failed for _changed, failed in counts(said).values()} == {0}
    for host, unit in DAEMONS:
        assert "/opt/gpushare/0.1.2-" in process(cluster, host, unit)[1]
    # The release before is still there, whole.
    assert cluster.on(NODE, "sh", "-c", "ls -d /opt/gpushare/0.1.0-*").strip()

    run(cluster, "upgrade", *BATCHES)
    for host, unit in DAEMONS:
        assert "/opt/gpushare/0.1.0-" in process(cluster, host, unit)[1]
    assert {node: container(cluster, f"holder-{node}") for node in pods} == pods
