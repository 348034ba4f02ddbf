# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What the daemons may do with their tokens, from wherever, and what everybody else may not: RBAC and admission policies. And what they
may do on their hosts: the sandboxes of their units."""

from __future__ import annotations

import contextlib
import copy
import json
import re
from collections.abc import Iterator

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.kubectl import Kubectl
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.objects import WantedObjects, converge

from e2e.api import Api, ApiError, Json
from e2e.clients import DRY, forbidden, own_token, somebody, with_token
from e2e.cluster import CONTROL_PLANE, Cluster, CommandError
from e2e.manifests import pod
from e2e.sandbox import ENTER, INSIDE
from policies.requests import many
from unit.fakes.plugins.cluster.manifests import of_role

SYSTEM = "/api/v1/namespaces/kube-system"
PODS = "/api/v1/namespaces/default/pods"
INDEX = "ALIYUN_COM_GPU_MEM_IDX"
WEEK = 604800


def annotated(key: str, value: str | None = "7") -> Json:
    return {"metadata": {"annotations": {key: value}}}


@pytest.fixture(scope="module")
def pods(cluster: Cluster) -> Iterator[dict[str, str]]:
    """A running pod with memory of a GPU on each GPU node, by node."""
    with (
        cluster.created(pod("identity-1", memory=1, node="gpu1")) as first,
        cluster.created(pod("identity-2", memory=1, node="gpu2")) as other,
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


def test_a_plugin_publishes_the_gpus_of_its_own_node(plugin: Api) -> None:
    """By the status: whoever may patch a pod or a node itself may do more than we can take back."""
    plugin.patch("/api/v1/nodes/gpu1/status", annotated("gpushare/gpus", "{}"), **DRY)
    assert "cannot patch" in forbidden(lambda: plugin.patch("/api/v1/nodes/gpu1", annotated("gpushare/gpus", "{}"), **DRY))


@pytest.mark.parametrize("verb", ["get", "patch"])
def test_a_plugin_has_no_other_node(plugin: Api, verb: str) -> None:
    call = {
        "get": lambda: plugin.get("/api/v1/nodes/gpu2"),
        "patch": lambda: plugin.patch("/api/v1/nodes/gpu2/status", annotated("gpushare/gpus"), **DRY),
    }
    assert "cannot" in forbidden(call[verb])


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({"metadata": {"labels": {"a": "b"}}}, "only annotations of gpushare"),
        ({"status": {"capacity": {"example.com/x": "1"}}}, "only annotations of gpushare"),
        (annotated("volumes.kubernetes.io/controller-managed-attach-detach"), "may not change the annotations volumes.kubernetes.io"),
    ],
)
def test_a_plugin_changes_nothing_else_of_its_node(plugin: Api, body: Json, words: str) -> None:
    assert words in forbidden(lambda: plugin.patch("/api/v1/nodes/gpu1/status", body, **DRY))


def test_a_plugin_corrects_the_pods_of_its_node_only(plugin: Api, pods: dict[str, str]) -> None:
    plugin.patch(f"{PODS}/{pods['gpu1']}/status", annotated(INDEX), **DRY)
    assert "cannot patch" in forbidden(lambda: plugin.patch(f"{PODS}/{pods['gpu1']}", annotated(INDEX), **DRY))
    words = forbidden(lambda: plugin.patch(f"{PODS}/{pods['gpu2']}/status", annotated(INDEX), **DRY))
    assert "only its own node and the pods that are bound to it" in words


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (annotated("team"), "may not change the annotations team"),
        ({"metadata": {"labels": {"app": "other"}}}, "only annotations of gpushare"),
        ({"status": {"phase": "Failed"}}, "only annotations of gpushare"),
    ],
)
def test_a_plugin_changes_nothing_else_of_a_pod(plugin: Api, pods: dict[str, str], body: Json, words: str) -> None:
    assert words in forbidden(lambda: plugin.patch(f"{PODS}/{pods['gpu1']}/status", body, **DRY))


@pytest.mark.parametrize("who", ["plugin", "extender"])
def test_a_daemon_changes_no_image(who: str, request: pytest.FixtureRequest, cluster: Cluster, pods: dict[str, str]) -> None:
    """The way from one node's token to the whole cluster. By the status, the API server passes over the spec."""
    caller: Api = request.getfixturevalue(who)
    body = {"spec": {"containers": [{"name": "main", "image": "example.org/evil"}]}}
    assert "cannot patch" in forbidden(lambda: caller.patch(f"{PODS}/{pods['gpu1']}", body, **DRY))
    before = cluster.api.get(f"{PODS}/{pods['gpu1']}")["spec"]
    with contextlib.suppress(ApiError):
        caller.patch(f"{PODS}/{pods['gpu1']}/status", body)
    assert cluster.api.get(f"{PODS}/{pods['gpu1']}")["spec"] == before


