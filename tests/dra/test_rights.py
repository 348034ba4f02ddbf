# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The tokens of the back end's pods, as kubelet gives them: each does what its daemon does, and nothing else."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from functools import partial

import pytest

from cluster_mode.in_cluster import NAMESPACE
from dra.shares import CLAIMS, SLICES, TEMPLATES, claims, templates
from e2e.api import Api, ApiError, Json
from e2e.clients import DRY, forbidden, with_token
from e2e.cluster import GPU_NODES, MEMORY, Cluster
from e2e.manifests import pod

pytestmark = pytest.mark.suite("dra")

PLUGIN, KEEPER = "gpushare-device-plugin", "gpushare-claims"
OWN = "may write only the ResourceSlices of gpushare.kubernetes of its own node"
ONLY = "gpushare-claims may create one ResourceClaimTemplate in each namespace"
PODS, NODES, SECRETS = "/api/v1/namespaces/default/pods", "/api/v1/nodes", f"/api/v1/namespaces/{NAMESPACE}/secrets"
MADE = "/apis/resource.k8s.io/v1/namespaces/default"
OTHER = "of-the-rights"


def taken(cluster: Cluster, app: str, node: str = "") -> Api:
    """The API server, asked with the token that kubelet has put into a pod: what root of its node has."""
    pods = cluster.api.items(f"/api/v1/namespaces/{NAMESPACE}/pods", labelSelector=f"app.kubernetes.io/name={app}")
    found = next(one for one in pods if one["spec"].get("nodeName", "") == (node or one["spec"].get("nodeName")))
    place = f"/var/lib/kubelet/pods/{found['metadata']['uid']}/volumes/kubernetes.io~projected/*/token"
    return with_token(cluster, cluster.on(found["spec"]["nodeName"], "sh", "-ec", f"cat {place}").strip())


@pytest.fixture
def plugin(cluster: Cluster) -> Api:
    return taken(cluster, PLUGIN, "gpu1")


@pytest.fixture
def keeper(cluster: Cluster) -> Api:
    return taken(cluster, KEEPER)


def slice_of(cluster: Cluster, node: str) -> Json:
    """The slice of a node, as its device plugin has written it."""
    (found,) = (one for one in cluster.api.items(SLICES) if one["spec"]["nodeName"] == node)
    return found


def new(found: Json, name: str, **spec: object) -> Json:
    """Another slice like that one."""
    body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name}}
    return {**body, "spec": {**copy.deepcopy(found["spec"]), **spec}}


def generation(found: Json) -> Json:
    """A change that a device plugin makes."""
    return {"spec": {"pool": {**found["spec"]["pool"], "generation": found["spec"]["pool"]["generation"] + 1}}}


def test_a_plugin_writes_the_slices_of_its_own_node_alone(cluster: Cluster, plugin: Api) -> None:
    own, other = (slice_of(cluster, node) for node in ("gpu1", "gpu2"))
    place, elsewhere = (f"{SLICES}/{one['metadata']['name']}" for one in (own, other))
    # What it is there for.
    assert plugin.patch(place, generation(own), **DRY)["metadata"]["uid"] == own["metadata"]["uid"]
    assert plugin.create(SLICES, new(own, "gpu1-more"), **DRY)["metadata"]["name"] == "gpu1-more"
    assert plugin.delete(place, **DRY)["metadata"]["name"] == own["metadata"]["name"]
    # And what it is not.
    assert OWN in forbidden(lambda: plugin.patch(elsewhere, generation(other), **DRY))
    assert OWN in forbidden(lambda: plugin.create(SLICES, new(other, "gpu2-more"), **DRY))
    assert OWN in forbidden(lambda: plugin.delete(elsewhere, **DRY))
    assert OWN in forbidden(lambda: plugin.create(SLICES, new(own, "gpu1-nics", driver="nics.example.com"), **DRY))
    everywhere = new(own, "everywhere", allNodes=True)
    del everywhere["spec"]["nodeName"]
    assert OWN in forbidden(lambda: plugin.create(SLICES, everywhere, **DRY))
    # For Kubernetes it is no node, and so nobody's slices are its own by the name of a pool.
    assert OWN in forbidden(lambda: plugin.create(SLICES, new(own, "gpu1-of-gpu2", nodeName="gpu2"), **DRY))
    assert "cannot deletecollection" in forbidden(lambda: plugin.delete(SLICES, **DRY))


def test_a_slice_does_not_move_to_another_node_or_driver(cluster: Cluster, plugin: Api) -> None:
    own = slice_of(cluster, "gpu1")
    place = f"{SLICES}/{own['metadata']['name']}"
    for change in ({"nodeName": "gpu2"}, {"driver": "nics.example.com"}):
        with pytest.raises(ApiError):
            plugin.patch(place, {"spec": change}, **DRY)


