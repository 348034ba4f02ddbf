# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The tokens of the daemons' pods, as kubelet gives them: a device plugin changes its own node and its pods, the scheduler what it needs.

And where these tokens are: none of the scheduler is on a GPU node.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from cluster_mode.in_cluster import NAMESPACE, InCluster
from e2e.api import Api, ApiError, Json
from e2e.cluster import CONTROL_PLANE, GPU_NODES, OTHER_KUBELET_ROOT, Cluster, CommandError, is_running
from e2e.manifests import pod

ACCOUNTS = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts"
ACCOUNT = f"{ACCOUNTS}/gpushare-device-plugin/token"
PODS, SPACES = "/api/v1/namespaces/default/pods", "/api/v1/namespaces"
LEASES = "/apis/coordination.k8s.io/v1/namespaces"
LABEL = "gpushare.kubernetes/node"
DRY = {"dryRun": "All"}
OWN_NODE = "only its own node and the pods that are bound to it"


def token(cluster: Cluster, of: dict[str, str] | None, account: str = ACCOUNT) -> Api:
    """The API server, asked with a token for the account. of: the object that it is bound to."""
    spec = {"expirationSeconds": 600, **({"boundObjectRef": of} if of else {})}
    made = cluster.api.create(account, {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec})
    return Api(cluster.kubeconfig, {"Authorization": f"Bearer {made['status']['token']}"}, certificate=False)


@pytest.fixture
def bound(cluster: Cluster, here: InCluster) -> Api:
    (plugin,) = (one for one in here.pods("gpushare-device-plugin") if one["spec"]["nodeName"] == "gpu1")
    return token(cluster, reference(plugin))


def reference(one: Json) -> dict[str, str]:
    return {"kind": "Pod", "apiVersion": "v1", "name": one["metadata"]["name"], "uid": one["metadata"]["uid"]}


@pytest.fixture
def scheduler(cluster: Cluster, here: InCluster) -> Api:
    """As root of a scheduler's node has it."""
    return token(cluster, reference(here.pods("gpushare-scheduler")[0]), f"{ACCOUNTS}/gpushare-scheduler/token")


def denied(ask: Callable[[], object]) -> str:
    """Why, "" if it is not."""
    try:
        ask()
    except ApiError as error:
        return str(error)
    return ""


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


def test_no_token_of_the_scheduler_is_on_a_gpu_node(cluster: Cluster, here: InCluster) -> None:
    assert {one["spec"]["nodeName"] for one in here.pods("gpushare-scheduler")} == {CONTROL_PLANE}
    tokens = f"{OTHER_KUBELET_ROOT}/pods/*/volumes/kubernetes.io~projected/*/token"
    for node in GPU_NODES:
        found = cluster.on(node, "sh", "-ec", f"cat {tokens} | tr '.' '\\n'")
        accounts = {one for line in found.splitlines() if (one := _subject(line))}
        assert accounts == {f"system:serviceaccount:{NAMESPACE}:gpushare-device-plugin"}


def _subject(part: str) -> str:
    """Of the middle part of a token."""
    try:
        return str(json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4))).get("sub", ""))
    except ValueError:
        return ""


def test_a_stolen_token_of_the_scheduler_brings_no_pod_to_its_node(cluster: Cluster, scheduler: Api) -> None:
    """With a pod on a node comes what it mounts: secrets, and tokens of other accounts."""
    waiting = pod("victim")
    waiting["spec"] |= {"schedulerName": "nobody", "tolerations": [{"operator": "Exists"}]}
    cluster.create(waiting)

    def bind(node: str, *annotations: str) -> Callable[[], object]:
        about = {"name": "victim", "namespace": "default", "annotations": dict.fromkeys(annotations, "{}")}
        target = {"apiVersion": "v1", "kind": "Node", "name": node}
        body = {"apiVersion": "v1", "kind": "Binding", "metadata": about, "target": target}
        return lambda: scheduler.create(f"{PODS}/victim/binding", body, **DRY)

    assert "no pod to the node on which it runs itself" in denied(bind(CONTROL_PLANE, "scheduler.framework.gpushare.allocation"))
    assert "only pods that get GPUs" in denied(bind("gpu1"))
    assert "may set its annotations in Bindings" in denied(bind("gpu1", "scheduler.framework.gpushare.allocation", "team"))
    assert denied(bind("gpu1", "scheduler.framework.gpushare.allocation")) == ""
    assert "cannot create" in denied(lambda: scheduler.create(f"{SPACES}/default/bindings", {"kind": "Binding", "apiVersion": "v1"}, **DRY))
    cluster.delete("victim")


