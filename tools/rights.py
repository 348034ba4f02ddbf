# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What each account may do and why: the tables of docs/reference/permissions.md, from the builders of chart, manifests and playbooks.

Objects that a builder makes appear by themselves. A rule, path, pod or policy without its reason here is an error. `unused` has the reasons
of none.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.names import (
    CLAIMS,
    DASHBOARD,
    DEVICE_PLUGINS,
    EXTENDER,
    LABEL_NODE,
    LABEL_NVIDIA_GPU,
    PLUGIN,
    PLUGIN_ACCOUNT_PREFIX,
    TEMPLATE,
)
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._manifests import accounts, in_cluster, on_hosts, openshift, workloads
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._manifests.policies import (
    FEW,
    POD_TOKEN_SECONDS,
    SCHEDULER,
    SYSTEM_PRIORITY,
)
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._manifests.values import Values

import modes
from markdown_parts import code, table

Document = Mapping[str, Any]

_BASE: Final = Values("", "")
_DRIVER_ROOT: Final = "/DRIVER-ROOT"
#: What brings further rights, in words of the chart → the values with it.
_MORE: Final = {
    "`overuse: evict`": replace(_BASE, overuse="evict"),
    "`dashboard.enabled`": replace(_BASE, dashboard=True),
    "`openshift`": replace(_BASE, openshift=True),
    "`openshift` and `dashboard.enabled`": replace(_BASE, openshift=True, dashboard=True),
    "`isolation: driver`": replace(_BASE, isolation="driver"),
    "`driverRoot`": replace(_BASE, driver_root=_DRIVER_ROOT),
}
_BY_CDI: Final = "`deviceStrategy: auto`, the default, or `cdi`"
_DRA: Final = "`backend: dra`"
_CLUSTERS_OWN: Final = "`gpushare_scheduler: default`"
#: The installations without a scheduler of gpushare's own.
_OTHERS: Final = {_DRA: replace(_BASE, backend="dra"), _CLUSTERS_OWN: replace(_BASE, default_scheduler=True)}
_OTHERS_WITH_DASHBOARD: Final = {words: replace(values, dashboard=True) for words, values in _OTHERS.items()}

