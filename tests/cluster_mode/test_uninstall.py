# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The playbook `cluster` takes everything away: objects, and the device plugin's files on every node."""

from __future__ import annotations

from cluster_mode.conftest import Bare
from cluster_mode.in_cluster import InCluster
from e2e.cluster import GPU_NODES, Cluster
from e2e.manifests import pod
from installer.site import Site, differences


def test_a_pod_that_shares_a_gpu_stops_it_before_anything_is_changed(cluster: Cluster, here: InCluster) -> None:
    cluster.clear()
    cluster.create(pod("share", memory=2))
    cluster.until_running("share")
    before = set(here.objects())
    assert "default/share on gpu" in here.rejected(gpushare_cluster_state="absent")
    assert set(here.objects()) == before
    cluster.delete("share")


def test_afterwards_everything_is_as_it_was(cluster: Cluster, bare: Bare, here: InCluster) -> None:
    cluster.clear()
    predicted, _ = here.play("--check", gpushare_cluster_state="absent")
    done, output = here.play(gpushare_cluster_state="absent")
    assert done.changes() == predicted.changes(), output
    assert set(here.objects()) == bare.objects
    assert not any(cluster.node(name)["spec"].get("taints") for name in GPU_NODES)
    site = Site(cluster, here.folder, GPU_NODES)
    # kubelet names a removed plugin's resources for five minutes.
    assert differences({k: v for k, v in bare.files.items() if not k.startswith("node ")}, _without_nodes(site)) == []
    again, output = here.play(gpushare_cluster_state="absent")
    assert again.changes() == {}, output
    site.schedules("afterwards")


def _without_nodes(site: Site) -> dict[str, object]:
    return {name: value for name, value in site.state(resources=False).items() if not name.startswith("node ")}
