# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Everything that gpushare is in a cluster: what the playbook `cluster` applies, docs/manifests prints and the chart renders.

Pure.
"""

from __future__ import annotations

from ...module_utils._cluster.names import CLAIMS, DASHBOARD, NAMESPACE, RUNTIME_CLASS
from ...module_utils._cluster.public import public
from . import accounts, dra, openshift, policies, workloads
from .policies import Json
from .values import Values

_FORMER = (
    # Of older releases: Kubernetes' own roles for the scheduler's account, which has one of its own now. A binding's role is immutable.
    ("ClusterRoleBinding", accounts.RBAC, "gpushare-scheduler-kube-scheduler"),
    ("ClusterRoleBinding", accounts.RBAC, "gpushare-scheduler-volume-scheduler"),
    # Of another value of runtime_class.
    ("ValidatingAdmissionPolicyBinding", policies.API, "gpushare-runtime-class"),
    ("ValidatingAdmissionPolicy", policies.API, "gpushare-runtime-class"),
    ("RuntimeClass", "node.k8s.io/v1", RUNTIME_CLASS),
    # Of values with a dashboard.
    ("ClusterRoleBinding", accounts.RBAC, accounts.DASHBOARD_ROLE),
    ("ClusterRole", accounts.RBAC, accounts.DASHBOARD_ROLE),
)
_FORMER_IN_NAMESPACE = (
    *(("Deployment", "apps/v1"), ("Service", "v1"), ("NetworkPolicy", "networking.k8s.io/v1"), ("ServiceAccount", "v1")),
    *((kind, accounts.RBAC) for kind in ("RoleBinding", "Role")),
)


def obsolete(values: Values) -> list[Json]:
    """References of the objects that an older release or other values may have made, and these have not."""
    there = {(made["kind"], made["metadata"]["name"]) for made in objects(values)}
    space = {"namespace": values.namespace}
    of_dashboard = [
        {"apiVersion": version, "kind": kind, "metadata": {"name": f"{DASHBOARD}-scc" if kind.startswith("Role") else DASHBOARD, **space}}
        for kind, version in _FORMER_IN_NAMESPACE
        if not values.dashboard
    ]
    served = [former for former in _FORMER if values.policies or former[1] != policies.API]
    of_cluster = [
        {"apiVersion": version, "kind": kind, "metadata": {"name": name}} for kind, version, name in served if (kind, name) not in there
    ]
    return [*of_cluster, *of_dashboard]


def objects(values: Values) -> list[Json]:
    """The objects, those first that others need: the policies are there before the accounts whose rights they restrict.

    Before all of them the role by which the next run knows what an installation that ended in the middle has left.
    """
    made = dra.objects(values) if values.by_claims else _of_extender(values)
    pull = {"imagePullSecrets": [{"name": name} for name in values.pull_secrets]} if values.pull_secrets else {}
    marker = "ClusterRole", CLAIMS if values.by_claims else policies.SCHEDULER
    made.sort(key=lambda item: (item["kind"], item["metadata"]["name"]) != marker)
    return [{**item, **pull} if item["kind"] == "ServiceAccount" else item for item in made]


def rights(values: Values) -> list[Json]:
    """The rules of the roles in the whole cluster. Only a user who has these rights may grant them."""
    return [rule for made in objects(values) if made["kind"] == "ClusterRole" for rule in made["rules"]]


def _of_extender(values: Values) -> list[Json]:
    rules: list[Json] = []
    if values.policies:
        own = values.default_scheduler, values.scheduler_on_gpu_nodes, values.own_class
        rules = policies.in_cluster(values.namespace, values.writers, values.mutating, *own)
    rights = accounts.in_cluster(values.namespace, values.evict, values.default_scheduler)
    space = [] if values.namespace == NAMESPACE else [workloads.namespace(values)]
    rights += accounts.dashboard_in_cluster(values.namespace) if values.dashboard else []
    use = openshift.objects(values.namespace, values.dashboard) if values.openshift else []
    facts = public(values.prometheus, policies.EXTENDER if values.default_scheduler else policies.SCHEDULER, values.namespace)
    return [*space, *rules, *rights, *use, *facts, *workloads.workloads(values)]