_OF_EXTENDER: Final = {
    ("pods, nodes", "get, list, watch"): "pods that have or want GPUs, and the GPUs that nodes report",
    ("pods/status", "patch"): "the annotation `gpushare/requeued`, by which kube-scheduler tries a waiting pod again",
    ("pods/binding", "create"): "binds a pod to a node, with the GPU in an annotation",
    ("pods/eviction", "create"): "evicts pods that use more than their units, or cannot start",
    ("events", "create, patch"): "Events about pods",
    ("policy: poddisruptionbudgets", "list, watch"): "preemption spares the pods of a budget",
    ("coordination.k8s.io: leases `kube-scheduler`", "get"): "which kube-scheduler leads",
    ("configmaps `gpushare-gpus`", "patch"): "the sizes of the GPUs, for every user",
    (f"serviceaccounts/token `{EXTENDER}`", "create"): "renews its own token",
}
_OF_PLUGIN: Final = {
    ("pods", "get, list, watch"): "the pods of its node. RBAC cannot select pods by node",
    ("pods/status", "patch"): "the annotations of an allocation, once kubelet has taken the pod",
    ("nodes", "get, list, watch"): "its own node",
    ("nodes/status", "patch"): "`gpushare/gpus`, `held`, `use` and `evictions`: the GPUs of its node, and what has them",
    ("events", "create, patch"): "Events about its node and pods",
    # By services of hosts.
    ("nodes `NODE`", "get, list, watch"): "its own node",
    ("nodes/status `NODE`", "patch"): "`gpushare/gpus`, `held`, `use` and `evictions`: the GPUs of its node, and what has them",
    (f"serviceaccounts/token `{PLUGIN_ACCOUNT_PREFIX}NODE`", "create"): "renews its own token",
    ("configmaps `unhealthy-gpu-NODE`", "get, patch"): "the unusable GPUs, for the original's extender",
    ("configmaps", "create"): "the same. RBAC knows no name of what is created: a policy does",
    # By claims.
    ("pods, nodes", "get, list, watch"): "its own node and the pods there. RBAC cannot select pods by node",
    ("resource.k8s.io: resourceclaims", "get"): "the memory of a claim that kubelet prepares",
    ("resource.k8s.io: resourceslices", "get, list, watch, create, patch, delete"): "publishes the GPUs of its node",
}
_STEERED: Final = "kube-scheduler: "
_OF_SCHEDULER: Final = {
    **_OF_EXTENDER,
    ("pods/status", "patch"): "`gpushare/requeued`; why a pod waits, and the node that preemption makes free for it",
    ("pods/eviction", "create"): "evicts pods that use more than their units",
    ("pods", "delete"): _STEERED + "preemption",
    ("events.k8s.io: events", "create, patch"): _STEERED + "its own Events",
    ("namespaces, services, replicationcontrollers", "get, list, watch"): _STEERED + "affinity and the spread of a workload's pods",
    ("apps: replicasets, statefulsets", "get, list, watch"): _STEERED + "the spread of a workload's pods",
    ("scheduling.k8s.io: podgroups, compositepodgroups", "get, list, watch"): _STEERED + "pods that start together",
    ("scheduling.k8s.io: podgroups/status, compositepodgroups/status", "patch"): _STEERED + "says whether a group is placed",
    ("persistentvolumes, persistentvolumeclaims", "get, list, watch, update"): _STEERED
    + "gives a free volume to a pod's claim, or names the node for which a volume is made",
    ("storage.k8s.io: csidrivers, csinodes, csistoragecapacities, storageclasses, volumeattachments", "get, list, watch"): _STEERED
    + "on which nodes a volume can be",
    ("resource.k8s.io: deviceclasses, resourceslices, devicetaintrules", "get, list, watch"): _STEERED
    + "devices of other drivers, which a pod with GPUs may claim besides",
    ("resource.k8s.io: resourceclaims", "get, list, watch, update"): _STEERED + "keeps a claim with devices from being deleted",
    ("resource.k8s.io: resourceclaims/status, resourceclaims/binding", "update, patch"): _STEERED + "gives a claim its devices",
    ("authentication.k8s.io: tokenreviews", "create"): _STEERED + "who calls its metrics",
    ("authorization.k8s.io: subjectaccessreviews", "create"): _STEERED + "whether that caller may read them",
    ("coordination.k8s.io: leases", "create"): "its own Lease. RBAC knows no name of what is created: a policy does",
    ("coordination.k8s.io: leases `gpushare-scheduler`", "get, update"): "which of its pods leads",
    (f"role `{accounts.AUTH_READER}` of Kubernetes", "as it has"): _STEERED + "the authority of those who call its metrics",
    ("security.openshift.io: securitycontextconstraints `nonroot-v2`", "use"): "OpenShift admits its pod, with a user that is not root",
}
#: Account, or how it begins → (resources, verbs) → what for.
RULES: Final[Mapping[str, Mapping[tuple[str, str], str]]] = {
    EXTENDER: _OF_EXTENDER,
    SCHEDULER: _OF_SCHEDULER,
    PLUGIN: {
        **_OF_PLUGIN,
        (
            f"security.openshift.io: securitycontextconstraints `{PLUGIN}`",
            "use",
        ): "OpenShift admits its pod: [what they allow](#on-the-host)",
    },
    CLAIMS: {
        ("namespaces", "list, watch"): "which namespaces there are",
        ("resource.k8s.io: resourceclaimtemplates", "list, watch, create"): f"one ResourceClaimTemplate `{TEMPLATE}` in each namespace",
    },
    DASHBOARD: {
        ("nodes, pods", "list, watch"): "everything on its page. Each person sees the part that his own token may list",
        ("resource.k8s.io: resourceslices, resourceclaims", "list, watch"): "which GPUs there are, and which pods have them",
        (f"serviceaccounts/token `{DASHBOARD}`", "create"): "renews its own token",
        ("security.openshift.io: securitycontextconstraints `nonroot-v2`", "use"): "OpenShift admits its pod, with a user that is not root",
    },
    "system:authenticated": {
        ("configmaps `gpushare-info`, `gpushare-gpus`", "get"): "every user reads where Prometheus is, and the sizes of the GPUs"
    },
}
#: Pods → on which nodes they are.
PODS: Final = {
    SCHEDULER: f"never those with `{LABEL_NODE}` or `{LABEL_NVIDIA_GPU}=true`, except with `schedulerOnGpuNodes`",
    PLUGIN: f"each with `{LABEL_NODE}=true`",
    EXTENDER: "each control plane",
    CLAIMS: "prefers those without GPUs",
    DASHBOARD: "prefers those without GPUs",
}
#: What a pod has of the host, and its capabilities → what for.
OF_HOST: Final = {
    "hostPID": "NVIDIA's library names the processes of a GPU by their numbers on the host",
    "hostNetwork": "kube-scheduler of the same host calls it at 127.0.0.1",
    "SYS_ADMIN": "the driver requires it for limits",
}
#: Priority class → what for.
PRIORITIES: Final = {
    "system-node-critical": "starts first, and may preempt others. kubelet evicts it last",
    "system-cluster-critical": "starts before pods of users, and may preempt them",
}
#: Folder or file of the host → what for.
PATHS: Final = {
    DEVICE_PLUGINS: "the socket by which kubelet asks for units, and kubelet's checkpoint",
    "/var/lib/kubelet/pod-resources": "asks kubelet which container has which units",
    "/var/lib/kubelet/plugins_registry": "kubelet finds the DRA driver there",
    "/sys/fs/cgroup": "which processes are of which pod. Writes the limits of containers only with `isolation: driver`",
    "/dev": "which device files of NVIDIA there are",
    workloads.STATE_FOLDER: "its own state: which pod has which units",
    "/usr": "the driver and NVIDIA's toolkit, for a CDI spec",
    "/usr/local": "the same, where it is a link out of `/usr`",
    "/run/nvidia": "the driver of the GPU Operator",
    _DRIVER_ROOT: "the driver, in the folder that you name",
    "/var/run/cdi": "its own CDI spec (`cdiDir`)",
    "/dev/null": "mounted where NVIDIA's runtime reads that a container is given all GPUs",
    workloads.PKI_FOLDER: "the certificates between kube-scheduler and extender",
}
#: Of a policy that changes what it judges.
_CHANGES: Final = ", which changes"
_OWN_ALLOCATION: Final = "allocation (`scheduler.framework.gpushare.allocation`, `ALIYUN_COM_GPU_MEM_*`)"
#: Policy → (who, does what under it).
POLICIES: Final = {
    "device-plugin": (
        "the device plugins",
        "change only annotations of gpushare, on the own node and on pods bound to it. The own node is the one in the token "
        "(`authentication.kubernetes.io/node-name`), which kubelet's request for it has set. A token without it changes nothing",
    ),
    "events": ("all accounts of gpushare", "send Events in their own name only, about pods, and a device plugin about its own node"),
    "tokens": ("every request for a token of these accounts", f"is for at most {POD_TOKEN_SECONDS} s, as kubelet asks for"),
    "placement": (
        "everybody except kubelets, administrators and `annotationWriters`",
        "creates no pod that asks for `aliyun.com/*` and has `spec.nodeName`",
    ),
    "runtime-class": ("everybody", "creates no pod with the RuntimeClass `gpushare-nvidia`, except in gpushare's namespace"),
    "scheduler": (
        "the scheduler",
        f"writes Bindings with an {_OWN_ALLOCATION}, and of the status of pods `gpushare/requeued`, the conditions `PodScheduled` and "
        "`DisruptionTarget`, and `nominatedNodeName`. No Binding to the node of the token's own pod; `schedulerOnGpuNodes` lifts that",
    ),
    "scheduler-deletes": (
        "the scheduler",
        f"deletes pods that are on a node or name this scheduler, with a priority below {SYSTEM_PRIORITY}, and no static pods",
    ),
    "scheduler-leases": ("the scheduler", "creates the Lease `gpushare-scheduler` only"),
    "scheduler-volumes": ("the scheduler", "sets a PersistentVolume's claim, if it has none, and `pv.kubernetes.io/bound-by-controller`"),
    "scheduler-volume-claims": ("the scheduler", "sets the annotation `volume.kubernetes.io/selected-node` of a PersistentVolumeClaim"),
    "scheduler-resource-claims": (
        "the scheduler",
        "sets `allocation`, `reservedFor` and `devices` in the status of a ResourceClaim, and its finalizer "
        "`resource.kubernetes.io/delete-protection`",
    ),
    "scheduler-name": (
        "everybody",
        f"creates no pod that asks for `aliyun.com/*` and names another scheduler, or none before Kubernetes 1.36. None names this one "
        f"without such a request, and none has more than {FEW} containers",
    ),
    f"scheduler-name{_CHANGES}": (
        "everybody",
        "gets `schedulerName` written into pods that ask for `aliyun.com/*` and name none (Kubernetes 1.36)",
    ),
    "annotations": ("everybody except administrators, `annotationWriters` and gpushare", "changes no annotation that gives GPU memory"),
    "gpu-nodes": ("kubelets", f"keep the label `{LABEL_NODE}` of their node"),
    "extender": ("the extender", f"writes Bindings with an {_OWN_ALLOCATION}, and `gpushare/requeued` in the status of pods"),
    f"dra-claims{_CHANGES}": ("everybody", f"gets claims of the template `{TEMPLATE}` as their name says: memory, GPUs, models"),
    f"dra-requests{_CHANGES}": ("everybody", "gets a claim for the GPU memory in a pod's limits"),
    "dra-rejected": (
        "everybody",
        f"creates no pod that asks for `aliyun.com/*` without a possible claim, and none with more than {FEW} containers or claims",
    ),
    "dra-budgets": ("everybody", "writes no ResourceQuota or LimitRange of `aliyun.com/gpu-mem`, which would count nothing"),
    "dra-shared": ("everybody", "reserves a claim with GPUs only for the pod that owns it"),
    "dra-owned": ("everybody", "changes neither owner nor finalizer of a claim with GPUs"),
    "dra-tolerations": ("everybody except administrators", "creates no claim that tolerates the taint of a cordoned or unusable GPU"),
    "dra-slices": ("the device plugins and kubelets", "write ResourceSlices of gpushare's driver for their own node only"),
    "dra-templates": (f"`{CLAIMS}`", f"creates the ResourceClaimTemplate `{TEMPLATE}` only, with which nothing can be allocated"),
}


