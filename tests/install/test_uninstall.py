# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""uninstall.yml at the end: it does not begin while a pod shares a GPU, and leaves hosts as they would be without us."""

from __future__ import annotations

from e2e.cluster import Cluster
from e2e.manifests import pod
from installer.site import CONTAINERD, Site, Untouched, differences


def test_a_pod_that_shares_a_gpu_stops_it_before_anything_is_changed(cluster: Cluster, site: Site) -> None:
    cluster.clear()
    cluster.create(pod("share", memory=2, node="gpu2"))
    cluster.until_running("share")
    installed = site.state()
    assert "default/share on gpu2" in site.rejected()
    assert differences(installed, site.state()) == [], "a rejected run has written"
    cluster.delete("share")


def test_afterwards_everything_is_as_it_was(cluster: Cluster, site: Site, untouched: Untouched) -> None:
    cluster.clear()
    installed = site.state()
    assert len(differences(untouched.state, installed)) > 20
    cluster.create(pod("witness"))
    cluster.until_running("witness")
    witness = cluster.pod("witness")["status"]["containerStatuses"][0]["containerID"]

    predicted, shown = site.uninstall("--check", "--diff")
    assert differences(installed, site.state()) == [], "check mode has written"
    assert f"--- before: {CONTAINERD}" in shown
    done, output = site.uninstall()
    assert done.changes() == predicted.changes(), output
    # kubelet names a removed plugin's resources for five minutes: the suite `uninstall` waits for their end.
    # Before the first run no node has ours, so `untouched` is without them.
    assert differences(untouched.state, site.state(resources=False)) == [], output

    again, output = site.uninstall()
    assert again.changes() == {}, output
    assert cluster.pod("witness")["status"]["containerStatuses"][0]["containerID"] == witness, "a pod without GPU was disturbed"
    cluster.delete("witness")
    site.schedules("afterwards")