def test_it_deletes_what_preemption_could_and_nothing_else(cluster: Cluster, here: InCluster, scheduler: Api) -> None:
    cluster.create(pod("low", memory=1))
    cluster.until_running("low")
    could = "only pods that preemption could choose"
    assert denied(lambda: scheduler.delete(f"{PODS}/low", **DRY)) == ""
    assert could in denied(lambda: scheduler.delete(f"{SPACES}/kube-system/pods/kube-controller-manager-{CONTROL_PLANE}", **DRY))
    for app in ("gpushare-device-plugin", "gpushare-scheduler"):
        name = here.pods(app)[0]["metadata"]["name"]
        assert could in denied(lambda: scheduler.delete(f"{SPACES}/{NAMESPACE}/pods/{name}", **DRY))  # noqa: B023
    assert "cannot deletecollection" in denied(lambda: scheduler.delete(PODS, **DRY))
    unready = {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}
    assert "only the conditions PodScheduled and DisruptionTarget" in denied(lambda: scheduler.patch(f"{PODS}/low/status", unready, **DRY))
    cluster.delete("low")


def test_it_takes_no_lease_but_its_own(scheduler: Api) -> None:
    def lease(name: str, space: str) -> str:
        body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name, "namespace": space}, "spec": {}}
        return denied(lambda: scheduler.create(f"{LEASES}/{space}/leases", body, **DRY))

    taken = {"spec": {"holderIdentity": "me"}}
    assert "cannot patch" in denied(lambda: scheduler.patch(f"{LEASES}/kube-system/leases/kube-scheduler", taken, **DRY))
    assert "cannot get" in denied(lambda: scheduler.get(f"{LEASES}/kube-system/leases/kube-scheduler"))
    assert "cannot create" in lease("x", "kube-node-lease")
    assert "cannot create" in lease("kube-controller-manager", "kube-system")
    assert "one Lease only" in lease("x", NAMESPACE)
    assert scheduler.get(f"{LEASES}/{NAMESPACE}/leases/gpushare-scheduler")["metadata"]["name"] == "gpushare-scheduler"


def test_it_reads_no_secret_and_gets_no_token(scheduler: Api) -> None:
    assert "cannot list" in denied(lambda: scheduler.get(f"{SPACES}/kube-system/secrets"))
    assert "cannot list" in denied(lambda: scheduler.get(f"{SPACES}/{NAMESPACE}/configmaps"))
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 600}}
    assert "cannot create" in denied(lambda: scheduler.create(f"{ACCOUNTS}/gpushare-scheduler/token", request))


def test_it_has_no_right_of_kubernetes_own_roles(cluster: Cluster) -> None:
    bindings = cluster.api.items("/apis/rbac.authorization.k8s.io/v1/clusterrolebindings")
    mine = [one["roleRef"]["name"] for one in bindings if "gpushare-scheduler" in {who["name"] for who in one.get("subjects", ())}]
    assert mine == ["gpushare-scheduler"]


@contextmanager
def applied(cluster: Cluster, *objects: Json) -> Iterator[None]:
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": list(objects)})
    cluster.kubectl("apply", "-f", "-", stdin=text)
    try:
        yield
    finally:
        cluster.clear()
        cluster.kubectl("delete", "--ignore-not-found", "--wait=false", "-f", "-", stdin=text)


def of_claim(name: str) -> Json:
    made = pod(name, memory=1)
    made["spec"]["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": name}}]
    made["spec"]["containers"][0]["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
    return made


def storage_class(name: str, provisioner: str) -> Json:
    about = {"name": name}
    return {
        "apiVersion": "storage.k8s.io/v1",
        "kind": "StorageClass",
        "metadata": about,
        "provisioner": provisioner,
        "volumeBindingMode": "WaitForFirstConsumer",
    }


def claim(name: str, of: str) -> Json:
    spec = {"accessModes": ["ReadWriteOnce"], "storageClassName": of, "resources": {"requests": {"storage": "1Gi"}}}
    return {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name, "namespace": "default"}, "spec": spec}


