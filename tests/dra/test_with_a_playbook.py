# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""playbooks/cluster.yml with the back end dra, from a cluster without gpushare: a pod, a change to the extender, and the end.

The last file of the suite: it makes the lab bare.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.names import LABEL_PROBE
from ansible_collections.gpushare.kubernetes.plugins.module_utils._in_cluster.pods import CLEANUP

from cluster_mode.in_cluster import InCluster, archive, bring_images
from dra.shares import SLICES, claims, templates
from e2e.cluster import GPU_NODES, MEMORY, Cluster, is_running
from e2e.manifests import pod
from labs import IN_CLUSTER, Labs

pytestmark = [pytest.mark.suite("dra"), pytest.mark.timeout(1800)]

DRA: dict[str, Any] = {"gpushare_backend": "dra", "gpushare_device_strategy": "cdi", "gpushare_cluster_metrics": False}


@pytest.fixture(scope="module")
def lab(labs: Labs) -> Iterator[Cluster]:
    cluster = labs.bare(IN_CLUSTER)
    bring_images(cluster, archive())
    yield cluster
    cluster.clear()


@pytest.fixture
def playbook(lab: Cluster, tmp_path: Path) -> InCluster:
    return InCluster(lab, tmp_path)


def made(cluster: Cluster, name: str) -> None:
    cluster.create(pod(name, memory=2))
    cluster.until(f"{name} runs", lambda: is_running(cluster.pod(name)), 120)


def units(cluster: Cluster) -> list[int]:
    return [int(cluster.node(name)["status"]["allocatable"].get(MEMORY, 0)) for name in GPU_NODES]


def test_a_limit_becomes_a_claim_after_the_playbook_and_a_second_run_changes_nothing(playbook: InCluster, lab: Cluster) -> None:
    playbook.play(**DRA)
    assert {one["spec"]["nodeName"] for one in lab.api.items(SLICES)} == {*GPU_NODES}
    assert "default" in templates(lab)
    made(lab, "claims")
    (claim,) = claims(lab)
    assert claim["status"]["reservedFor"][0]["uid"] == lab.pod("claims")["metadata"]["uid"]
    results, said = playbook.play(**DRA)
    assert results.changes() == {}, said


def test_the_dashboard_shows_a_person_the_gpu_that_a_pod_has_by_its_claim(playbook: InCluster, lab: Cluster) -> None:
    """It follows the claims of pods that come later; a person without rights sees the same GPUs, and no pod."""
    lab.kubectl("create", "serviceaccount", "nobody")
    lab.kubectl("create", "serviceaccount", "person")
    lab.kubectl("create", "rolebinding", "person-views", "--clusterrole=view", "--serviceaccount=default:person")
    made(lab, "seen")
    try:
        mine, others = (lab.kubectl("create", "token", name).strip() for name in ("person", "nobody"))

        def units_of(name: str) -> int:
            status, text = playbook.dashboard(mine)
            assert status == 200, text[:500]
            found = [one for node in json.loads(text)["nodes"] for one in node["pods"] if one[:2] == ["default", name]]
            return sum(sum((one[3] or {}).values()) for one in found)

        lab.until("the page has both pods", lambda: (units_of("claims"), units_of("seen")) == (2, 2), 60)
        status, text = playbook.dashboard(others)
        assert (status, "seen" in text) == (200, False)
        page = json.loads(text)
        assert sum(len(node["gpus"]) for node in page["nodes"]) > 0
        assert page["sums"]["allocated"] == 4 * 1024
    finally:
        lab.kubectl("delete", "rolebinding/person-views", "serviceaccount/person", "serviceaccount/nobody")
        lab.delete("seen")


def test_the_other_back_end_is_rejected_while_a_pod_has_a_gpu(playbook: InCluster, lab: Cluster) -> None:
    before = playbook.objects()
    said = playbook.rejected()
    assert "default/claims" in said
    assert "nothing was changed" in said
    assert {*playbook.objects()} == {*before}
    assert is_running(lab.pod("claims"))


def test_afterwards_it_takes_the_place_and_the_nodes_keep_their_label(playbook: InCluster, lab: Cluster) -> None:
    lab.delete("claims")
    playbook.play()
    assert lab.api.items(SLICES) == []
    assert templates(lab) == set()
    lab.until("each GPU node has units", lambda: all(units(lab)), 120)
    made(lab, "limits")
    lab.delete("limits")


@contextmanager
def no_cleanup(cluster: Cluster) -> Iterator[None]:
    """An admission of others, which rejects the pods that remove the device plugin's files from the nodes."""
    name = "others-no-cleanup"
    rules = [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}]
    mine = f"object.metadata.?labels[?'{LABEL_PROBE}'].orValue('') == '{CLEANUP}'"
    policy = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": rules},
        "validations": [{"expression": f"!({mine})", "message": "others want no such pods"}],
    }
    specs = {"": policy, "Binding": {"policyName": name, "validationActions": ["Deny"]}}
    kind, common = "ValidatingAdmissionPolicy", {"apiVersion": "admissionregistration.k8s.io/v1", "metadata": {"name": name}}
    made_of_it = [{**common, "kind": f"{kind}{end}", "spec": spec} for end, spec in specs.items()]
    cluster.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": made_of_it}))
    try:
        yield
    finally:
        cluster.kubectl("delete", "validatingadmissionpolicybindings,validatingadmissionpolicies", name)


def test_a_change_that_fails_in_the_middle_is_taken_back_by_the_former_value(playbook: InCluster, lab: Cluster) -> None:
    before = {*playbook.objects()}
    with no_cleanup(lab):
        assert "others want no such pods" in playbook.rejected(**DRA)
        assert playbook.pods("gpushare-device-plugin") == []
    playbook.play()
    assert {*playbook.objects()} == before
    made(lab, "taken-back")
    lab.delete("taken-back")
    results, said = playbook.play()
    assert results.changes() == {}, said


def test_and_back_to_claims_and_to_nothing(playbook: InCluster, lab: Cluster) -> None:
    playbook.play(**DRA)
    made(lab, "again")
    lab.delete("again")
    playbook.play(**DRA, gpushare_cluster_state="absent")
    assert lab.api.items(SLICES) == []
    assert templates(lab) == set()
    assert [name for name in playbook.objects() if "gpushare" in name] == []
