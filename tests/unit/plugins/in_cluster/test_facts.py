# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What is read of a cluster before an installation."""

from __future__ import annotations

from ansible_collections.gpushare.kubernetes.plugins.module_utils._in_cluster.facts import gather
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._answers import believe
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._results import RESULTS

from unit.plugins.in_cluster.kubectl import Answer, Fake, Json, named

SPACE = "gpushare-system"


def node(name: str, label: bool = True, images: int = 1) -> Json:
    status = {
        "nodeInfo": {"architecture": "amd64"},
        "conditions": [{"type": "Ready", "status": "True"}],
        "images": [{"names": [f"image-{number}"]} for number in range(images)],
    }
    return {"metadata": {"name": name, "labels": {"gpushare.kubernetes/node": "true"} if label else {}}, "status": status}


CONTAINER = {"args": ["--memory-unit=MiB"]}
ANSWERS: dict[str, Answer] = {
    "get --raw /version": {"gitVersion": "v1.36.3"},
    "get --raw /apis/admissionregistration.k8s.io/v1": {"resources": [{"kind": "ValidatingAdmissionPolicy"}]},
    "get --raw /api/v1/nodes": [node("gpu1"), node("gpu2", images=50), node("cp1", label=False)],
    "get --raw /apis/apps/v1/daemonsets": [
        named("DaemonSet", "gpushare-device-plugin", SPACE, spec={"template": {"spec": {"containers": [CONTAINER]}}})
    ],
    "get --raw /api/v1/namespaces/kube-system/serviceaccounts": [named("ServiceAccount", "gpushare-device-plugin-gpu1", "kube-system")],
    "get --raw /api/v1/namespaces/gpushare-system": {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}},
    "get --raw /apis/node.k8s.io/v1/runtimeclasses": [{"metadata": {"name": "nvidia"}}],
}


def test_what_is_there() -> None:
    facts = gather(Fake(ANSWERS).kubectl, SPACE, [])
    assert believe(facts, RESULTS["gpushare_in_cluster_info"]) == facts
    assert [one["name"] for one in facts["nodes"]] == ["gpu1", "gpu2"]
    # kubelet tells of 50 images, so the second may have more.
    assert [one["all"] for one in facts["nodes"]] == [True, False]
    assert (facts["unit"], facts["enforces"], facts["number"], facts["may_bind"]) == ("MiB", "restricted", 3, "")
    assert facts["on_hosts"] == ["gpushare-device-plugin-gpu1"]
    assert facts["others"] == []


def test_nodes_by_name() -> None:
    facts = gather(Fake(ANSWERS).kubectl, SPACE, ["cp1", "gone"])
    assert ([one["name"] for one in facts["nodes"]], facts["missing"]) == (["cp1"], ["gone"])


def test_who_may_not_bind_is_told_in_the_servers_words() -> None:
    fake = Fake({**ANSWERS, "create --dry-run=server": lambda: RuntimeError("Forbidden: attempting to grant")})
    assert "attempting to grant" in gather(fake.kubectl, SPACE, [])["may_bind"]
    assert all("--dry-run=server" in words for words in fake.writes())