def _reason(reasons: Mapping[Any, Any], key: Any, of: str) -> Any:
    """ValueError for what has none."""
    if key not in reasons:
        raise ValueError(f"{of} {key!r} has no reason; expected one in tools/rights.py, for docs/reference/permissions.md")
    return reasons[key]


def holder(account: str) -> Mapping[tuple[str, str], str]:
    """The reasons of an account. ValueError for one that is not known."""
    reasons: Mapping[tuple[str, str], str] = _reason(RULES, PLUGIN if account.startswith(PLUGIN_ACCOUNT_PREFIX) else account, "account")
    return reasons


def rules(documents: Iterable[Document]) -> Iterator[list[str]]:
    """(account, scope, resources with names, verbs) of each rule, and of each role of others that is granted."""
    documents = list(documents)
    roles = {(one["kind"], one["metadata"]["name"], one["metadata"].get("namespace", "")): one for one in documents}
    for binding in documents:
        if binding["kind"] not in ("ClusterRoleBinding", "RoleBinding"):
            continue
        role, space = binding["roleRef"], binding["metadata"].get("namespace", "")
        found = roles.get((role["kind"], role["name"], space if role["kind"] == "Role" else ""))
        for subject in binding["subjects"]:
            at = [subject["name"], space or "cluster"]
            if found is None:
                yield [*at, f"role `{role['name']}` of Kubernetes", "as it has"]
            for rule in found["rules"] if found else ():
                group = f"{rule['apiGroups'][0]}: " if rule["apiGroups"][0] else ""
                what = f"{group}{', '.join(rule['resources'])} {code(rule.get('resourceNames', ()))}"
                yield [*at, what.strip(), ", ".join(rule["verbs"])]