def test_pods_with_gpus_have_volumes(cluster: Cluster, scheduler: Api) -> None:
    """One that is there, which the scheduler gives to the claim, and one that a provisioner makes on the node that the scheduler names."""
    cluster.on("gpu1", "mkdir", "-p", "/var/local-volume")
    term = {"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["gpu1"]}]}
    volume: Json = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": "there"},
        "spec": {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteOnce"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "there",
            "local": {"path": "/var/local-volume"},
            "nodeAffinity": {"required": {"nodeSelectorTerms": [term]}},
        },
    }
    classes = storage_class("there", "kubernetes.io/no-provisioner"), storage_class("coming", "example.com/none")
    with applied(cluster, *classes, volume, claim("there", "there"), claim("coming", "coming")):
        cluster.create(of_claim("there"))
        (running,) = cluster.until_running("there", seconds=120)
        assert running["spec"]["nodeName"] == "gpu1"
        cluster.create(of_claim("coming"))

        def chosen() -> str | None:
            found = cluster.api.get(f"{SPACES}/default/persistentvolumeclaims/coming")
            return (found["metadata"].get("annotations") or {}).get("volume.kubernetes.io/selected-node")

        assert cluster.until("the scheduler names a node for the volume", chosen, 120) in GPU_NODES
        one = scheduler.get("/api/v1/persistentvolumes/there")
        one["spec"]["persistentVolumeReclaimPolicy"] = "Delete"
        only = "may only give a PersistentVolume without a claim the claim of a pod"
        assert only in denied(lambda: scheduler._request("PUT", "/api/v1/persistentvolumes/there", one, DRY))
        assert "cannot patch" in denied(lambda: scheduler.patch("/api/v1/persistentvolumes/there", {"spec": {}}, **DRY))
        place = f"{SPACES}/default/persistentvolumeclaims/coming"
        other = scheduler.get(place)
        other["metadata"].setdefault("annotations", {})["team"] = "x"
        assert "only the annotation volume.kubernetes.io/selected-node" in denied(lambda: scheduler._request("PUT", place, other, DRY))


def test_pods_with_gpus_have_devices_of_a_dynamic_driver(cluster: Cluster, scheduler: Api) -> None:
    """No driver prepares them here: what the scheduler does for a claim, it has done."""
    version = "resource.k8s.io/v1"
    device = {"name": "nic-0"}
    piece: Json = {
        "apiVersion": version,
        "kind": "ResourceSlice",
        "metadata": {"name": "gpu1-nics"},
        "spec": {
            "driver": "nics.example.com",
            "nodeName": "gpu1",
            "pool": {"name": "gpu1", "generation": 1, "resourceSliceCount": 1},
            "devices": [device],
        },
    }
    kind = {"apiVersion": version, "kind": "DeviceClass", "metadata": {"name": "nics.example.com"}, "spec": {}}
    asks = {"devices": {"requests": [{"name": "nic", "exactly": {"deviceClassName": "nics.example.com"}}]}}
    wanted = {"apiVersion": version, "kind": "ResourceClaim", "metadata": {"name": "nic", "namespace": "default"}, "spec": asks}
    made = pod("with-nic", memory=1)
    made["spec"]["resourceClaims"] = [{"name": "nic", "resourceClaimName": "nic"}]
    made["spec"]["containers"][0]["resources"]["claims"] = [{"name": "nic"}]
    with applied(cluster, kind, piece, wanted):
        cluster.create(made)
        cluster.until("it is bound", lambda: cluster.pod("with-nic")["spec"].get("nodeName"), 60, "with-nic")
        place = f"/apis/{version}/namespaces/default/resourceclaims/nic"
        found = scheduler.get(place)
        assert found["status"]["allocation"]["devices"]["results"][0]["device"] == "nic-0"
        assert [one["name"] for one in found["status"]["reservedFor"]] == ["with-nic"]
        found["metadata"]["labels"] = {"a": "b"}
        assert "only the finalizer" in denied(lambda: scheduler._request("PUT", place, found, DRY))


def test_a_pod_of_more_priority_takes_the_place_of_others(cluster: Cluster) -> None:
    """Of one of another scheduler, too, for which the account deletes it."""
    priority = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"}, "value": 1000}
    cores = int(cluster.node("gpu1")["status"]["allocatable"]["cpu"])
    plain = pod("plain", node="gpu1")
    plain["spec"]["containers"][0]["resources"]["requests"] = {"cpu": f"{cores * 1000 - 600}m"}
    high = pod("high", memory=2, node="gpu1")
    high["spec"]["priorityClassName"] = "high"
    high["spec"]["containers"][0]["resources"]["requests"] = {"cpu": "700m"}
    with applied(cluster, priority):
        cluster.create(plain)
        cluster.until_running("plain")
        assert cluster.pod("plain")["spec"]["schedulerName"] == "default-scheduler"
        cluster.create(high)
        cluster.until_running("high", seconds=180)
        assert "plain" not in {one["metadata"]["name"] for one in cluster.pods() if is_running(one)}