@pytest.mark.parametrize("who", ["plugin", "extender"])
def test_a_daemon_gets_no_tokens_but_its_own(who: str, request: pytest.FixtureRequest) -> None:
    caller: Api = request.getfixturevalue(who)
    own, other = "gpushare-device-plugin-gpu1", "gpushare-extender"
    own, other = (own, other) if who == "plugin" else (other, own)
    body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": 600}}
    assert caller.create(f"{SYSTEM}/serviceaccounts/{own}/token", body)["status"]["token"]
    for name in (other, "gpushare-device-plugin-gpu2", "default"):
        assert "cannot create" in forbidden(lambda: caller.create(f"{SYSTEM}/serviceaccounts/{name}/token", body))  # noqa: B023
    assert "cannot list" in forbidden(lambda: caller.get("/api/v1/secrets"))
    assert "cannot delete" in forbidden(lambda: caller.delete(f"{PODS}/x"))


def token_request(seconds: int) -> Json:
    return {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"expirationSeconds": seconds}}


def test_no_token_of_a_daemon_lives_longer_than_its_own(cluster: Cluster, plugin: Api) -> None:
    """Kubernetes itself would give a token of 136 years."""
    own = f"{SYSTEM}/serviceaccounts/gpushare-device-plugin-gpu1/token"
    assert plugin.create(own, token_request(WEEK))["status"]["token"]
    for caller in (plugin, cluster.api):
        assert "gpushare_token_seconds" in forbidden(lambda: caller.create(own, token_request(WEEK + 1)))  # noqa: B023


def event(name: str, component: str, host: str) -> Json:
    about = {"kind": "Node", "name": "gpu1", "apiVersion": "v1"}
    source = {"component": component, "host": host}
    return {"metadata": {"name": name}, "involvedObject": about, "reason": "Test", "message": "x", "type": "Normal", "source": source}


def test_a_daemon_changes_no_events_but_its_own(cluster: Cluster, plugin: Api, extender: Api) -> None:
    events = "/api/v1/namespaces/default/events"
    sent = {"own": ("gpushare-device-plugin", "gpu1"), "other": ("gpushare-device-plugin", "gpu2"), "kubelet": ("kubelet", "gpu1")}
    try:
        for name, (component, host) in sent.items():
            cluster.api.create(events, event(f"rights-{name}", component, host))
        plugin.patch(f"{events}/rights-own", {"count": 2}, **DRY)
        for caller, name in ((plugin, "other"), (plugin, "kubelet"), (extender, "own"), (extender, "kubelet")):
            assert "only the events" in forbidden(lambda: caller.patch(f"{events}/rights-{name}", {"count": 2}, **DRY))  # noqa: B023
    finally:
        for name in sent:
            cluster.api.delete(f"{events}/rights-{name}")


MAPS = f"{SYSTEM}/configmaps"


def config_map(name: str, **data: str) -> Json:
    return {"metadata": {"name": name}, "data": data}


