# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The playbook `cluster` on a bare cluster: what it rejects, what it installs, and that a second run does nothing."""

from __future__ import annotations

import json
import time

import pytest

from cluster_mode.conftest import Bare
from cluster_mode.in_cluster import InCluster
from e2e.checks import check_devices, check_environment
from e2e.cluster import CONTROL_PLANE, GPU_NODES, Cluster
from e2e.manifests import pod
from labs import Labs


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"gpushare_image": "localhost/gpushare:none"}, "no image localhost/gpushare:none on gpu1, gpu2"),
        ({"gpushare_scheduler_image": "registry.k8s.io/kube-scheduler:v1.30.1"}, "kube-scheduler:v1.30.1 and an API server v1."),
        ({"gpushare_runtime_class": "other"}, "no RuntimeClass other"),
        ({"gpushare_isolation": "mps"}, "a mount namespace of its own"),
        ({"gpushare_cluster_nodes": ["gpu9"]}, "no node gpu9"),
        ({"gpushare_namespace": "default"}, "a name that begins with gpushare-"),
        ({"gpushare_api_server": "10.0.0.1"}, "a URL such as https://10.0.0.1:6443"),
        ({"gpushare_kubelet_root": "/var/lib/kubelet"}, "no socket /var/lib/kubelet/pod-resources/kubelet.sock"),
        ({"gpushare_runtime_class": "unknown-handler"}, "no runtime for the RuntimeClass unknown-handler"),
        ({"gpushare_scheduler": "default"}, "gpushare_scheduler: default in a run that reaches no host"),
    ],
)
def test_bad_input_is_rejected_before_anything_is_changed(bare: Bare, here: InCluster, settings: dict[str, object], words: str) -> None:
    said = " ".join(here.rejected(**settings).split())
    assert words in said
    assert "nothing was changed" in said
    assert set(here.objects()) == bare.objects


def test_it_installs_and_the_first_pod_has_its_gpu(bare: Bare, here: InCluster, labs: Labs, capsys: pytest.CaptureFixture[str]) -> None:
    predicted, _ = here.play("--check", "--diff")
    assert set(here.objects()) == bare.objects, "check mode has written"
    begin = time.monotonic()
    done, output = here.play()
    labs.has_been_installed()
    assert done.changes() == predicted.changes(), output
    assert all(
        {"key": "gpushare.kubernetes/gpu", "effect": "PreferNoSchedule"} in bare.cluster.node(name)["spec"]["taints"] for name in GPU_NODES
    )
    bare.cluster.create(pod("first", memory=2))
    running = bare.cluster.until_running("first")
    with capsys.disabled():
        print(f"\nmeasured: from a bare cluster to the first pod on its GPU: {time.monotonic() - begin:.1f} s")
    assert check_devices(bare.cluster, running) == []
    assert check_environment(bare.cluster, running) == []
    bare.cluster.delete("first")


def test_the_next_run_is_silent(cluster: Cluster, here: InCluster) -> None:
    before = {name: version for name, version in here.objects().items() if "gpushare" in name}
    pods = sorted(one["metadata"]["uid"] for app in ("gpushare-scheduler", "gpushare-device-plugin") for one in here.pods(app))
    again, output = here.play()
    assert again.changes() == {}, output
    after = {name: version for name, version in here.objects().items() if "gpushare" in name}
    # Their status has what their pods do.
    living = ("Deployment", "DaemonSet", "PodDisruptionBudget")
    assert {k: v for k, v in after.items() if not k.startswith(living)} == {k: v for k, v in before.items() if not k.startswith(living)}
    assert pods == sorted(one["metadata"]["uid"] for app in ("gpushare-scheduler", "gpushare-device-plugin") for one in here.pods(app))


def test_nothing_of_kube_schedulers_own_writes_is_denied(cluster: Cluster, here: InCluster) -> None:
    """Whatever a policy denies is in the log of whom it denied."""
    for one in here.pods("gpushare-scheduler"):
        for container in ("kube-scheduler", "extender"):
            said = cluster.kubectl("logs", "-n", "gpushare-system", one["metadata"]["name"], "-c", container)
            assert "ValidatingAdmissionPolicy" not in said, said[-3000:]


def test_the_dashboard_shows_each_person_what_their_token_may_list(cluster: Cluster, here: InCluster) -> None:
    """By the API server's own answers: an account with edit in one namespace sees that namespace's pods, and no other name."""
    team = "team-of-the-dashboard"
    cluster.kubectl("create", "namespace", team)
    cluster.kubectl("create", "serviceaccount", "person", "-n", team)
    cluster.kubectl("create", "rolebinding", "edit", "-n", team, "--clusterrole=edit", f"--serviceaccount={team}:person")
    try:
        for name, space in (("ours", team), ("theirs", "default")):
            one = pod(name, memory=1)
            one["metadata"]["namespace"] = space
            cluster.kubectl("apply", "-f", "-", stdin=json.dumps(one))
            cluster.kubectl("wait", "-n", space, f"pod/{name}", "--for=condition=Ready", "--timeout=60s")
        token = cluster.kubectl("create", "token", "person", "-n", team).strip()
        status, text = here.dashboard(token)
        assert status == 200, text[:500]
        assert '"ours"' in text
        assert "theirs" not in text
        # Nobody sees anything without a token that the API server knows.
        assert here.dashboard()[0] == 401
        assert here.dashboard(f"{token[:-3]}abc")[0] == 401
    finally:
        cluster.kubectl("delete", "namespace", team, "--wait=true")
        cluster.kubectl("delete", "pod", "theirs", "--ignore-not-found", "--wait=true")


def test_a_pod_names_no_scheduler_and_gets_ours(cluster: Cluster) -> None:
    cluster.create(pod("old", memory=1))
    cluster.until_running("old")
    assert cluster.pod("old")["spec"]["schedulerName"] == "gpushare-scheduler"
    cluster.delete("old")


def test_the_host_of_the_control_plane_is_as_it_was(cluster: Cluster, here: InCluster) -> None:
    assert "gpushare" not in cluster.on(CONTROL_PLANE, "cat", "/etc/kubernetes/manifests/kube-scheduler.yaml")
