# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The Kubernetes cluster on an instance's nodes: kubeadm init, join, leave, and waiting until it is usable."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

from . import nodes, payload
from .access import kubeconfig_file
from .api import Api
from .process import LabError, in_parallel, run, say, until
from .runtimes import socket_of
from .spec import API_PORT, CONTROL_PLANE, POD_SUBNET, Node, no_longer_wanted
from .state import Instance

_KUBEADM_TIMEOUT_S = 360.0
# Three control planes that start at once on 2 cores, with as much work beside them, took three minutes.
_READY_DEADLINE_S = 900.0
# Several members of etcd share the processors and the disk of one machine: with its own values (100 and 1000 ms)
# they would elect a leader again and again. A killed node takes nothing from the disk that the kernel still has.
_ETCD = {"heartbeat-interval": "300", "election-timeout": "3000", "unsafe-no-fsync": "true"}

# The taints of a node that was not Ready, which go some moments after it is.
_NOT_READY = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")
_LEADERS = ("kube-controller-manager", "kube-scheduler")
_LEASES = "/apis/coordination.k8s.io/v1/namespaces"


def kubectl_file(instance: Instance) -> Path:
    """kubectl as it was when the instance came up, a link into the cache."""
    return instance.folder / "kubectl"


def link_kubectl(instance: Instance, programs: Path) -> None:
    """Let the instance's kubectl be the one of these programs."""
    partial = instance.folder / "kubectl.partial"
    partial.unlink(missing_ok=True)
    partial.symlink_to(programs / "kubectl")
    partial.rename(kubectl_file(instance))


def api_of(instance: Instance) -> Api:
    """The instance's API server, asked as the cluster's administrator."""
    return Api(kubeconfig_file(instance))


def kubectl(instance: Instance, *arguments: str, check: bool = True) -> str:
    """Run kubectl on this machine as the cluster's administrator and return what it printed."""
    argv: list[str | Path] = [kubectl_file(instance), "--kubeconfig", kubeconfig_file(instance), "--request-timeout=10s", *arguments]
    return run(argv, check=check).stdout


def form(instance: Instance) -> set[str]:
    """Make the cluster, or add what is missing; returns the nodes that are new in it."""
    new: set[str] = set()
    if not nodes.record_of(instance, CONTROL_PLANE).cluster:
        _init(instance)
        new.add(CONTROL_PLANE)
    _fetch_kubeconfig(instance)
    wait_api(instance)
    cluster = nodes.record_of(instance, CONTROL_PLANE).cluster
    joining = [node for node in instance.nodes if nodes.record_of(instance, node.name).cluster != cluster]
    if joining:
        _forget(instance, [node.name for node in joining])
        arguments = _join_arguments(instance)
        # One after another: each becomes a member of etcd, which takes in one at a time.
        for node in [node for node in joining if node.is_control_plane]:
            _join(instance, node.name, [*arguments, *_control_plane_arguments(instance, node)], cluster)
        gpu_nodes = [node for node in joining if node.has_gpus]
        in_parallel(lambda node: _join(instance, node.name, [*arguments, "--cri-socket", socket_of(node.runtime)], cluster), gpu_nodes)
    _forget_strangers(instance)
    return new | {node.name for node in joining}


def _init(instance: Instance) -> None:
    node = instance.node(CONTROL_PLANE)
    say(f"{CONTROL_PLANE}: kubeadm init, Kubernetes {instance.kubernetes}")
    config = payload.render(
        "kubeadm.yaml",
        address=node.address,
        endpoint=f"{instance.endpoint}:{API_PORT}" if instance.endpoint else "",
        etcd_arguments=json.dumps([{"name": key, "value": value} for key, value in _ETCD.items()] if instance.endpoint else []),
        version=instance.kubernetes,
        pod_subnet=POD_SUBNET,
    )
    nodes.execute(instance, CONTROL_PLANE, "sh", "-c", "cat > /etc/gpushare-lab/kubeadm.yaml", stdin=config)
    _kubeadm(instance, CONTROL_PLANE, "init", "--config", "/etc/gpushare-lab/kubeadm.yaml")
    authority = nodes.execute(instance, CONTROL_PLANE, "cat", "/etc/kubernetes/pki/ca.crt")
    nodes.note(instance, CONTROL_PLANE, cluster=hashlib.sha256(authority.encode()).hexdigest())


