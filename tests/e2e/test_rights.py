# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What the daemons may do with their tokens, from wherever, and what everybody else may not: RBAC and admission policies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from e2e.api import Api, Json
from e2e.callers import DRY, own_token, refused, somebody, with_token
from e2e.cluster import CONTROL_PLANE, Cluster
from e2e.manifests import pod

SYSTEM = "/api/v1/namespaces/kube-system"
PODS = "/api/v1/namespaces/default/pods"
INDEX = "ALIYUN_COM_GPU_MEM_IDX"


def annotated(key: str, value: str | None = "7") -> Json:
    return {"metadata": {"annotations": {key: value}}}


@contextmanager
def a_pod(cluster: Cluster, manifest: Json, *, running: bool = True) -> Iterator[str]:
    name: str = cluster.create(manifest)["metadata"]["name"]
    try:
        if running:
            cluster.until_running(name)
        yield name
    finally:
        cluster.delete(name)


@pytest.fixture(scope="module")
def pods(cluster: Cluster) -> Iterator[dict[str, str]]:
    """A running pod with memory of a card on each GPU node, by node."""
    with (
        a_pod(cluster, pod("identity-1", memory=1, node="gpu1")) as first,
        a_pod(cluster, pod("identity-2", memory=1, node="gpu2")) as other,
    ):
        yield {"gpu1": first, "gpu2": other}


@pytest.fixture
def plugin(cluster: Cluster) -> Api:
    """The device plugin of gpu1, by its own token."""
    return with_token(cluster, own_token(cluster, "gpu1", "gpushare-device-plugin"))


@pytest.fixture
def extender(cluster: Cluster) -> Api:
    return with_token(cluster, own_token(cluster, CONTROL_PLANE, "gpushare-extender"))


@pytest.fixture(scope="module")
def tenant(cluster: Cluster) -> Iterator[Api]:
    """Somebody who may edit everything in the namespace default."""
    bindings = "/apis/rbac.authorization.k8s.io/v1/namespaces/default/rolebindings"
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"}
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "tenant"}
    binding = {"metadata": {"name": "identity-tenant"}, "roleRef": role, "subjects": [subject]}
    cluster.api.create(bindings, binding)
    yield somebody(cluster, "tenant")
    cluster.api.delete(f"{bindings}/identity-tenant")


# A device plugin.


def test_a_plugin_publishes_the_cards_of_its_own_node(plugin: Api) -> None:
    plugin.patch("/api/v1/nodes/gpu1", annotated("gpushare/cards", "{}"), **DRY)


@pytest.mark.parametrize("verb", ["get", "patch"])
def test_a_plugin_has_no_other_node(plugin: Api, verb: str) -> None:
    call = {
        "get": lambda: plugin.get("/api/v1/nodes/gpu2"),
        "patch": lambda: plugin.patch("/api/v1/nodes/gpu2", annotated("gpushare/cards"), **DRY),
    }
    assert "cannot" in refused(call[verb])


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"metadata": {"labels": {"a": "b"}}}, "nothing but annotations of gpushare"),
        ({"spec": {"unschedulable": True}}, "nothing but annotations of gpushare"),
        (annotated("volumes.kubernetes.io/controller-managed-attach-detach"), "may not change the annotations volumes.kubernetes.io"),
    ],
)
def test_a_plugin_changes_nothing_else_of_its_node(plugin: Api, body: Json, words: str) -> None:
    assert words in refused(lambda: plugin.patch("/api/v1/nodes/gpu1", body, **DRY))


def test_a_plugin_corrects_the_pods_of_its_node_only(plugin: Api, pods: dict[str, str]) -> None:
    plugin.patch(f"{PODS}/{pods['gpu1']}", annotated(INDEX), **DRY)
    words = refused(lambda: plugin.patch(f"{PODS}/{pods['gpu2']}", annotated(INDEX), **DRY))
    assert "only its own node and the pods that are bound to it" in words


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (annotated("team"), "may not change the annotations team"),
        ({"metadata": {"labels": {"app": "other"}}}, "nothing but annotations of gpushare"),
        ({"spec": {"activeDeadlineSeconds": 1}}, "nothing but annotations of gpushare"),
    ],
)
def test_a_plugin_changes_nothing_else_of_a_pod(plugin: Api, pods: dict[str, str], body: Json, words: str) -> None:
    assert words in refused(lambda: plugin.patch(f"{PODS}/{pods['gpu1']}", body, **DRY))