def test_a_plugin_without_a_node_in_its_token_writes_no_slice(cluster: Cluster) -> None:
    """A token that somebody asked for by hand."""
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 600}}
    made = cluster.api.create(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{PLUGIN}/token", request)
    unbound = with_token(cluster, made["status"]["token"])
    for node in GPU_NODES:
        found = slice_of(cluster, node)
        assert OWN in forbidden(partial(unbound.patch, f"{SLICES}/{found['metadata']['name']}", generation(found), **DRY))
    long = {**request, "spec": {"expirationSeconds": 7200}}
    with pytest.raises(ApiError, match="3607"):
        cluster.api.create(f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/{KEEPER}/token", long)


def test_a_plugin_reads_claims_one_by_one_and_changes_none(empty: Cluster, plugin: Api) -> None:
    for node in GPU_NODES:
        empty.create(pod(f"on-{node}", memory=1, node=node))
    empty.until_running(*(f"on-{node}" for node in GPU_NODES))
    for claim in claims(empty):
        place = f"{MADE}/resourceclaims/{claim['metadata']['name']}"
        assert plugin.get(place)["metadata"]["uid"] == claim["metadata"]["uid"]
        for ask in (
            partial(plugin.patch, place, {"metadata": {"labels": {"a": "b"}}}, **DRY),
            partial(plugin.patch, f"{place}/status", {"status": {"allocation": None}}, **DRY),
            partial(plugin.delete, place, **DRY),
        ):
            assert "cannot" in forbidden(ask)
    assert "cannot list" in forbidden(lambda: plugin.get(CLAIMS))
    for node in GPU_NODES:
        for place in (f"{PODS}/on-{node}", f"{PODS}/on-{node}/status", f"{NODES}/{node}"):
            assert "cannot patch" in forbidden(partial(plugin.patch, place, {"metadata": {"annotations": {"a": "b"}}}, **DRY))
        assert "cannot delete" in forbidden(partial(plugin.delete, f"{PODS}/on-{node}", **DRY))
    assert "cannot create" in forbidden(lambda: plugin.create(PODS, pod("more"), **DRY))
    assert "cannot list" in forbidden(lambda: plugin.get(SECRETS))


def test_a_plugin_writes_what_pods_use_into_the_status_of_its_own_node_and_nothing_else(cluster: Cluster, plugin: Api) -> None:
    def patch(node: str, change: Json) -> Json:
        return plugin.patch(f"{NODES}/{node}/status", change, **DRY)

    def annotated(**values: str) -> Json:
        return {"metadata": {"annotations": values}}

    assert patch("gpu1", annotated(**{"gpushare/use": "{}"}))["metadata"]["annotations"]["gpushare/use"] == "{}"
    assert "only its own node" in forbidden(partial(patch, "gpu2", annotated(**{"gpushare/use": "{}"})))
    assert "the annotations gpushare/gpus" in forbidden(partial(patch, "gpu1", annotated(**{"gpushare/gpus": "{}"})))
    assert "only annotations" in forbidden(partial(patch, "gpu1", {"status": {"capacity": {"cpu": "999"}}}))
    assert "cannot create" in forbidden(lambda: plugin.create(f"{MADE}/resourceclaimtemplates", template("gpushare"), **DRY))


def template(name: str) -> Json:
    """The template as gpushare-claims makes it."""
    exactly = {"deviceClassName": "gpushare", "allocationMode": "ExactCount", "count": 1, "selectors": [{"cel": {"expression": "false"}}]}
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {"name": name},
        "spec": {"spec": {"devices": {"requests": [{"name": "gpu", "exactly": exactly}]}}},
    }


@pytest.fixture
def without(cluster: Cluster) -> Iterator[str]:
    """The templates of a namespace where an administrator's access is possible: elsewhere the API server rejects it before our policies."""
    cluster.kubectl("create", "namespace", OTHER)
    cluster.kubectl("label", "namespace", OTHER, "resource.kubernetes.io/admin-access=true")
    try:
        cluster.until("the namespace has its template", lambda: OTHER in templates(cluster), 30)
        yield f"/apis/resource.k8s.io/v1/namespaces/{OTHER}/resourceclaimtemplates"
    finally:
        cluster.kubectl("delete", "namespace", OTHER, seconds=120)


def test_the_keeper_makes_the_one_template_and_nothing_else(cluster: Cluster, keeper: Api, without: str) -> None:
    # The template that it may make is there; the API server says so after all policies have let it pass.
    with pytest.raises(ApiError) as error:
        keeper.create(without, template("gpushare"), **DRY)
    assert error.value.status == 409
    changed: list[tuple[str, Callable[[Json], object]]] = [
        ("another class", lambda exactly: exactly.update(deviceClassName="other")),
        ("devices pass", lambda exactly: exactly["selectors"][0]["cel"].update(expression="true")),
        ("no selector", lambda exactly: exactly.pop("selectors")),
        ("one more selector", lambda exactly: exactly["selectors"].append({"cel": {"expression": "true"}})),
        ("of an administrator", lambda exactly: exactly.update(adminAccess=True)),
        ("an amount", lambda exactly: exactly.update(capacity={"requests": {"memory": "1Gi"}})),
    ]
    for what, change in changed:
        made = template("gpushare")
        change(made["spec"]["spec"]["devices"]["requests"][0]["exactly"])
        assert ONLY in forbidden(partial(keeper.create, without, made, **DRY)), what
    tolerating = template("gpushare")
    tolerating["spec"]["spec"]["devices"]["requests"][0]["exactly"]["tolerations"] = [{"operator": "Exists"}]
    # Two policies reject it, and the API server names the first.
    assert "gpushare-dra-" in forbidden(partial(keeper.create, without, tolerating, **DRY))
    two = template("gpushare")
    requests = two["spec"]["spec"]["devices"]["requests"]
    requests.append({**requests[0], "name": "second"})
    labelled, owned = template("gpushare"), template("gpushare")
    labelled["spec"]["metadata"] = {"annotations": {"a": "b"}}
    owned["metadata"]["finalizers"] = ["example.com/stays"]
    for made in (two, labelled, owned, template("other")):
        assert ONLY in forbidden(partial(keeper.create, without, made, **DRY))
    place = f"{without}/gpushare"
    assert "cannot delete" in forbidden(lambda: keeper.delete(place, **DRY))
    assert "cannot patch" in forbidden(lambda: keeper.patch(place, {"metadata": {"labels": {"a": "b"}}}, **DRY))
    for ask in (
        lambda: keeper.get(PODS),
        lambda: keeper.create(PODS, pod("more", memory=1), **DRY),
        lambda: keeper.get(SECRETS),
        lambda: keeper.get(NODES),
        lambda: keeper.get(CLAIMS),
        lambda: keeper.get(SLICES),
        lambda: keeper.create(SLICES, new(slice_of(cluster, "gpu1"), "gpu1-more"), **DRY),
        lambda: keeper.create(f"{MADE}/resourceclaims", claim_of_all(), **DRY),
    ):
        assert "cannot" in forbidden(ask)


def claim_of_all() -> Json:
    asks = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpushare"}}]}}
    return {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "all"}, "spec": asks}


