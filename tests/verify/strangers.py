# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Faults that people have reported in public threads, and some of ours, none of which has a code of its own in verify: it must find each.

A draw plants one of the cluster and one on each GPU node at once. Read on 2026-11-29; the sentences here are our own.
"""

from __future__ import annotations

import contextlib
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from e2e.cluster import CONTROL_PLANE, GPU_NODES, Cluster
from verify.faults import CONTAINERD, kept, program, sh

KUBELET: Final = "/var/lib/kubelet/config.yaml"
CONTROLLERS: Final = "/etc/kubernetes/manifests/kube-controller-manager.yaml"
CALICO: Final = "/etc/cni/net.d/00-calico.conflist"
ETCD: Final = "/etc/kubernetes/manifests/etcd.yaml"
THEIRS: Final = "/apis/admissionregistration.k8s.io/v1/mutatingadmissionpolicies"
#: In the place of a thread, of a fault that we have thought of.
OURS: Final = "docs/project/faults.md"
AUTOSCALER: Final = "ToBeDeletedByClusterAutoscaler"

Plant = Callable[[Cluster, str, contextlib.ExitStack], None]


@dataclass(frozen=True)
class Stranger:
    """named: words that a finding must have, in what was found or in its cure, to have named the cause.

    by_hand: does what the cure asks of hands, None where its commands are all. host: where it is planted, None for any GPU node, "" for
    the cluster. gone: whether it is, without a question to the product; None where pods of users show it.
    """

    name: str
    source: str
    plant: Plant
    named: str
    by_hand: Callable[[Cluster, str], None] | None = None
    host: str | None = None
    gone: Callable[[Cluster], bool] | None = None


def _kubelet(added: str) -> Plant:
    """Lines at the end of kubelet's configuration, and a restart."""

    def plant(cluster: Cluster, node: str, later: contextlib.ExitStack) -> None:
        later.callback(_kubelet_as_it_was, cluster, node)
        kept(cluster, later, node, KUBELET)
        sh(cluster, node, f"cp -p {KUBELET} /run/test-kubelet; cat >> {KUBELET}; systemctl restart --no-block kubelet", added)

    return plant


def _kubelet_as_it_was(cluster: Cluster, node: str) -> None:
    sh(cluster, node, f"cp -p /run/test-kubelet {KUBELET}; systemctl reset-failed kubelet; systemctl restart kubelet")


def _cpu_state(cluster: Cluster, node: str, later: contextlib.ExitStack) -> None:
    """A reserved CPU, which the policy needs, and the policy itself, which the state of the kubelet before does not have."""
    later.callback(sh, cluster, node, "rm -f /var/lib/kubelet/cpu_manager_state; systemctl restart kubelet")
    _kubelet('cpuManagerPolicy: static\nkubeReserved:\n  cpu: "100m"\n')(cluster, node, later)


def _cpu_state_removed(cluster: Cluster, node: str) -> None:
    sh(cluster, node, "rm /var/lib/kubelet/cpu_manager_state; systemctl restart kubelet")


def _cri_disabled(cluster: Cluster, node: str, later: contextlib.ExitStack) -> None:
    later.callback(sh, cluster, node, "systemctl restart containerd")
    kept(cluster, later, node, CONTAINERD)
    line = 'disabled_plugins = ["io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri"]'
    sh(cluster, node, f"sed -i '/^disabled_plugins/d' {CONTAINERD}; sed -i '1i {line}' {CONTAINERD}; systemctl restart containerd")


def _cri_enabled(cluster: Cluster, node: str) -> None:
    sh(cluster, node, f"sed -i '/^disabled_plugins/d' {CONTAINERD}; systemctl restart containerd")


def _no_network_plugins(cluster: Cluster, node: str, later: contextlib.ExitStack) -> None:
    later.callback(_network_plugins, cluster, node)
    cluster.on(node, "rm", "/opt/cni/bin")


def _network_plugins(cluster: Cluster, node: str) -> None:
    cluster.on(node, "ln", "-sfn", "/usr/lib/cni", "/opt/cni/bin")


def _no_hook(cluster: Cluster, node: str, later: contextlib.ExitStack) -> None:
    """A program of NVIDIA's toolkit that its CDI specs name."""
    later.callback(_hook, cluster, node)
    cluster.on(node, "mv", "/usr/bin/nvidia-cdi-hook", "/run/")


def _hook(cluster: Cluster, node: str) -> None:
    sh(cluster, node, "test ! -e /run/nvidia-cdi-hook || mv /run/nvidia-cdi-hook /usr/bin/")


