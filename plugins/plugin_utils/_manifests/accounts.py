# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The accounts of gpushare's daemons and their rights: the one place where these are decided.

Pure. A limit that a right does not say (that a device plugin corrects only the pods of its own node) is what the admission policies add:
policies.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...module_utils._cluster.names import DASHBOARD, NAMESPACE, PLUGIN, PLUGIN_ACCOUNT_PREFIX, UNHEALTHY_PREFIX
from .policies import EXTENDER, SCHEDULER, Json

RBAC_GROUP = "rbac.authorization.k8s.io"
RBAC = f"{RBAC_GROUP}/v1"
_LEASES = "coordination.k8s.io"
#: Lease of the cluster's own.
DEFAULT_SCHEDULER = "kube-scheduler"
#: Of the dashboard as a pod.
DASHBOARD_ROLE = f"{DASHBOARD}-in-cluster"
AUTH_READER = "extension-apiserver-authentication-reader"


def rule(group: str, resources: Sequence[str], verbs: Sequence[str], names: Sequence[str] = ()) -> Json:
    made: Json = {"apiGroups": [group], "resources": list(resources), "verbs": list(verbs)}
    return {**made, "resourceNames": list(names)} if names else made


# Rules that more than one account has. Annotations are part of a status; an account that may patch a pod itself may change its images.
_PATCH_PODS = rule("", ["pods/status"], ["patch"])
_EVENTS = rule("", ["events"], ["create", "patch"])


def _extender_rules(evict: bool) -> list[Json]:
    """The account watches pods and nodes, binds pods, and says why it rejects them. evict: pods that use more than their units."""
    return [
        rule("", ["pods", "nodes"], ["get", "list", "watch"]),
        # One annotation, so that the scheduler tries a pending pod again.
        _PATCH_PODS,
        rule("", ["pods/binding"], ["create"]),
        *([rule("", ["pods/eviction"], ["create"])] if evict else []),
        _EVENTS,
        # Whom preemption may evict.
        rule("policy", ["poddisruptionbudgets"], ["list", "watch"]),
    ]


def _kube_scheduler_rules() -> list[Json]:
    """The rights of kube-scheduler besides the extender's: the part of system:kube-scheduler and system:volume-scheduler that it uses here.

    Sources, v1.30.14, v1.36.3 and v1.37.2, on 2026-11-29: plugin/pkg/auth/authorizer/rbac/bootstrappolicy/policy.go, and the calls of
    pkg/scheduler. policies.py restricts these rights further. The parts that are missing: Leases but ours, LeaseCandidates (the feature
    CoordinatedLeaderElection is off), and ResourceClaims that the scheduler makes itself (for extended resources of DRA drivers).
    """
    read = ["get", "list", "watch"]
    return [
        # Preemption.
        rule("", ["pods"], ["delete"]),
        rule("events.k8s.io", ["events"], ["create", "patch"]),
        # Where the other pods of a workload are.
        rule("", ["namespaces", "services", "replicationcontrollers"], read),
        rule("apps", ["replicasets", "statefulsets"], read),
        rule("scheduling.k8s.io", ["podgroups", "compositepodgroups"], read),
        rule("scheduling.k8s.io", ["podgroups/status", "compositepodgroups/status"], ["patch"]),
        # Volumes.
        rule("", ["persistentvolumes", "persistentvolumeclaims"], [*read, "update"]),
        rule("storage.k8s.io", ["csidrivers", "csinodes", "csistoragecapacities", "storageclasses", "volumeattachments"], read),
        # Dynamic resource allocation.
        rule("resource.k8s.io", ["deviceclasses", "resourceslices", "devicetaintrules"], read),
        rule("resource.k8s.io", ["resourceclaims"], [*read, "update"]),
        rule("resource.k8s.io", ["resourceclaims/status", "resourceclaims/binding"], ["update", "patch"]),
        # Callers of its metrics.
        rule("authentication.k8s.io", ["tokenreviews"], ["create"]),
        rule("authorization.k8s.io", ["subjectaccessreviews"], ["create"]),
    ]


def _device_plugin_rules(node: str = "") -> list[Json]:
    """The account reads and corrects pods, and publishes a node's GPUs. node: the only one, "" for any, if a policy holds it to its own."""
    names = [node] if node else []
    return [
        rule("", ["pods"], ["get", "list", "watch"]),
        _PATCH_PODS,
        rule("", ["nodes"], ["get", "list", "watch"], names),
        rule("", ["nodes/status"], ["patch"], names),
        _EVENTS,
    ]


def extender(lease: str, evict: bool) -> list[Json]:
    """The extender beside a kube-scheduler. lease: namespace/name of the scheduler's, or "none"."""
    namespace, slash, name = lease.partition("/")
    reads = rule(_LEASES, ["leases"], ["get"], [name])
    here, elsewhere = namespace == NAMESPACE, bool(slash) and namespace != NAMESPACE
    # It renews its own token, and can get no other account's.
    own = rule("", ["serviceaccounts/token"], ["create"], [EXTENDER])
    cluster = [*_extender_rules(evict), *([reads] if elsewhere else [])]
    return _account(EXTENDER, cluster, [*([reads] if here else []), own])


