# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""verify names each planted fault, on its host, with its cure, and nothing else; without a fault it has nothing to say."""

from __future__ import annotations

import pytest

from blocks import lines
from e2e.cluster import CONTROL_PLANE
from e2e.manifests import pod
from verify import faults
from verify.verdict import Verify

ANYWHERE = ""
# The fault, where it is found and as what, and a word that its cure must have.
PLANTED = [
    (faults.extender_down, CONTROL_PLANE, "extender_down", "systemctl restart gpushare-extender"),
    (faults.port_taken, CONTROL_PLANE, "port_taken", "systemctl start gpushare-extender.socket gpushare-extender"),
    (faults.stale_scheduler_file, CONTROL_PLANE, "stale_scheduler_file", "move /etc/kubernetes/manifests/kube-scheduler.yaml.bak"),
    (faults.second_plugin, "gpu2", "second_plugin", "keep it off this node"),
    (faults.wrong_gpu_count, "gpu2", "wrong_gpu_count", "systemctl restart gpushare-device-plugin"),
    (faults.capacity_short, "gpu1", "capacity_short", "kubelet has an old list: restart it"),
    (faults.driver_mismatch, "gpu1", "driver_mismatch", "reboot the host"),
    (faults.certificate_expired, CONTROL_PLANE, "certificate_expired", "systemctl start gpushare-pki.service"),
    (faults.token_expired, "gpu1", "token_expired", "run site.yml again"),
    (faults.token_unreadable, "gpu1", "token_unreadable", "chown 0 /var/lib/gpushare-device-plugin/token"),
    (faults.token_exposed, "gpu1", "token_exposed", "chmod 0600 /var/lib/gpushare-device-plugin/token"),
    (faults.token_foreign, "gpu1", "token_foreign", "rm /var/lib/gpushare-device-plugin/token"),
    (faults.plugin_not_synced, "gpu1", "plugin_not_synced", "https://127.0.0.1:9"),
    (faults.state_not_kept, "gpu1", "state_not_kept", "mount it read-write"),
    (faults.extender_not_called, CONTROL_PLANE, "extender_not_called", "managedResources"),
    (faults.extender_ignorable, CONTROL_PLANE, "extender_entry_differs", "run site.yml again"),
    (faults.extender_impatient, CONTROL_PLANE, "extender_entry_differs", "run site.yml again"),
    (faults.files_changed, "gpu1", "files_changed", "site.yml --check --diff"),
    (faults.unit_overridden, "gpu1", "unit_overridden", "rm /etc/systemd/system/gpushare-device-plugin.service.d/50-mine.conf"),
    (faults.scheduler_older_than_file, CONTROL_PLANE, "scheduler_older_than_file", "run site.yml again"),
    (faults.extender_address_wrong, CONTROL_PLANE, "extender_address_wrong", "127.0.0.1:32766"),
    (faults.plugin_stopped, "gpu1", "plugin_stopped", "systemctl restart gpushare-device-plugin"),
    (faults.plugin_not_registered, "gpu1", "plugin_not_registered", "systemctl restart gpushare-device-plugin"),
    (faults.default_runtime_not_running, "gpu1", "default_runtime_not_running", "systemctl restart containerd.service"),
    (faults.cdi_stale, "gpu2", "cdi_stale", "nvidia-ctk cdi generate"),
    (faults.rbac_gone, ANYWHERE, "rbac_differs", "run site.yml again"),
    (faults.policy_gone, ANYWHERE, "policy_differs", "run site.yml again"),
    (faults.label_gone, "gpu2", "label_missing", "kubectl label node gpu2 gpushare.kubernetes/node=true"),
    (faults.runtime_differs, "gpu1", "runtime_differs", "built anew"),
    (faults.wrong_gpu, "gpu2", "wrong_gpu", "NVIDIA_VISIBLE_DEVICES"),
]


def test_nothing_to_say_and_everything_looked_at(verify: Verify) -> None:
    read_only = verify.run()
    assert read_only.findings == [], read_only.words
    assert read_only.looked_at == {"hosts": 3, "GPU nodes": 2, "containers": 2, "probe pods": 0}
    probed = verify.run("-e", "gpushare_verify_probe=always")
    assert probed.findings == [], probed.words
    assert probed.looked_at == {"hosts": 3, "GPU nodes": 2, "containers": 2, "probe pods": 2}
    assert "verified: 3 hosts, 2 GPU nodes, 2 containers, 2 probe pods" in probed.words
    assert [one for one in verify.cluster.pods("kube-system") if one["metadata"]["name"].startswith("gpushare-verify-")] == []


@pytest.mark.parametrize(("fault", "host", "code", "cure"), PLANTED, ids=[code for _fault, _host, code, _cure in PLANTED])
def test_a_planted_fault_is_named_with_its_cure(clean: Verify, fault: faults.Fault, host: str, code: str, cure: str) -> None:
    with fault(clean.cluster):
        verdict = clean.run()
    assert verdict.causes == {(host, code)}, verdict.words
    assert cure in verdict.one(code)["cure"]
    assert f"{host or 'cluster'}: {code}: found" in lines(verdict.words)


def test_a_container_with_a_gpu_and_without_a_request_is_a_warning(clean: Verify) -> None:
    with faults.gpu_without_request(clean.cluster):
        verdict = clean.run()
    assert verdict.status == 0, verdict.words
    assert [(one["host"], one["check"], one["severity"]) for one in verdict.findings] == [("gpu2", "gpu_without_request", "warning")]
    assert "no-request" in verdict.one("gpu_without_request")["found"]


def test_a_full_node_is_not_proven_and_no_fault(clean: Verify) -> None:
    cluster = clean.cluster
    name = cluster.create(pod("full", memory=14, node="gpu1"))["metadata"]["name"]
    other = cluster.create(pod("full-too", memory=16, node="gpu1"))["metadata"]["name"]
    try:
        cluster.until_running(name, other)
        verdict = clean.run("-e", "gpushare_verify_probe=always")
    finally:
        cluster.delete(name, other)
    assert verdict.status == 0, verdict.words
    assert [(one["host"], one["check"], one["severity"]) for one in verdict.findings] == [("gpu1", "not_proven", "note")]
    assert "not proven: no free unit on gpu1" in verdict.words
    assert verdict.looked_at["probe pods"] == 1


def test_a_probe_pod_of_a_killed_run_is_removed(clean: Verify) -> None:
    left = pod("gpushare-verify-gpu1", memory=1, node="gpu1")
    left["metadata"].update(namespace="kube-system", labels={"gpushare.kubernetes/probe": "verify"})
    clean.cluster.api.create("/api/v1/namespaces/kube-system/pods", left)
    verdict = clean.run()
    assert verdict.findings == [], verdict.words
    assert not [one for one in clean.cluster.pods("kube-system") if one["metadata"]["name"] == "gpushare-verify-gpu1"]


def test_a_host_that_cannot_be_reached_is_a_finding(clean: Verify) -> None:
    with faults.unreachable(clean.cluster, "gpu2"):
        verdict = clean.run()
    assert verdict.causes == {("gpu2", "not_checked")}, verdict.words