def _no_network(cluster: Cluster, node: str, later: contextlib.ExitStack) -> None:
    """containerd notices it at once, and kubelet tells it with the next state of its node."""
    later.callback(_network, cluster, node)
    sh(cluster, node, "mv /etc/cni/net.d /run/test-net.d; mkdir /etc/cni/net.d; systemctl restart containerd")
    cluster.until("the node is not Ready", lambda: "True" not in _ready(cluster, node), 90)


def _ready(cluster: Cluster, node: str) -> list[str]:
    return [each["status"] for each in cluster.node(node)["status"]["conditions"] if each["type"] == "Ready"]


def _network(cluster: Cluster, node: str) -> None:
    back = "rmdir /etc/cni/net.d && mv /run/test-net.d /etc/cni/net.d && systemctl restart containerd"
    sh(cluster, node, f"test ! -e /run/test-net.d || {{ {back}; }}")
    cluster.until("the node is Ready", lambda: "True" in _ready(cluster, node), 90)


def _other_network(cluster: Cluster, node: str, later: contextlib.ExitStack) -> None:
    """The file of a network whose plugin is gone, before that of the network in use."""
    later.callback(_other_network_removed, cluster, node)
    content = json.dumps(
        {"name": "k8s-pod-network", "cniVersion": "0.3.1", "plugins": [{"type": "calico", "ipam": {"type": "calico-ipam"}}]}
    )
    sh(cluster, node, f"cat > {CALICO}; sleep 5", content)


def _other_network_removed(cluster: Cluster, node: str) -> None:
    sh(cluster, node, f"rm -f {CALICO}; sleep 5")


def _few_files(cluster: Cluster, node: str, later: contextlib.ExitStack) -> None:
    """Pods start all the same, and their programs have that limit."""
    folder = "/etc/systemd/system/containerd.service.d"
    again = "systemctl daemon-reload; systemctl restart containerd"
    later.callback(sh, cluster, node, f"rm -f {folder}/90-limits.conf; {again}")
    sh(cluster, node, f"mkdir -p {folder}; printf '[Service]\\nLimitNOFILE=64\\n' > {folder}/90-limits.conf; {again}")


def _no_runc(cluster: Cluster, node: str, later: contextlib.ExitStack) -> None:
    later.callback(sh, cluster, node, "chmod 0755 /usr/sbin/runc")
    cluster.on(node, "chmod", "0644", "/usr/sbin/runc")


def _tainted(cluster: Cluster, node: str, later: contextlib.ExitStack) -> None:
    later.callback(sh, cluster, CONTROL_PLANE, f"KUBECONFIG=/etc/kubernetes/admin.conf kubectl taint nodes {node} {AUTOSCALER}- || :")
    cluster.kubectl("taint", "nodes", node, f"{AUTOSCALER}=1540453142:NoSchedule")


def _node_deleted(cluster: Cluster, node: str, later: contextlib.ExitStack) -> None:
    cluster.kubectl("delete", "node", node)


def _quota(cluster: Cluster, node: str, later: contextlib.ExitStack) -> None:
    path = "/api/v1/namespaces/default/resourcequotas"
    later.callback(_quota_removed, cluster, node)
    cluster.api.create(path, {"metadata": {"name": "compute-resources"}, "spec": {"hard": {"requests.cpu": "4", "requests.memory": "8Gi"}}})
    cluster.until("the quota is counted", lambda: cluster.api.get(f"{path}/compute-resources").get("status", {}).get("used"), 60)


def _quota_removed(cluster: Cluster, node: str) -> None:
    cluster.kubectl("delete", "resourcequota", "compute-resources", "--ignore-not-found")


def _other_scheduler(cluster: Cluster, node: str, later: contextlib.ExitStack) -> None:
    """Their admission gives every pod of users a scheduler that is not there any more."""
    later.callback(_other_scheduler_removed, cluster, node)
    _shape_pods(cluster, "schedulers", 'Object{spec: Object.spec{schedulerName: "yunikorn"}}')


def _gated(cluster: Cluster, node: str, later: contextlib.ExitStack) -> None:
    """The program that would take the gate away is not there any more."""
    later.callback(_gates_removed, cluster, node)
    gate = 'Object.spec.schedulingGates{name: "queues.example.com/admission"}'
    _shape_pods(cluster, "queues", f"Object{{spec: Object.spec{{schedulingGates: [{gate}]}}}}")