@pytest.mark.parametrize("who", ["plugin", "extender"])
def test_a_daemon_gets_no_tokens_but_its_own(who: str, request: pytest.FixtureRequest) -> None:
    caller: Api = request.getfixturevalue(who)
    own, other = "gpushare-device-plugin-gpu1", "gpushare-extender"
    own, other = (own, other) if who == "plugin" else (other, own)
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 600}}
    assert caller.create(f"{SYSTEM}/serviceaccounts/{own}/token", body)["status"]["token"]
    for name in (other, "gpushare-device-plugin-gpu2", "default"):
        assert "cannot create" in refused(lambda: caller.create(f"{SYSTEM}/serviceaccounts/{name}/token", body))  # noqa: B023
    assert "cannot list" in refused(lambda: caller.get("/api/v1/secrets"))
    assert "cannot delete" in refused(lambda: caller.delete(f"{PODS}/x"))


MAPS = f"{SYSTEM}/configmaps"


def config_map(name: str, **data: str) -> Json:
    return {"metadata": {"name": name}, "data": data}


def test_a_plugin_has_one_config_map_the_originals_of_its_own_node(cluster: Cluster, plugin: Api) -> None:
    own, body = f"{MAPS}/unhealthy-gpu-gpu1", config_map("unhealthy-gpu-gpu1", gpus="0,1")
    plugin.create(MAPS, body)
    try:
        plugin.patch(own, {"data": {"gpus": "1"}})
        assert plugin.get(own)["data"] == {"gpus": "1"}
        assert "with the key gpus" in refused(lambda: plugin.patch(own, {"data": {"other": "x"}}, **DRY))
        assert "cannot delete" in refused(lambda: plugin.delete(own))
    finally:
        cluster.api.delete(own)
    for name in ("unhealthy-gpu-gpu2", "unhealthy-gpu-gpu10", "kubeadm-config-2"):
        assert "may write one ConfigMap only" in refused(lambda: plugin.create(MAPS, config_map(name, gpus="0"), **DRY))  # noqa: B023
    assert "with the key gpus" in refused(lambda: plugin.create(MAPS, config_map("unhealthy-gpu-gpu1", other="x"), **DRY))
    elsewhere = "/api/v1/namespaces/default/configmaps"
    assert "cannot create" in refused(lambda: plugin.create(elsewhere, body, **DRY))
    for name in ("unhealthy-gpu-gpu2", "kubeadm-config"):
        assert "cannot get" in refused(lambda: plugin.get(f"{MAPS}/{name}"))  # noqa: B023
        assert "cannot patch" in refused(lambda: plugin.patch(f"{MAPS}/{name}", {"data": {"gpus": "0"}}, **DRY))  # noqa: B023
    assert "cannot list" in refused(lambda: plugin.get(MAPS))


# The extender.


def binding(name: str, key: str) -> Json:
    target = {"apiVersion": "v1", "kind": "Node", "name": "gpu1"}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name, "annotations": {key: "0"}}, "target": target}


@pytest.fixture
def unbound(cluster: Cluster) -> Iterator[str]:
    """A pod that no scheduler looks at."""
    manifest = pod("identity-unbound", memory=1)
    manifest["spec"]["schedulerName"] = "nobody"
    with a_pod(cluster, manifest, running=False) as name:
        yield name


def test_the_extender_binds_with_annotations_of_ours_only(extender: Api, unbound: str) -> None:
    extender.create(f"{PODS}/{unbound}/binding", binding(unbound, INDEX), **DRY)
    words = refused(lambda: extender.create(f"{PODS}/{unbound}/binding", binding(unbound, "team"), **DRY))
    assert "its annotations in Bindings" in words
    assert "team" in words


def test_the_extender_recalls_pods_and_changes_nothing_else(extender: Api, unbound: str) -> None:
    extender.patch(f"{PODS}/{unbound}", annotated("gpushare/recalled"), **DRY)
    assert INDEX in refused(lambda: extender.patch(f"{PODS}/{unbound}", annotated(INDEX), **DRY))
    labels = {"metadata": {"labels": {"a": "b"}}}
    assert "nothing but annotations" in refused(lambda: extender.patch(f"{PODS}/{unbound}", labels, **DRY))
    assert "cannot patch" in refused(lambda: extender.patch("/api/v1/nodes/gpu1", annotated("gpushare/cards"), **DRY))