def test_a_plugin_has_one_config_map_the_originals_of_its_own_node(cluster: Cluster, plugin: Api) -> None:
    own, body = f"{MAPS}/unhealthy-gpu-gpu1", config_map("unhealthy-gpu-gpu1", gpus="0,1")
    plugin.create(MAPS, body)
    try:
        plugin.patch(own, {"data": {"gpus": "1"}})
        assert plugin.get(own)["data"] == {"gpus": "1"}
        assert "with the key gpus" in forbidden(lambda: plugin.patch(own, {"data": {"other": "x"}}, **DRY))
        for metadata in ({"labels": {"a": "b"}}, {"annotations": {"a": "b"}}):
            assert "only the key gpus" in forbidden(lambda: plugin.patch(own, {"metadata": metadata}, **DRY))  # noqa: B023
        assert "cannot delete" in forbidden(lambda: plugin.delete(own))
    finally:
        cluster.api.delete(own)
    for name in ("unhealthy-gpu-gpu2", "unhealthy-gpu-gpu10", "kubeadm-config-2"):
        assert "may write one ConfigMap only" in forbidden(lambda: plugin.create(MAPS, config_map(name, gpus="0"), **DRY))  # noqa: B023
    assert "with the key gpus" in forbidden(lambda: plugin.create(MAPS, config_map("unhealthy-gpu-gpu1", other="x"), **DRY))
    elsewhere = "/api/v1/namespaces/default/configmaps"
    assert "cannot create" in forbidden(lambda: plugin.create(elsewhere, body, **DRY))
    for name in ("unhealthy-gpu-gpu2", "kubeadm-config"):
        assert "cannot get" in forbidden(lambda: plugin.get(f"{MAPS}/{name}"))  # noqa: B023
        assert "cannot patch" in forbidden(lambda: plugin.patch(f"{MAPS}/{name}", {"data": {"gpus": "0"}}, **DRY))  # noqa: B023
    assert "cannot list" in forbidden(lambda: plugin.get(MAPS))


# The extender.


def binding(name: str, key: str) -> Json:
    target = {"apiVersion": "v1", "kind": "Node", "name": "gpu1"}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name, "annotations": {key: "0"}}, "target": target}


@pytest.fixture
def unbound(cluster: Cluster) -> Iterator[str]:
    """A pod that no scheduler looks at."""
    manifest = pod("identity-unbound", memory=1)
    manifest["spec"]["schedulerName"] = "nobody"
    with cluster.created(manifest, running=False) as name:
        yield name


def test_the_extender_binds_with_annotations_of_ours_only(extender: Api, unbound: str) -> None:
    extender.create(f"{PODS}/{unbound}/binding", binding(unbound, INDEX), **DRY)
    words = forbidden(lambda: extender.create(f"{PODS}/{unbound}/binding", binding(unbound, "team"), **DRY))
    assert "its annotations in Bindings" in words
    assert "team" in words


def test_the_extender_labels_no_pod_by_its_binding(extender: Api, unbound: str) -> None:
    """The API server copies the labels of a Binding onto the pod. Those of a zone it sets itself, by the labels of the node."""
    body = binding(unbound, INDEX)
    for label, words in (("app", "only annotations"), ("topology.kubernetes.io/zone", "")):
        body["metadata"]["labels"] = {label: "x"}
        if words:
            assert words in forbidden(lambda: extender.create(f"{PODS}/{unbound}/binding", body, **DRY))
        else:
            extender.create(f"{PODS}/{unbound}/binding", body, **DRY)


def test_the_extender_requeues_pods_and_changes_nothing_else(extender: Api, unbound: str) -> None:
    extender.patch(f"{PODS}/{unbound}/status", annotated("gpushare/requeued"), **DRY)
    assert "cannot patch" in forbidden(lambda: extender.patch(f"{PODS}/{unbound}", annotated("gpushare/requeued"), **DRY))
    assert INDEX in forbidden(lambda: extender.patch(f"{PODS}/{unbound}/status", annotated(INDEX), **DRY))
    for body in ({"metadata": {"labels": {"a": "b"}}}, {"status": {"phase": "Failed"}}):
        assert "only annotations" in forbidden(lambda: extender.patch(f"{PODS}/{unbound}/status", body, **DRY))  # noqa: B023
    for path in ("/api/v1/nodes/gpu1", "/api/v1/nodes/gpu1/status"):
        assert "cannot patch" in forbidden(lambda: extender.patch(path, annotated("gpushare/gpus"), **DRY))  # noqa: B023


def test_the_extender_reads_budgets_and_its_schedulers_lease_and_changes_neither(extender: Api) -> None:
    leases, budgets = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases", "/apis/policy/v1/poddisruptionbudgets"
    assert extender.get(f"{leases}/kube-scheduler")["spec"]["holderIdentity"]
    assert "items" in extender.get(budgets)
    assert "cannot list" in forbidden(lambda: extender.get(leases))
    assert "cannot get" in forbidden(lambda: extender.get(f"{leases}/kube-controller-manager"))
    assert "cannot patch" in forbidden(lambda: extender.patch(f"{leases}/kube-scheduler", {"spec": {"holderIdentity": "x"}}, **DRY))
    of_default = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
    assert "cannot create" in forbidden(lambda: extender.create(of_default, {"metadata": {"name": "x"}, "spec": {}}, **DRY))
    assert "cannot create" in forbidden(lambda: extender.create(MAPS, config_map("unhealthy-gpu-gpu1", gpus="0"), **DRY))