def _shape_pods(cluster: Cluster, name: str, expression: str) -> None:
    """A policy of others that changes every pod of users."""
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    users = {"matchExpressions": [{"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system"]}]}
    change = {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}}
    spec = {"matchConstraints": {"resourceRules": [rule], "namespaceSelector": users}, "reinvocationPolicy": "Never", "mutations": [change]}
    cluster.api.create(THEIRS, {"metadata": {"name": name}, "spec": spec})
    binding = {"metadata": {"name": name}, "spec": {"policyName": name}}
    cluster.api.create(THEIRS.replace("policies", "policybindings"), binding)


def _other_scheduler_removed(cluster: Cluster, node: str) -> None:
    _policy_removed(cluster, "schedulers")


def _gates_removed(cluster: Cluster, node: str) -> None:
    _policy_removed(cluster, "queues")


def _policy_removed(cluster: Cluster, name: str) -> None:
    for kind in ("mutatingadmissionpolicybindings", "mutatingadmissionpolicies"):
        cluster.kubectl("delete", kind, name, "--ignore-not-found")


def _webhook_by_url(cluster: Cluster, node: str, later: contextlib.ExitStack) -> None:
    """It fails closed, and nothing listens there."""
    path = THEIRS.replace("mutatingadmissionpolicies", "validatingwebhookconfigurations")
    later.callback(cluster.kubectl, "delete", "validatingwebhookconfiguration", "nodeguard", "--ignore-not-found")
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["UPDATE"], "resources": ["nodes/status"]}
    how = {"sideEffects": "None", "admissionReviewVersions": ["v1"], "timeoutSeconds": 2}
    hook = {"name": "nodeguard.example.com", "clientConfig": {"url": "https://127.0.0.1:9/"}, "rules": [rule], **how}
    cluster.api.create(path, {"metadata": {"name": "nodeguard"}, "webhooks": [hook]})


def _etcd_full(cluster: Cluster, node: str, later: contextlib.ExitStack) -> None:
    """A quota below what it has already: with the next write etcd takes no more."""
    later.callback(_etcd_has_room, cluster, node)
    added = r"s/^\( *\)- etcd$/&\n\1- --quota-backend-bytes=65536/"
    sh(cluster, CONTROL_PLANE, f"sed '{added}' {ETCD} > /run/test-new; grep -q quota-backend /run/test-new; cp /run/test-new {ETCD}")

    def full() -> bool:
        try:
            cluster.kubectl("create", "configmap", "test-full", "--dry-run=none")
        except Exception as error:
            return "database space exceeded" in str(error)
        cluster.kubectl("delete", "configmap", "test-full")
        return False

    cluster.until("etcd takes no more", full, 180)


def _etcd_has_room(cluster: Cluster, node: str) -> None:
    sh(cluster, CONTROL_PLANE, f"sed '/--quota-backend-bytes/d' {ETCD} > /run/test-new; cp /run/test-new {ETCD}")

    def disarmed() -> bool:
        program(cluster, CONTROL_PLANE, "disarm_alarms.py")
        cluster.kubectl("annotate", "node", CONTROL_PLANE, "gpushare.test/full=no", "--overwrite")
        return True

    cluster.until("etcd takes writes again", disarmed, 180)


def _no_controllers(cluster: Cluster, node: str, later: contextlib.ExitStack) -> None:
    """A manifest with a flag that kube-controller-manager does not know."""
    later.callback(_controllers, cluster, node)
    unknown = r"s/^\( *\)- kube-controller-manager$/&\n\1- --no-such-flag=1/"
    changed = f"sed '{unknown}' {CONTROLLERS} > /run/test-new; grep -q no-such /run/test-new; cp /run/test-new {CONTROLLERS}"
    sh(cluster, CONTROL_PLANE, changed)
    cluster.until("the controllers are away", lambda: not sh(cluster, CONTROL_PLANE, "pgrep -x kube-controller || :").strip(), 90)
    time.sleep(70)  # Verify calls a Lease old after 60 s.


def _controllers(cluster: Cluster, node: str) -> None:
    sh(cluster, CONTROL_PLANE, f"sed '/--no-such-flag/d' {CONTROLLERS} > /run/test-new; cp /run/test-new {CONTROLLERS}")
    cluster.until("the controllers run", lambda: sh(cluster, CONTROL_PLANE, "pgrep -x kube-controller || :").strip(), 120)


