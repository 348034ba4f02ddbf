# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The role scheduler on a real control plane: rejected before the write, put back after a bad start, finished after a kill."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
import yaml
from ansible_collections.gpushare.kubernetes.plugins.module_utils._scheduler.scheduler_config import ExtenderEntry
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils import _yaml
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._preflight.variables import variables
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._scheduler.plan import Found, plan_present
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._scheduler.unplan import plan_absent

from e2e.cluster import Cluster, is_running
from installer.control_plane import CONFIG, KUBEADM, MANIFEST, ControlPlane, calls, gpu_pod, is_placed, plain_pod

RESOURCES = ("aliyun.com/gpu-mem", "aliyun.com/gpu-count", "aliyun.com/gpu-core.percentage")
WEIGHT = int(variables()["gpushare_extender_weight"].spec["default"])
EXTENDER = ExtenderEntry("https://127.0.0.1:32766/gpushare-scheduler", WEIGHT, "1s", RESOURCES, "/etc/gpushare/pki/scheduler")
OTHER_PKI = "/root/other-pki"


@pytest.fixture
def plane(installed: Cluster) -> Iterator[ControlPlane]:
    """The installed control plane, and installed again afterwards."""
    plane = ControlPlane(installed)
    yield plane
    installed.clear()
    plane.sh(f"rm -rf {OTHER_PKI}")
    plane.role()


def foreign(plane: ControlPlane) -> list[str]:
    """What is in the folder of static pods and is none of kubeadm's."""
    known = {"etcd.yaml", "kube-apiserver.yaml", "kube-controller-manager.yaml", "kube-scheduler.yaml"}
    return sorted(set(plane.sh("ls -A /etc/kubernetes/manifests").split()) - known)


def test_a_second_run_changes_nothing_and_the_extender_is_called_over_tls(plane: ControlPlane) -> None:
    before = plane.snapshot()
    assert "changed=0" in plane.role()
    assert plane.snapshot() == before
    asked = calls(plane)
    plane.cluster.create(gpu_pod("asks"))
    plane.cluster.until_running("asks")
    assert calls(plane) > asked


def test_there_and_back_to_the_byte(plane: ControlPlane) -> None:
    new = plane.read(MANIFEST), plane.read(CONFIG), plane.cluster_configuration()
    assert "changed=1" in plane.absent("--check", "--diff")
    assert (plane.read(MANIFEST), plane.read(CONFIG), plane.cluster_configuration()) == new
    assert "changed=1" in plane.absent()
    assert "gpushare" not in plane.read(MANIFEST) + plane.cluster_configuration()
    assert plane.sh("ls -d /etc/kubernetes/gpushare 2>/dev/null || echo gone").strip() == "gone"
    before = plane.snapshot()
    assert "changed=0" in plane.absent()
    assert plane.snapshot() == before
    plane.cluster.create(plain_pod("plain"))
    plane.cluster.until_running("plain")
    predicted = plane.role("--check", "--diff")
    assert "+    - --config=/etc/kubernetes/gpushare/kube-scheduler.yaml" in predicted
    assert "+  - name: config" in predicted
    assert "changed=1" in plane.role()
    assert (plane.read(MANIFEST), plane.read(CONFIG), plane.cluster_configuration()) == new


@pytest.mark.parametrize(
    ("change", "pki", "words"),
    [
        (f"sed -i 's/^percentageOfNodesToScore:/parallelizm: 4\\n&/' {CONFIG}", "/etc/gpushare/pki", 'unknown field "parallelizm"'),
        (f"echo 'parallelism: -1' >> {CONFIG}", "/etc/gpushare/pki", "should be an integer value greater than zero"),
        (f"cp -r /etc/gpushare/pki {OTHER_PKI} && echo garbage > {OTHER_PKI}/scheduler/ca.crt", OTHER_PKI, "root certificates"),
    ],
)
def test_a_wrong_configuration_is_stopped_before_the_write_in_the_schedulers_own_words(
    plane: ControlPlane, change: str, pki: str, words: str
) -> None:
    config = plane.read(CONFIG)
    plane.sh(change)
    try:
        wrong = plane.snapshot()
        output = plane.role("-e", f"gpushare_pki_dir={pki}", fails=True)
        assert "nothing was written. It says:" in output
        # The scheduler's log line quotes it, and Ansible quotes the line.
        assert words in output.replace("\\", "")
        assert plane.snapshot() == wrong
    finally:
        plane.write(CONFIG, config)