# Everybody else.


def test_a_tenant_forges_nothing(tenant: Api, pods: dict[str, str], unbound: str) -> None:
    forged = pod("identity-forged", memory=1)
    tenant.create(PODS, forged, **DRY)
    forged["metadata"]["annotations"] = {INDEX: "1", "team": "x"}
    words = forbidden(lambda: tenant.create(PODS, forged, **DRY))
    assert f"the annotations {INDEX} say which GPU memory is whose" in words
    assert "not tenant" in words
    assert "aliyun.com/gpu-mem" in words
    for body in (annotated(INDEX), annotated(INDEX, None), annotated("scheduler.framework.gpushare.allocation", "{}")):
        forbidden(lambda: tenant.patch(f"{PODS}/{pods['gpu1']}", body, **DRY))  # noqa: B023
    forbidden(lambda: tenant.patch(f"{PODS}/{unbound}", annotated("gpushare/requeued"), **DRY))


def test_a_tenant_works_as_ever(tenant: Api, pods: dict[str, str]) -> None:
    """Annotations of others, and wishes to gpushare, are theirs."""
    annotations = {"team": "x", "gpushare/models": "T4"}
    tenant.patch(f"{PODS}/{pods['gpu1']}", {"metadata": {"labels": {"a": "b"}, "annotations": annotations}}, **DRY)


def test_256_kib_of_annotations_cost_the_api_server_what_they_cost_without_policies(cluster: Cluster, tenant: Api) -> None:
    """No policy looks at a tenant's ConfigMaps but by the name of the user, and the API server has the same work with their annotations."""

    def seconds() -> float:
        said = cluster.on(CONTROL_PLANE, "sh", "-c", "cat /proc/$(pidof kube-apiserver)/stat; getconf CLK_TCK").split()
        # The fields after the name of the program, which may have spaces: utime and stime are the 12th and 13th.
        fields = said[[place for place, word in enumerate(said) if word.endswith(")")][-1] + 1 :]
        return (int(fields[11]) + int(fields[12])) / int(said[-1])

    def least(path: str, body: Json) -> float:
        body["metadata"] |= {"annotations": many()}
        found = []
        for _ in range(3):
            begin = seconds()
            tenant.create(path, body, **DRY)
            found.append(seconds() - begin)
        return min(found)

    of_map = least("/api/v1/namespaces/default/configmaps", config_map("rights-large"))
    of_pod = least(PODS, pod("identity-large"))
    assert of_pod <= 3 * of_map, f"{of_pod:.2f} s of CPU time, and {of_map:.2f} s for a ConfigMap"


def placed(memory: int | None, **annotations: str) -> Json:
    """A pod that says itself where it runs."""
    manifest = pod("identity-placed", memory=memory)
    manifest["spec"]["nodeName"] = "gpu1"
    manifest["metadata"]["annotations"] = annotations
    return manifest


def test_a_tenants_pods_with_memory_of_a_gpu_are_placed_by_the_scheduler(cluster: Cluster, tenant: Api) -> None:
    """Such a pod counts against every GPU of the node, and kubelet need not even know it."""
    mirror = {"kubernetes.io/config.mirror": "x", "kubernetes.io/config.hash": "x", "kubernetes.io/config.source": "file"}
    for body in (placed(1), placed(1, **mirror)):
        assert "is placed by the scheduler" in forbidden(lambda: tenant.create(PODS, body, **DRY))  # noqa: B023
    tenant.create(PODS, placed(None), **DRY)
    cluster.api.create(PODS, placed(1), **DRY)
    owner = {"apiVersion": "v1", "kind": "Node", "name": "gpu1", "controller": True}
    owner["uid"] = cluster.api.get("/api/v1/nodes/gpu1")["metadata"]["uid"]
    copy = placed(1, **mirror)
    copy["metadata"]["ownerReferences"] = [owner]
    somebody(cluster, "system:node:gpu1", "system:nodes").create(PODS, copy, **DRY)