OF_A_NODE: Final = (
    Stranger(
        "kubelet's CPU manager has the state of another policy",
        "https://github.com/siderolabs/talos/issues/7504",
        _cpu_state,
        "cpu_manager_state",
        _cpu_state_removed,
    ),
    Stranger(
        "a feature gate that this kubelet does not have any more",
        "https://github.com/RamenDR/ramen/pull/2403",
        _kubelet("featureGates:\n  StatefulSetAutoDeletePVC: true\n"),
        "StatefulSetAutoDeletePVC",
        _kubelet_as_it_was,
    ),
    Stranger(
        "kubelet's resolvConf is a file of systemd-resolved, which does not run",
        "https://github.com/kubernetes/kubernetes/issues/103110",
        _kubelet("resolvConf: /run/systemd/resolve/resolv.conf\n"),
        "/run/systemd/resolve/resolv.conf",
        _kubelet_as_it_was,
    ),
    Stranger(
        "kubelet takes no more pods",
        "https://github.com/Panfactum/stack/issues/129",
        _kubelet("maxPods: 1\n"),
        "Too many pods",
        _kubelet_as_it_was,
    ),
    Stranger(
        "containerd without its CRI, as a package's file has it",
        "https://github.com/containerd/containerd/issues/14121",
        _cri_disabled,
        "disabled_plugins",
        _cri_enabled,
    ),
    Stranger(
        "the network plugins are gone",
        "https://github.com/niloysh/testbed-automator/issues/6",
        _no_network_plugins,
        "/opt/cni/bin",
        _network_plugins,
    ),
    Stranger("a part of NVIDIA's toolkit is gone", "https://github.com/ublue-os/bluefin/issues/3454", _no_hook, "nvidia-cdi-hook", _hook),
    Stranger("a taint that the autoscaler forgot", "https://github.com/deckhouse/deckhouse/issues/736", _tainted, AUTOSCALER),
    Stranger(
        "the Node was deleted, and its kubelet runs",
        "https://github.com/kubernetes/kubernetes/issues/71398",
        _node_deleted,
        "systemctl restart kubelet",
    ),
    Stranger(
        "no configuration of the network plugins",
        "https://github.com/kubernetes/kubernetes/issues/48798",
        _no_network,
        "cni plugin not initialized",
        _network,
    ),
    Stranger(
        "the file of a network that was removed",
        "https://github.com/openshift/openshift-ansible/issues/11953",
        _other_network,
        "/etc/cni/net.d",
        _other_network_removed,
    ),
    Stranger(
        "pods may have one process",
        "https://github.com/bottlerocket-os/bottlerocket/pull/2138",
        _kubelet("podPidsLimit: 1\n"),
        "podPidsLimit",
        _kubelet_as_it_was,
    ),
    Stranger("containerd has few open files", OURS, _few_files, "LimitNOFILE=64"),
    Stranger("runc may not be executed", OURS, _no_runc, "runc"),
    Stranger(
        "kubelet gives the runtime a millisecond",
        OURS,
        _kubelet("runtimeRequestTimeout: 1ms\n"),
        "runtimeRequestTimeout",
        _kubelet_as_it_was,
    ),
)
OF_THE_CLUSTER: Final = (
    Stranger(
        "a quota of another team's template", "https://github.com/rancher/rancher/issues/17316", _quota, "compute-resources", _quota_removed
    ),
    Stranger(
        "another scheduler's admission outlived it",
        "https://github.com/apache/yunikorn-k8shim/pull/27",
        _other_scheduler,
        "yunikorn",
        _other_scheduler_removed,
    ),
    Stranger("a policy holds every pod back, and its program is gone", OURS, _gated, "MutatingAdmissionPolicy queues", _gates_removed),
    Stranger("a webhook by URL on states of nodes does not answer", OURS, _webhook_by_url, "nodeguard"),
    Stranger(
        "etcd's database is full", "https://github.com/kubernetes/kops/issues/4005", _etcd_full, "database space exceeded", _etcd_has_room
    ),
    Stranger(
        "kube-controller-manager does not start, and Deployments make no pods",
        "https://github.com/kubernetes/kubernetes/issues/20381",
        _no_controllers,
        "no-such-flag",
        _controllers,
    ),
)


def draw(seed: str) -> list[tuple[str, Stranger]]:
    """(where, fault), "" for the cluster: the faults of this draw, in the order in which they are planted."""
    chance = random.Random(seed)
    hosts = list(GPU_NODES)
    chance.shuffle(hosts)
    return [*zip(hosts, chance.sample(OF_A_NODE, len(hosts)), strict=True), ("", chance.choice(OF_THE_CLUSTER))]