def _fetch_kubeconfig(instance: Instance) -> None:
    text = nodes.execute(instance, CONTROL_PLANE, "cat", "/etc/kubernetes/admin.conf")
    path = kubeconfig_file(instance)
    partial = path.with_suffix(".partial")
    partial.touch(mode=0o600)
    partial.write_text(text)
    partial.rename(path)


def _join_arguments(instance: Instance) -> list[str]:
    """What follows `kubeadm`, with a token for the next half hour."""
    command = ("kubeadm", "token", "create", "--ttl", "30m", "--print-join-command")
    return nodes.execute(instance, CONTROL_PLANE, *command).split()[1:]


def _control_plane_arguments(instance: Instance, node: Node) -> list[str]:
    """What `kubeadm join` needs besides for a control plane: the way to the certificates, which are in the cluster for two hours."""
    said = nodes.execute(instance, CONTROL_PLANE, "kubeadm", "init", "phase", "upload-certs", "--upload-certs")
    return ["--control-plane", "--certificate-key", said.split()[-1], "--apiserver-advertise-address", node.address]


def _join(instance: Instance, name: str, arguments: list[str], cluster: str) -> None:
    say(f"{name}: kubeadm join")
    _kubeadm(instance, name, *arguments, "--ignore-preflight-errors=all")
    nodes.note(instance, name, cluster=cluster)


def _kubeadm(instance: Instance, name: str, *arguments: str) -> None:
    try:
        nodes.execute(instance, name, "kubeadm", *arguments, timeout_s=_KUBEADM_TIMEOUT_S)
    except LabError as error:
        raise LabError(f"{error}\n{nodes.logs(instance, name, 'kubelet')}") from error


def _forget(instance: Instance, names: list[str]) -> None:
    """kubeadm does not join a host under the name of a node that still is registered as ready."""
    kubectl(instance, "delete", "node", "--ignore-not-found", *names)


def _forget_strangers(instance: Instance) -> None:
    """Nodes of a former, larger instance; others, such as a test makes without a kubelet, are not the lab's to remove."""
    known = kubectl(instance, "get", "nodes", "-o", "jsonpath={.items[*].metadata.name}").split()
    if gone := no_longer_wanted(known, instance.nodes):
        say(f"removing from the cluster: {', '.join(gone)}")
        _forget(instance, gone)


def upgrade(instance: Instance, version: str) -> None:
    """Have kubeadm, which is of that version already, upgrade the control plane and then the other nodes."""
    ignore = "--ignore-preflight-errors=all"
    for node in instance.nodes:
        command = ("apply", f"v{version}", "--yes", ignore) if node.name == CONTROL_PLANE else ("node", ignore)
        say(f"{node.name}: kubeadm upgrade {' '.join(command[:-1])}")
        _kubeadm(instance, node.name, "upgrade", *command)
        nodes.execute(instance, node.name, "systemctl", "restart", "kubelet")
    wait_api(instance)


def wait_api(instance: Instance) -> None:
    """Wait until the API server says that it is ready."""
    until(
        "the API server to be ready",
        _READY_DEADLINE_S,
        api_of(instance).ready,
        why_not=lambda: nodes.logs(instance, CONTROL_PLANE, "kubelet"),
    )