def test_a_controller_that_may_do_everything_makes_nothing_for_its_tenants_that_they_may_not(cluster: Cluster) -> None:
    bindings = "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings"
    subject = {"kind": "ServiceAccount", "name": "rights-gitops", "namespace": "kube-system"}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    cluster.api.create(bindings, {"metadata": {"name": "rights-gitops"}, "roleRef": role, "subjects": [subject]})
    try:
        controller = somebody(cluster, "system:serviceaccount:kube-system:rights-gitops", "system:serviceaccounts")
        forged = pod("identity-forged", memory=1)
        controller.create(PODS, forged, **DRY)
        forged["metadata"]["annotations"] = {INDEX: "1"}
        assert "only gpushare sets" in forbidden(lambda: controller.create(PODS, forged, **DRY))
        assert "is placed by the scheduler" in forbidden(lambda: controller.create(PODS, placed(1), **DRY))
    finally:
        cluster.api.delete(f"{bindings}/rights-gitops")


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


def test_kubelet_reports_its_status_and_publishes_no_gpus(cluster: Cluster) -> None:
    kubelet = somebody(cluster, "system:node:gpu1", "system:nodes")
    condition = {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "kubelet is posting ready status"}
    kubelet.patch("/api/v1/nodes/gpu1/status", {"status": {"conditions": [condition]}}, **DRY)
    for path in ("/api/v1/nodes/gpu1", "/api/v1/nodes/gpu1/status"):
        assert "gpushare/gpus" in forbidden(lambda: kubelet.patch(path, annotated("gpushare/gpus"), **DRY))  # noqa: B023


def test_an_administrator_is_not_in_the_way(cluster: Cluster, pods: dict[str, str]) -> None:
    for path in ("/api/v1/nodes/gpu1", f"{PODS}/{pods['gpu1']}"):
        cluster.api.patch(path, {"metadata": {"labels": {"a": "b"}, "annotations": {"team": "x", INDEX: "5"}}}, **DRY)
    cluster.api.patch("/api/v1/nodes/gpu1", {"spec": {"unschedulable": True}}, **DRY)


# On the hosts.

UNITS = pytest.mark.parametrize(
    ("node", "unit", "most"),
    [(CONTROL_PLANE, "gpushare-extender", 1.1), ("gpu1", "gpushare-device-plugin", 2.0), (CONTROL_PLANE, "gpushare-pki", 0.9)],
    ids=lambda value: str(value),
)
TAKES_PORT = """
import json, os, pathlib, socket
os.setgid(65534)
os.setuid(65534)
attempts = taken = 0
while pathlib.Path("/run/gpushare-test-port").exists():
    attempts += 1
    with socket.socket() as one:
        one.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            one.bind(("127.0.0.1", 32766))
            one.listen()
            taken += 1
        except OSError:
            pass
print(json.dumps({"attempts": attempts, "taken": taken}))
"""
RESTARTS = """
touch /run/gpushare-test-port
trap 'rm -f /run/gpushare-test-port' EXIT
python3 -c "$1" &
sleep 1
systemctl kill -s KILL gpushare-extender
sleep 3
systemctl restart gpushare-extender
systemctl stop gpushare-extender 2>/dev/null
sleep 1
systemctl start gpushare-extender
rm /run/gpushare-test-port
wait
"""


@UNITS
def test_a_sandbox_gets_no_weaker(cluster: Cluster, node: str, unit: str, most: float) -> None:
    """The exposure as systemd 252 reckons it, 10 for a unit without any sandbox."""
    said = cluster.on(node, "systemd-analyze", "security", "--no-pager", f"{unit}.service")
    found = re.search(r"Overall exposure level for \S+ ([\d.]+) ", said)
    assert found, said
    assert float(found[1]) <= most, said