def with_reasons(documents: Iterable[Document]) -> Iterator[list[str]]:
    for account, scope, what, verbs in rules(documents):
        yield [account, scope, what, verbs, _reason(holder(account), (what, verbs), f"rule of {account}")]


def policies(documents: Iterable[Document]) -> Iterator[list[str]]:
    """(name, what it judges, who, does what). ValueError for one that lets through what it cannot judge."""
    for one in documents:
        if one["kind"] in ("ValidatingAdmissionPolicy", "MutatingAdmissionPolicy"):
            (rule,) = one["spec"]["matchConstraints"]["resourceRules"]
            name = one["metadata"]["name"]
            key = name.removeprefix("gpushare-") + (_CHANGES if one["kind"].startswith("Mutating") else "")
            if one["spec"]["failurePolicy"] != "Fail":
                raise ValueError(f"policy {name} lets through what it cannot judge; expected failurePolicy Fail")
            who, does = _reason(POLICIES, key, "policy")
            yield [f"`{name}`", f"{', '.join(rule['operations']).lower()}: {', '.join(rule['resources'])}", who, does]


def _pods(documents: Iterable[Document]) -> Iterator[tuple[str, str, Document]]:
    """(name, kind, pod) of each workload."""
    for one in documents:
        if one["kind"] in ("Deployment", "DaemonSet"):
            yield one["metadata"]["name"], one["kind"], one["spec"]["template"]["spec"]