def wait_ready(instance: Instance, restarted: dict[str, str]) -> None:
    """Wait until all nodes are Ready, without the taint that they had while they were not, and pods can be made.

    ``restarted`` maps each node that was started again to when that was (RFC 3339, UTC): the API server goes
    on calling a node Ready for a while after it stopped, so such a node must have renewed its lease since.
    """

    api = api_of(instance)

    def not_ready() -> list[str]:
        ready = {
            item["metadata"]["name"]
            for item in api.items("/api/v1/nodes") or []
            for condition in item["status"].get("conditions", [])
            if (condition["type"], condition["status"]) == ("Ready", "True")
            and condition.get("lastHeartbeatTime", "") >= restarted.get(item["metadata"]["name"], "")
            and not any(taint["key"] in _NOT_READY for taint in item["spec"].get("taints", []))
        }
        missing = [node.name for node in instance.nodes if node.name not in ready]
        if missing or not restarted:
            return missing
        renewed = _renewals(api, "kube-node-lease")
        return [name for name, since in restarted.items() if renewed.get(name, "") < since]

    def why_not() -> str:
        names = not_ready() or [CONTROL_PLANE]
        listed = kubectl(instance, "get", "nodes", "-o", "wide", check=False)
        return "\n".join([listed, *(nodes.logs(instance, name, "kubelet", "containerd") for name in names)])

    until("all nodes to be Ready", _READY_DEADLINE_S, lambda: not not_ready(), why_not=why_not)
    until(
        "the ServiceAccount that pods need",
        _READY_DEADLINE_S,
        lambda: api.get("/api/v1/namespaces/default/serviceaccounts/default"),
        why_not=lambda: kubectl(instance, "-n", "kube-system", "get", "pods", "-o", "wide", check=False),
    )


def release_leases(instance: Instance, since: str) -> None:
    """Let another process lead where the leader is one that ended before ``since``, as it would have done had it ended by itself.

    Processes that have just started would wait for 15 s whether the former leader is still there.
    """
    api = api_of(instance)
    for name in _LEADERS:
        path = f"{_LEASES}/kube-system/leases/{name}"
        lease = api.get(path)
        if not lease or not lease["spec"].get("holderIdentity") or lease["spec"]["renewTime"] >= since:
            continue
        # Unless it has changed meanwhile: then there is a new leader.
        unchanged = {"op": "test", "path": "/metadata/resourceVersion", "value": lease["metadata"]["resourceVersion"]}
        released = {"holderIdentity": "", "leaseDurationSeconds": 1}
        api.patch(path, [unchanged, *({"op": "replace", "path": f"/spec/{key}", "value": value} for key, value in released.items())])


def wait_current(instance: Instance, since: str) -> None:
    """Wait until scheduler and controllers work, and no pod of a node counts as running that has not started after ``since``."""
    names, api = {node.name for node in instance.nodes}, api_of(instance)

    def not_current() -> list[str]:
        renewed = _renewals(api, "kube-system")
        idle = [name for name in _LEADERS if renewed.get(name, "") < since]
        pods = api.items("/api/v1/pods")
        return idle or (["the API server"] if pods is None else stale_pods(pods, names, since))

    def why_not() -> str:
        listed = kubectl(instance, "get", "pods", "-A", "-o", "wide", check=False)
        return f"not current: {', '.join(not_current())}\n{listed}\n{nodes.logs(instance, CONTROL_PLANE, 'kubelet')}"

    until("scheduler, controllers and pods to be those of now", _READY_DEADLINE_S, lambda: not not_current(), why_not=why_not)


def stale_pods(pods: Sequence[Mapping[str, Any]], names: AbstractSet[str], since: str) -> list[str]:
    """The pods on these nodes of which a container is said to run since before ``since`` (RFC 3339, UTC), when all of them ended."""
    return [
        f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
        for pod in pods
        if pod["spec"].get("nodeName") in names
        and any(
            status.get("state", {}).get("running", {"startedAt": since})["startedAt"] < since
            for status in pod["status"].get("containerStatuses", [])
        )
    ]


def _renewals(api: Api, namespace: str) -> dict[str, str]:
    """When each Lease of a namespace that somebody holds was renewed (RFC 3339, UTC)."""
    leases = api.items(f"{_LEASES}/{namespace}/leases") or []
    return {lease["metadata"]["name"]: lease["spec"].get("renewTime", "") for lease in leases if lease["spec"].get("holderIdentity")}


def replace_by_kubectl(instance: Instance, arguments: list[str]) -> None:
    """Become kubectl with the instance's kubeconfig; does not return."""
    kubeconfig = kubeconfig_file(instance)
    if not kubeconfig.exists():
        raise LabError(f"{kubeconfig} does not exist: the lab did not come up; call `lab --name {instance.name} up`")
    os.execve(kubectl_file(instance), ["kubectl", *arguments], {**os.environ, "KUBECONFIG": str(kubeconfig)})