# The API server decides by a person's own token what that person sees: the dashboard's account has no more for it.
_DASHBOARD = (rule("", ["nodes", "pods"], ["list", "watch"]),)
_DASHBOARD_BY_CLAIMS = (rule("resource.k8s.io", ["resourceslices", "resourceclaims"], ["list", "watch"]),)


def dashboard() -> list[Json]:
    """The account reads pods and nodes, and renews its own token."""
    own = rule("", ["serviceaccounts/token"], ["create"], [DASHBOARD])
    return _account(DASHBOARD, _DASHBOARD, [own])


def dashboard_in_cluster(namespace: str, *, by_claims: bool = False) -> list[Json]:
    """The account of the dashboard's pod, which reads pods and nodes; with the back end dra what says who has their GPUs, too.

    kubelet renews its token. A dashboard on a host has others.
    """
    rules = [*_DASHBOARD, *(_DASHBOARD_BY_CLAIMS if by_claims else ())]
    role = {"apiVersion": RBAC, "kind": "ClusterRole", "metadata": {"name": DASHBOARD_ROLE}, "rules": rules}
    return [service_account(DASHBOARD, namespace), role, cluster_role_binding(DASHBOARD_ROLE, DASHBOARD_ROLE, DASHBOARD, namespace)]


def device_plugin(node: str) -> list[Json]:
    """The device plugin of one node, as a service of the host."""
    account = PLUGIN_ACCOUNT_PREFIX + node
    own = [
        rule("", ["serviceaccounts/token"], ["create"], [account]),
        rule("", ["configmaps"], ["get", "patch"], [UNHEALTHY_PREFIX + node]),
        # RBAC does not know the name of what is created.
        rule("", ["configmaps"], ["create"]),
    ]
    return _account(account, _device_plugin_rules(node), own)


def in_cluster(namespace: str, evict: bool, default_scheduler: bool = False) -> list[Json]:
    """The accounts of the scheduler's pods and of the device plugins' pods. kubelet renews their tokens."""
    plugin = [service_account(PLUGIN, namespace), *granted(PLUGIN, _device_plugin_rules(), namespace)]
    if default_scheduler:
        rules = [*_extender_rules(evict), rule(_LEASES, ["leases"], ["get"], [DEFAULT_SCHEDULER])]
        return [service_account(EXTENDER, namespace), *granted(EXTENDER, rules, namespace), *plugin]
    lease = [rule(_LEASES, ["leases"], ["create"]), rule(_LEASES, ["leases"], ["get", "update"], [SCHEDULER])]
    rules = [*_extender_rules(evict), *_kube_scheduler_rules()]
    scheduler = [service_account(SCHEDULER, namespace), *granted(SCHEDULER, rules, namespace)]
    scheduler += [role_of(SCHEDULER, lease, namespace), role_binding(SCHEDULER, SCHEDULER, SCHEDULER, namespace, namespace)]
    # kube-scheduler asks by it who its own callers are.
    scheduler += [role_binding(f"{SCHEDULER}-auth-reader", AUTH_READER, SCHEDULER, namespace, NAMESPACE)]
    return [*scheduler, *plugin]


def service_account(name: str, namespace: str) -> Json:
    """An account whose token only those get who ask for it."""
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata, "automountServiceAccountToken": False}


def role_of(name: str, rules: Sequence[Json], namespace: str) -> Json:
    return {"apiVersion": RBAC, "kind": "Role", "metadata": {"name": name, "namespace": namespace}, "rules": list(rules)}


def role_binding(name: str, role: str, account: str, space: str, namespace: str) -> Json:
    """Grants a role of `namespace` to the account of the namespace `space`."""
    metadata = {"name": name, "namespace": namespace}
    return {"apiVersion": RBAC, "kind": "RoleBinding", "metadata": metadata, **_grant("Role", role, account, space)}


def cluster_role_binding(name: str, role: str, account: str, space: str) -> Json:
    return {"apiVersion": RBAC, "kind": "ClusterRoleBinding", "metadata": {"name": name}, **_grant("ClusterRole", role, account, space)}


def _grant(kind: str, role: str, account: str, space: str) -> dict[str, Any]:
    subject = {"kind": "ServiceAccount", "name": account, "namespace": space}
    return {"roleRef": {"apiGroup": RBAC_GROUP, "kind": kind, "name": role}, "subjects": [subject]}


def granted(name: str, rules: Sequence[Json], namespace: str) -> list[Json]:
    """Rights in the whole cluster."""
    role = {"apiVersion": RBAC, "kind": "ClusterRole", "metadata": {"name": name}, "rules": list(rules)}
    return [role, cluster_role_binding(name, name, name, namespace)]


def _account(name: str, cluster: Sequence[Json], own: Sequence[Json]) -> list[Json]:
    """An account of a service: its rights in the cluster, and those in its namespace."""
    of_namespace = [role_of(name, own, NAMESPACE), role_binding(name, name, name, NAMESPACE, NAMESPACE)]
    return [service_account(name, NAMESPACE), *granted(name, cluster, NAMESPACE), *of_namespace]