@pytest.mark.parametrize(("node", "unit"), [(CONTROL_PLANE, "gpushare-extender"), ("gpu1", "gpushare-device-plugin")])
def test_a_daemon_has_none_of_roots_powers(cluster: Cluster, node: str, unit: str) -> None:
    pid = cluster.on(node, "systemctl", "show", "-p", "MainPID", "--value", unit).strip()
    status = dict(line.split(":\t", 1) for line in cluster.on(node, "cat", f"/proc/{pid}/status").splitlines() if ":\t" in line)
    powers = {name: int(status[name], 16) for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")}
    assert (set(powers.values()), status["NoNewPrivs"], status["Seccomp"]) == ({0}, "1", "2")


def test_nobody_takes_the_extenders_port_while_it_restarts(cluster: Cluster) -> None:
    """Killed, restarted, and stopped until somebody calls."""

    def process() -> str:
        return cluster.on(CONTROL_PLANE, "systemctl", "show", "-p", "MainPID", "--value", "gpushare-extender").strip()

    before = process()
    said = json.loads(cluster.on(CONTROL_PLANE, "sh", "-ec", RESTARTS, "sh", TAKES_PORT, seconds=180))
    assert (said["taken"], said["attempts"] > 1000) == (0, True), said
    assert process() not in ("0", before)
    assert cluster.on(CONTROL_PLANE, "systemctl", "is-active", "gpushare-extender.socket").strip() == "active"


def test_a_device_plugin_writes_its_sockets_and_its_state_and_has_the_gpus_alone(cluster: Cluster) -> None:
    pid = cluster.on("gpu1", "systemctl", "show", "-p", "MainPID", "--value", "gpushare-device-plugin").strip()
    own = ("/var/lib/kubelet/device-plugins/x", "/var/lib/gpushare-device-plugin/x")
    others = ("/var/lib/kubelet/config.yaml", "/etc/gpushare/x", "/etc/x", "/var/lib/x", "/usr/x")
    hidden = ("/var/lib/kubelet/pki/x", "/var/lib/kubelet/pods/x")
    disk = "/dev/test-rights"
    paths = (*own, *others, *hidden, "/dev/nvidiactl", "/dev/nvidia0", disk)
    # Whether there is such a disk is asked after whether it may be used.
    cluster.on("gpu1", "mknod", disk, "b", "7", "0")
    try:
        found = json.loads(cluster.on("gpu1", "sh", "-ec", ENTER, "sh", pid, INSIDE, *paths))
    finally:
        cluster.on("gpu1", "rm", "-f", disk, *own)
    assert [path for path in paths if not found[path]] == [*own, "/dev/nvidiactl", "/dev/nvidia0"]
    assert {found[path] for path in others} == {"EROFS"}
    assert found[disk] == "EPERM"


def test_the_policies_take_the_place_of_others_with_their_names_at_once(cluster: Cluster, tenant: Api) -> None:
    """As another release would have left them: nothing of it stays. The last test here, because the others need the policies."""

    forged = pod("rights-forged", memory=1)
    forged["metadata"]["annotations"] = {INDEX: "1"}

    def in_force() -> bool:
        for body in (placed(1), forged):
            try:
                tenant.create(PODS, body, **DRY)
                return False
            except ApiError as error:
                if error.status != 403:
                    raise
        return True

    def run(argv: list[str], data: str | None) -> tuple[int, str, str]:
        try:
            return 0, cluster.lab("exec", CONTROL_PLANE, *argv, stdin=data), ""
        except CommandError as error:
            return 1, "", str(error)

    kubectl = Kubectl(run, "kubectl", "/etc/kubernetes/admin.conf")
    wanted = of_role("admission", writers=[], token_seconds=WEEK)
    others = copy.deepcopy(wanted)
    for item in others:
        item["metadata"]["labels"] = {"of": "another-release"}
        if item["kind"] == "ValidatingAdmissionPolicy":
            item["spec"].setdefault("variables", []).append({"name": "ofAnother", "expression": "request.name"})
            item["spec"]["matchConditions"] = [{"name": "of-another", "expression": "request.name == 'nothing'"}]
            item["spec"]["validations"] *= 2
    assert not converge(kubectl, WantedObjects(wanted), check_mode=True).changed
    try:
        converge(kubectl, WantedObjects(others), check_mode=False)
    finally:
        changed = converge(kubectl, WantedObjects(wanted), check_mode=False).objects
        # The API server applies each of them a moment after it has stored it.
        cluster.until("a tenant's pods are forbidden again", in_force, 30)
    assert len(changed) == len(wanted)
    live = kubectl.json(["get", "validatingadmissionpolicies,validatingadmissionpolicybindings"])
    ours = [item for item in live["items"] if item["metadata"]["name"].startswith("gpushare-")]
    assert len(ours) == len(wanted)
    assert not re.search(
        "another-release|ofAnother|of-another", json.dumps([[item["metadata"].get("labels"), item["spec"]] for item in ours])
    )
    assert not converge(kubectl, WantedObjects(wanted), check_mode=True).changed