def pods(documents: Iterable[Document]) -> Iterator[list[str]]:
    """(account, kind, user, namespaces of the host, capabilities, priority class, nodes)."""
    for name, kind, pod in _pods(documents):
        every = [*pod["containers"], *pod.get("initContainers", ())]
        if any(one["securityContext"].get("privileged") for one in every):
            raise ValueError(f"pod {name} is privileged; expected none that is")
        added = sorted({right for one in every for right in one["securityContext"]["capabilities"].get("add", ())})
        host = [key for key in ("hostPID", "hostNetwork", "hostIPC") if pod.get(key)]
        user, priority = pod["securityContext"]["runAsUser"], [pod["priorityClassName"]] if pod.get("priorityClassName") else []
        yield [
            pod["serviceAccountName"],
            kind,
            str(user or "root"),
            _with_words(OF_HOST, host, "of the host"),
            _with_words(OF_HOST, added, "capability"),
            _with_words(PRIORITIES, priority, "priority class"),
            _reason(PODS, name, "pod"),
        ]


def _with_words(reasons: Mapping[str, str], names: Sequence[str], of: str) -> str:
    """Each name with what it is for."""
    return ". ".join(f"`{name}`: {_reason(reasons, name, of)}" for name in names) or "none"


def paths(documents: Iterable[Document]) -> Iterator[list[str]]:
    """(pod, path of the host, whether a container writes there, what for)."""
    for name, _, pod in _pods(documents):
        mounts = [mount for one in (*pod["containers"], *pod.get("initContainers", ())) for mount in one.get("volumeMounts", ())]
        for volume in pod.get("volumes", ()):
            if "hostPath" in volume:
                path = volume["hostPath"]["path"]
                writes = any(not mount.get("readOnly") for mount in mounts if mount["name"] == volume["name"])
                reads = "reads; makes it where it is missing" if volume["hostPath"]["type"].endswith("OrCreate") else "reads"
                yield [name, f"`{path}`", "writes" if writes else reads, _reason(PATHS, path, "path")]


def _with(made: Callable[[Sequence[Document]], Iterator[list[str]]], others: Mapping[str, Values]) -> Iterator[list[str]]:
    """The rows of every installation, each with what brings it. others: besides the default ones."""
    rows: dict[tuple[str, ...], list[str]] = {tuple(row): ["default"] for row in made(in_cluster.objects(_BASE))}
    for words, values in {**_MORE, **others}.items():
        for row in map(tuple, made(in_cluster.objects(values))):
            # What one value brings, two of them bring as well.
            if row not in rows or ((words in others or rows[row] != ["default"]) and " and " not in words):
                rows.setdefault(row, []).append(words)
    for row, brought in rows.items():
        everywhere = brought == ["default", *others]
        yield [*row, "" if everywhere else ", ".join(brought)]