def test_one_that_passes_the_check_and_does_not_reach_the_extender_is_put_back_and_the_cluster_schedules_on(plane: ControlPlane) -> None:
    """An authority that has not signed the extender's certificate: the scheduler starts, and its calls fail."""
    cluster, before = plane.cluster, (plane.read(MANIFEST), plane.read(CONFIG), plane.cluster_configuration())
    plane.sh(f"cp -r /etc/gpushare/pki {OTHER_PKI} && cp /etc/kubernetes/pki/ca.crt {OTHER_PKI}/scheduler/ca.crt")
    run = plane.start_role("-e", f"gpushare_pki_dir={OTHER_PKI}", "-e", "gpushare_scheduler_timeout=30")
    try:
        cluster.until("the new configuration is in place", lambda: OTHER_PKI in plane.read(MANIFEST), 60)
        cluster.create(plain_pod("meanwhile"))
        cluster.until("a plain pod is placed meanwhile", lambda: is_placed(cluster, "meanwhile"), 60)
        assert run.poll() is None
        assert OTHER_PKI in plane.read(MANIFEST)
    finally:
        output = run.communicate(timeout=300)[0]
    assert run.returncode != 0
    assert "has not called the extender" in output
    assert "certificate signed by unknown authority" in output
    assert "what was there is restored" in output
    assert (plane.read(MANIFEST), plane.read(CONFIG), plane.cluster_configuration()) == before
    assert foreign(plane) == []
    cluster.create(gpu_pod("after"))
    cluster.until_running("meanwhile", "after")
    assert "changed=0" in plane.role()


def test_one_that_passes_the_check_and_never_schedules_is_put_back(plane: ControlPlane) -> None:
    """A lease in a namespace that does not exist, asked for by a file that lies where ours would go."""
    plane.absent()
    cluster, before, cluster_before = plane.cluster, plane.read(MANIFEST), plane.cluster_configuration()
    theirs = "\n".join(
        [
            "apiVersion: kubescheduler.config.k8s.io/v1",
            "kind: KubeSchedulerConfiguration",
            "clientConnection: {kubeconfig: /etc/kubernetes/scheduler.conf}",
            "leaderElection: {leaderElect: true, resourceNamespace: nowhere}  # ticket 7",
            "",
        ]
    )
    plane.write(CONFIG, theirs)
    try:
        assert "competes for the lease nowhere/kube-scheduler" in plane.role(fails=True)
        assert (plane.read(MANIFEST), plane.read(CONFIG), plane.cluster_configuration()) == (before, theirs, cluster_before)
        run = plane.start_role("-e", "gpushare_scheduler_timeout=20", "-e", "gpushare_scheduler_lease=nowhere/kube-scheduler")
        cluster.until("the new manifest is in place", lambda: "--config" in plane.read(MANIFEST), 60)
        cluster.create(plain_pod("waits"))
        output = run.communicate(timeout=300)[0]
        assert run.returncode != 0
        assert "does not hold its lease nowhere/kube-scheduler" in output
        assert "what was there is restored" in output
        assert (plane.read(MANIFEST), plane.read(CONFIG), plane.cluster_configuration()) == (before, theirs, cluster_before)
        cluster.until_running("waits")
    finally:
        plane.sh(f"rm -rf {CONFIG}")