def test_a_kubelet_cannot_make_its_node_one_without_gpus(cluster: Cluster) -> None:
    """It may write labels of its own node, and the scheduler would come there."""
    with pytest.raises(CommandError, match="may not remove its label"):
        cluster.on("gpu1", "kubectl", "--kubeconfig=/etc/kubernetes/kubelet.conf", "label", "node", "gpu1", f"{LABEL}-")
    assert cluster.on("gpu1", "kubectl", "--kubeconfig=/etc/kubernetes/kubelet.conf", "label", "node", "gpu1", "team=a")
    assert cluster.kubectl("label", "node", "gpu1", "team-")


def test_the_runtime_class_is_of_our_pods_alone(cluster: Cluster) -> None:
    other = pod("other-class")
    other["spec"]["runtimeClassName"] = "gpushare-nvidia"
    with pytest.raises(ApiError, match="is for gpushare's own pods"):
        cluster.create(other)


def test_a_node_that_becomes_a_gpu_node_loses_the_scheduler(cluster: Cluster, here: InCluster) -> None:
    cluster.kubectl("label", "node", "gpu2", f"{LABEL}-")
    cluster.kubectl("cordon", CONTROL_PLANE)
    try:
        cluster.kubectl("delete", "pod", "-n", NAMESPACE, here.pods("gpushare-scheduler")[0]["metadata"]["name"])

        def there() -> bool:
            found = [one for one in here.pods("gpushare-scheduler") if is_running(one)]
            return len(found) == 2 and {one["spec"]["nodeName"] for one in found} == {CONTROL_PLANE, "gpu2"}

        cluster.until("a pod of the scheduler runs where no label is", there, 120)
    finally:
        cluster.kubectl("uncordon", CONTROL_PLANE)
        cluster.kubectl("label", "node", "gpu2", f"{LABEL}=true")
    predicted, _ = here.play("--check")
    done, output = here.play()
    assert done.changes() == predicted.changes() != {}, output
    assert {one["spec"]["nodeName"] for one in here.pods("gpushare-scheduler")} == {CONTROL_PLANE}
    again, output = here.play()
    assert again.changes() == {}, output


def test_a_cluster_of_gpu_nodes_only_is_rejected(cluster: Cluster, here: InCluster) -> None:
    before = here.objects()
    cluster.kubectl("label", "node", CONTROL_PLANE, f"{LABEL}=false")
    try:
        said = " ".join(here.rejected().split())
    finally:
        cluster.kubectl("label", "node", CONTROL_PLANE, f"{LABEL}-")
    assert "scheduler_nodes" in said
    assert "accept that root of each GPU node controls the cluster by gpushare_scheduler_on_gpu_nodes: true" in said
    assert "nothing was changed" in said
    assert set(here.objects()) == set(before)


def test_an_older_installation_gets_the_narrow_rights(cluster: Cluster, here: InCluster) -> None:
    """The bindings and the affinity of before, as the playbook applied them."""
    subject = {"kind": "ServiceAccount", "name": "gpushare-scheduler", "namespace": NAMESPACE}
    old: list[Json] = [
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": f"gpushare-scheduler-{name}"},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": f"system:{name}"},
            "subjects": [subject],
        }
        for name in ("kube-scheduler", "volume-scheduler")
    ]
    text = json.dumps({"apiVersion": "v1", "kind": "List", "items": old})
    cluster.kubectl("apply", "--server-side", "--field-manager=gpushare.kubernetes", "-f", "-", stdin=text)
    place = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments/gpushare-scheduler"
    weight = {"requiredDuringSchedulingIgnoredDuringExecution": None}
    cluster.api.patch(place, {"spec": {"template": {"spec": {"affinity": {"nodeAffinity": weight}}}}})
    cluster.kubectl("rollout", "status", "-n", NAMESPACE, "deployment/gpushare-scheduler", "--timeout=170s", seconds=180)
    predicted, _ = here.play("--check")
    done, output = here.play()
    assert done.changes() == predicted.changes() != {}, output
    test_it_has_no_right_of_kubernetes_own_roles(cluster)
    assert {one["spec"]["nodeName"] for one in here.pods("gpushare-scheduler")} == {CONTROL_PLANE}


def test_neither_roles_nor_policies_have_kept_it_from_anything(cluster: Cluster, here: InCluster) -> None:
    """After all requests of the suite: what it was denied is in its log."""
    for one in here.pods("gpushare-scheduler"):
        for container in ("kube-scheduler", "extender"):
            said = cluster.kubectl("logs", "-n", NAMESPACE, one["metadata"]["name"], "-c", container)
            assert [line for line in said.splitlines() if "orbidden" in line or "cannot list" in line] == []