def test_nothing_is_allocated_for_the_template_itself(empty: Cluster) -> None:
    """Who refers to it by another name has a claim of no amount."""
    around = pod("around")
    around["spec"]["resourceClaims"] = [{"name": "gpushare-m1000000000", "resourceClaimTemplateName": "gpushare"}]
    with pytest.raises(ApiError, match=f"named after its amount.*{MEMORY}"):
        empty.create(around)
    alone = {**claim_of_all(), "metadata": {"name": "alone"}, "spec": template("x")["spec"]["spec"]}
    assert "resourceClaimTemplateName" in forbidden(lambda: empty.api.create(f"{MADE}/resourceclaims", alone, **DRY))


def test_a_claim_stays_that_of_its_pod(empty: Cluster) -> None:
    """Also an administrator hands it to no other."""
    empty.create(pod("has-it", memory=1))
    empty.create(pod("wants-it"))
    empty.until_running("has-it", "wants-it")
    (found,) = claims(empty)
    place = f"{MADE}/resourceclaims/{found['metadata']['name']}"
    wants = empty.api.get(f"{PODS}/wants-it")["metadata"]
    owner = {**found["metadata"]["ownerReferences"][0], "name": "wants-it", "uid": wants["uid"]}
    user = {"resource": "pods", "name": "wants-it", "uid": wants["uid"]}
    for at, change, words in (
        (place, {"metadata": {"ownerReferences": [owner]}}, "from the claim's creation on"),
        (f"{place}/status", {"status": {"reservedFor": [user]}}, "resourceClaimTemplateName"),
    ):
        assert words in forbidden(partial(empty.api.patch, at, change, **DRY))


def test_templates_are_kept_in_each_namespace(cluster: Cluster, without: str) -> None:
    """One that is deleted comes back."""
    cluster.api.delete(f"{without}/gpushare")
    cluster.until("it is there again", lambda: OTHER in templates(cluster), 30)
    assert {one["metadata"]["name"] for one in cluster.api.items("/api/v1/namespaces")} == templates(cluster)
    assert [one["metadata"]["name"] for one in cluster.api.items(TEMPLATES) if one["metadata"]["name"] != "gpushare"] == []