def test_the_extender_reads_budgets_and_its_schedulers_lease_and_changes_neither(extender: Api) -> None:
    leases, budgets = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases", "/apis/policy/v1/poddisruptionbudgets"
    assert extender.get(f"{leases}/kube-scheduler")["spec"]["holderIdentity"]
    assert "items" in extender.get(budgets)
    assert "cannot list" in refused(lambda: extender.get(leases))
    assert "cannot get" in refused(lambda: extender.get(f"{leases}/kube-controller-manager"))
    assert "cannot patch" in refused(lambda: extender.patch(f"{leases}/kube-scheduler", {"spec": {"holderIdentity": "x"}}, **DRY))
    of_default = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
    assert "cannot create" in refused(lambda: extender.create(of_default, {"metadata": {"name": "x"}, "spec": {}}, **DRY))
    assert "cannot create" in refused(lambda: extender.create(MAPS, config_map("unhealthy-gpu-gpu1", gpus="0"), **DRY))


# Everybody else.


def test_a_tenant_forges_nothing(tenant: Api, pods: dict[str, str], unbound: str) -> None:
    forged = pod("identity-forged", memory=1)
    tenant.create(PODS, forged, **DRY)
    forged["metadata"]["annotations"] = {INDEX: "1", "team": "x"}
    words = refused(lambda: tenant.create(PODS, forged, **DRY))
    assert f"the annotations {INDEX} say which GPU memory is whose" in words
    assert "not tenant" in words
    assert "aliyun.com/gpu-mem" in words
    for body in (annotated(INDEX), annotated(INDEX, None), annotated("scheduler.framework.gpushare.allocation", "{}")):
        refused(lambda: tenant.patch(f"{PODS}/{pods['gpu1']}", body, **DRY))  # noqa: B023
    refused(lambda: tenant.patch(f"{PODS}/{unbound}", annotated("gpushare/recalled"), **DRY))


def test_a_tenant_works_as_ever(tenant: Api, pods: dict[str, str]) -> None:
    """Annotations of others, and wishes to gpushare, are theirs."""
    annotations = {"team": "x", "gpushare/models": "T4"}
    tenant.patch(f"{PODS}/{pods['gpu1']}", {"metadata": {"labels": {"a": "b"}, "annotations": annotations}}, **DRY)


def test_a_forged_template_says_why_it_has_no_pods(cluster: Cluster, tenant: Api) -> None:
    """The pods of a Deployment are made by a controller; its tenant must hear of it."""
    template = {"metadata": {"labels": {"app": "forged"}, "annotations": {INDEX: "1"}}, "spec": pod("x", memory=1)["spec"]}
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": "forged"}}, "template": template}
    deployments = "/apis/apps/v1/namespaces/default/deployments"
    tenant.create(deployments, {"metadata": {"name": "identity-forged"}, "spec": spec})

    def told() -> bool:
        events = cluster.api.items("/api/v1/namespaces/default/events", fieldSelector="reason=FailedCreate")
        return any("only gpushare sets" in event["message"] for event in events)

    try:
        cluster.until("an event says why there is no pod", told, 30)
    finally:
        cluster.api.delete(f"{deployments}/identity-forged", propagationPolicy="Background")


def test_kubelet_reports_its_status_and_publishes_no_cards(cluster: Cluster) -> None:
    kubelet = somebody(cluster, "system:node:gpu1", "system:nodes")
    condition = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is posting ready status"}
    kubelet.patch("/api/v1/nodes/gpu1/status", {"status": {"conditions": [condition]}}, **DRY)
    for path in ("/api/v1/nodes/gpu1", "/api/v1/nodes/gpu1/status"):
        assert "gpushare/cards" in refused(lambda: kubelet.patch(path, annotated("gpushare/cards"), **DRY))  # noqa: B023


def test_an_administrator_is_not_in_the_way(cluster: Cluster, pods: dict[str, str]) -> None:
    for path in ("/api/v1/nodes/gpu1", f"{PODS}/{pods['gpu1']}"):
        cluster.api.patch(path, {"metadata": {"labels": {"a": "b"}, "annotations": {"team": "x", INDEX: "5"}}}, **DRY)
    cluster.api.patch("/api/v1/nodes/gpu1", {"spec": {"unschedulable": True}}, **DRY)