_HEADER: Final = ["account", "scope", "resources", "verbs", "what for"]


def table_of_pods() -> str:
    header = ["account", "pods", "user", "of the host", "capabilities", "priority class", "nodes", "with"]
    return table(header, _with(pods, _OTHERS))


def table_of_rules() -> str:
    """With a scheduler of gpushare's own."""
    return table([*_HEADER, "with"], _with(with_reasons, {}))


def table_of_rules_by(words: str) -> str:
    """With another scheduler, by what brings it, and the dashboard."""
    return table(_HEADER, with_reasons(in_cluster.objects(_OTHERS_WITH_DASHBOARD[words])))


def table_of_policies() -> str:
    return table(["policy", "judges", "who", "does what", "with"], _with(policies, _OTHERS))


def table_of_paths() -> str:
    """The default installation has folders that not every one has: those of a device strategy that may write a CDI spec."""
    without = {tuple(row) for row in paths(in_cluster.objects(replace(_BASE, device_strategy="volume-mounts")))}
    by_cdi = {tuple(row) for row in paths(in_cluster.objects(_BASE))} - without
    rows = ([*row, _BY_CDI if tuple(row) in by_cdi and not brought else brought] for *row, brought in _with(paths, _OTHERS))
    return table(["pods", "path", "access", "what for", "with"], rows)


def _services() -> list[Document]:
    """The accounts of services of hosts, for a node with the default variables."""
    values = on_hosts.OnHosts(lease=modes.default_of("gpushare_scheduler_lease"), evict=True, nodes=["NODE"])
    return [one for role in ("extender", "dashboard", "device_plugin") for one in on_hosts.objects(role, values)]


def table_of_services() -> str:
    return table(_HEADER, with_reasons(_services()))


def constraints() -> str:
    """What the constraints of OpenShift give the device plugin's pod."""
    given = {key: value for key, value in openshift.constraints().items() if key not in ("apiVersion", "kind", "metadata")}
    words = {key: value["type"] if isinstance(value, Mapping) else json.dumps(value) for key, value in given.items()}
    return textwrap.fill(code(f"{key}:\0{value}" for key, value in words.items()) + ".", 120, break_on_hyphens=False).replace("\0", " ")


def unused() -> Iterator[str]:
    """The reasons of what no builder makes."""
    every: list[Sequence[Document]] = [in_cluster.objects(values) for values in (_BASE, *_MORE.values(), *_OTHERS_WITH_DASHBOARD.values())]
    every.append(_services())
    made = {(what, verbs) for documents in every for _, _, what, verbs in rules(documents)}
    yield from (f"rule {key}" for reasons in RULES.values() for key in reasons if key not in made)
    names = {name for documents in every for one in documents for name in [one["metadata"]["name"]] if "AdmissionPolicy" in one["kind"]}
    yield from (f"policy {name}" for name in POLICIES if f"gpushare-{name.partition(',')[0]}" not in names)
    of_pods = "\n".join(cell for documents in every for row in pods(documents) for cell in row)
    yield from (f"of pods {name}" for name in (*OF_HOST, *PRIORITIES) if f"`{name}`" not in of_pods)
    found = {path for documents in every for _, path, *_ in paths(documents)}
    yield from (f"path {path}" for path in PATHS if f"`{path}`" not in found)
    running = {name for documents in every for name, _, _ in _pods(documents)}
    yield from (f"pods {name}" for name in PODS if name not in running)


#: Parts of the page.
PARTS: Final = {
    "pods": table_of_pods,
    "rules-in-cluster": table_of_rules,
    "paths": table_of_paths,
    "constraints": constraints,
    "policies": table_of_policies,
    "rules-by-claims": lambda: table_of_rules_by(_DRA),
    "rules-by-default-scheduler": lambda: table_of_rules_by(_CLUSTERS_OWN),
    "rules": table_of_services,
}