def test_a_manifest_and_a_configuration_in_json_stay_so_and_kubelet_and_the_scheduler_read_them(plane: ControlPlane) -> None:
    plane.absent()
    kubeadms, theirs = plane.read(MANIFEST), "/etc/kubernetes/theirs/scheduler.json"
    config = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": "/etc/kubernetes/scheduler.conf"},
        "leaderElection": {"leaderElect": True},
    }
    pod = yaml.safe_load(kubeadms)
    container = pod["spec"]["containers"][0]
    container["command"].append(f"--config={theirs}")
    container["volumeMounts"].append({"name": "theirs", "mountPath": "/etc/kubernetes/theirs", "readOnly": True})
    pod["spec"]["volumes"].append({"name": "theirs", "hostPath": {"path": "/etc/kubernetes/theirs"}})
    pod["metadata"].setdefault("labels", {}).update(rack="08", row="y", build="12e4")
    texts = (json.dumps(pod, indent=2) + "\n", json.dumps(config, indent=4) + "\n")

    def mine() -> bool:
        """Whether kubelet runs what is on the disk."""
        found = plane.pod()
        return is_running(found) and f"--config={theirs}" in found["spec"]["containers"][0]["command"]

    try:
        plane.write(theirs, texts[1])
        plane.write(MANIFEST, texts[0])
        plane.cluster.until("kubelet runs the manifest in JSON", mine, 120)
        assert "changed=1" in plane.role()
        after = json.loads(plane.read(MANIFEST)), json.loads(plane.read(theirs))
        assert after[1]["extenders"][0]["urlPrefix"] == EXTENDER.url_prefix
        assert plane.read(theirs).startswith(texts[1].rstrip("}\n"))
        assert mine()
        plane.cluster.create(gpu_pod("by-json"))
        plane.cluster.until_running("by-json")
        assert "changed=0" in plane.role()
        # What is written anew as a whole means the same to kubelet: an alias, and strings that YAML could take for something else.
        plane.absent()
        assert (plane.read(MANIFEST), plane.read(theirs)) == texts
        alias = _yaml.dump(pod).replace("tier: control-plane", "tier: &tier control-plane\n    again: *tier")
        plane.write(MANIFEST, alias + "---\n")
        plane.cluster.until("kubelet runs the manifest with an alias", lambda: "again" in plane.pod()["metadata"]["labels"], 120)
        assert "changed=1" in plane.role()
        labels = plane.pod()["metadata"]["labels"]
        assert (labels["rack"], labels["row"], labels["build"]) == ("08", "y", "12e4")
    finally:
        plane.absent()
        plane.write(MANIFEST, kubeadms)
        plane.sh("rm -r /etc/kubernetes/theirs")
        plane.cluster.until("kubelet runs kubeadm's manifest", lambda: not mine() and plane.container(), 120)


# Kills.


def kill_at(plane: ControlPlane, state: str, victim: str) -> list[str]:
    """Carry out the plan for a state and be killed at a point. The points passed."""
    plane.ship()
    found = json.loads(plane.core("read"))
    where = (MANIFEST, CONFIG, Found.from_answer(found), EXTENDER)
    plan = plan_absent(*where) if state == "absent" else plan_present(*where)
    return plane.core("apply", state, f"'{victim}'", stdin=json.dumps(plan.for_module)).splitlines()


@pytest.mark.parametrize(
    ("state", "victims"),
    [
        # Every other point, and around every rename: tests/unit/plugins/scheduler/test_apply.py. Few here, because kubelet makes
        # longer and longer pauses when the same two manifests take turns.
        ("absent", [f"written {MANIFEST}", f"written {KUBEADM}"]),
        ("present", [f"written {MANIFEST}"]),
    ],
)
def test_killed_on_the_way_it_is_old_or_new_and_the_next_run_finishes(plane: ControlPlane, state: str, victims: list[str]) -> None:
    other = {"absent": "present", "present": "absent"}[state]
    texts = {}
    for one in (state, other):
        plane.role("-e", f"gpushare_scheduler_state={one}")
        texts[one] = plane.read(MANIFEST), plane.cluster_configuration()
    for victim in victims:
        plane.role("-e", f"gpushare_scheduler_state={other}")
        passed = kill_at(plane, state, victim)
        assert passed[-1] == "killed"
        assert victim in passed, passed
        assert plane.read(MANIFEST) in (texts[state][0], texts[other][0])
        assert foreign(plane) == []
        name = f"after-{victims.index(victim)}"
        plane.cluster.create(plain_pod(name))
        plane.cluster.until("a pod is placed after the kill", lambda name=name: is_placed(plane.cluster, name), 60)  # type: ignore[misc]
        plane.role("-e", f"gpushare_scheduler_state={state}")
        assert (plane.read(MANIFEST), plane.cluster_configuration()) == texts[state], victim
        before = plane.snapshot()
        assert "changed=0" in plane.role("-e", f"gpushare_scheduler_state={state}")
        assert plane.snapshot() == before, victim
    assert plane.sh("ls -A /etc/kubernetes | grep staged || true") == ""
