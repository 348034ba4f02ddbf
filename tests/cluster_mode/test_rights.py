# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The token of one node's device plugin, as kubelet gives it to its pod: it changes that node and its pods, and no others."""

from __future__ import annotations

import pytest

from cluster_mode.in_cluster import NAMESPACE, InCluster
from e2e.api import Api, ApiError
from e2e.cluster import Cluster
from e2e.manifests import pod

ACCOUNT = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/gpushare-device-plugin/token"
OWN_NODE = "only its own node and the pods that are bound to it"


def token(cluster: Cluster, of: dict[str, str] | None) -> Api:
    """The API server, asked with a token for the device plugin's account. of: the object that it is bound to."""
    spec = {"expirationSeconds": 600, **({"boundObjectRef": of} if of else {})}
    made = cluster.api.create(ACCOUNT, {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec})
    return Api(cluster.kubeconfig, {"Authorization": f"Bearer {made['status']['token']}"}, certificate=False)


@pytest.fixture
def bound(cluster: Cluster, here: InCluster) -> Api:
    (plugin,) = (one for one in here.pods("gpushare-device-plugin") if one["spec"]["nodeName"] == "gpu1")
    return token(cluster, {"kind": "Pod", "apiVersion": "v1", "name": plugin["metadata"]["name"], "uid": plugin["metadata"]["uid"]})


def marks(api: Api, path: str, **annotations: str) -> str:
    """Why it may not, "" if it may. Of a request that writes nothing."""
    try:
        api.patch(f"{path}/status", {"metadata": {"annotations": annotations}}, dryRun="All")
    except ApiError as error:
        return str(error)
    return ""


def test_it_changes_its_own_node_and_pods_alone(cluster: Cluster, bound: Api) -> None:
    cluster.clear()
    for node in ("gpu1", "gpu2"):
        cluster.create(pod(f"on-{node}", memory=1, node=node))
    cluster.until_running("on-gpu1", "on-gpu2")
    pods = "/api/v1/namespaces/default/pods"
    unbound = token(cluster, None)
    assert marks(bound, "/api/v1/nodes/gpu1", **{"gpushare/held": "{}"}) == ""
    assert marks(bound, f"{pods}/on-gpu1", ALIYUN_COM_GPU_MEM_ASSIGNED="false") == ""
    assert OWN_NODE in marks(bound, "/api/v1/nodes/gpu2", **{"gpushare/held": "{}"})
    assert OWN_NODE in marks(bound, f"{pods}/on-gpu2", ALIYUN_COM_GPU_MEM_ASSIGNED="false")
    assert "may not change the annotations team" in marks(bound, f"{pods}/on-gpu1", team="x")
    for node in ("gpu1", "gpu2"):
        assert OWN_NODE in marks(unbound, f"/api/v1/nodes/{node}", **{"gpushare/held": "{}"})
        assert OWN_NODE in marks(unbound, f"{pods}/on-{node}", ALIYUN_COM_GPU_MEM_ASSIGNED="false")
    cluster.clear()


def test_nobody_gets_a_token_that_lives_long(cluster: Cluster) -> None:
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 7200}}
    with pytest.raises(ApiError, match="live 3607 seconds at most"):
        cluster.api.create(ACCOUNT, request)


def test_another_scheduler_is_told_what_to_write(cluster: Cluster) -> None:
    other = pod("other-scheduler", memory=1)
    other["spec"]["schedulerName"] = "volcano"
    with pytest.raises(ApiError, match=r"write spec\.schedulerName: gpushare-scheduler"):
        cluster.create(other)
