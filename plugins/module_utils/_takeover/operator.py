# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""NVIDIA's GPU Operator in the cluster: its ClusterPolicy, and what that becomes without its device plugin and with it again. Its
GPUCluster, which deploys NVIDIA's DRA driver instead.

Only `read` and `facts` ask. The field is that of GPU Operator 26.7 (`api/nvidia/v1/clusterpolicy_types.go`, read on 2026-08-21). A node's
label instead would leave its validator waiting for that device plugin for ever. With a GPUCluster it is the label that keeps the DRA driver
off a node (`controllers/nodelabeling_controller.go` of 26.7.0, read on 2026-11-29): a value that is there stays.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Tuple

from .._cluster.kubectl import Kubectl
from .._cluster.names import ANNOTATION_OPERATOR, LABEL_NODE
from .._cluster.objects import served
from .aside import VERSION, MergePatch, TakeOverError, loaded
from .plugins import owner_of, short

GROUP, API_VERSION, KIND, RESOURCE = "nvidia.com", "v1", "ClusterPolicy", "clusterpolicies.nvidia.com"
#: The merge patch by which the operator deletes its device plugin on every node, and the init container that waits for it.
WITHOUT_PLUGIN = '{"spec":{"devicePlugin":{"enabled":false}}}'
CLUSTER_KIND = "GPUCluster"
#: The label of a node with the DRA driver of a GPUCluster, and those of its parts that have claims of their own: they must end before it.
DRA_LABEL = "nvidia.com/gpu.deploy.dra-driver"
DRA_CLAIMANTS = tuple(f"nvidia.com/gpu.deploy.{part}" for part in ("dra-validator", "dcgm-dra", "dcgm-exporter-dra"))
CHECK, PATCH = "check", "patch"
#: The values of `gpushare_gpu_operator`.
MODES = (CHECK, PATCH)
# Labels that the operator sets on a node: its device plugin runs there, and its validator.
_DEPLOYED = ("nvidia.com/gpu.deploy.device-plugin", "nvidia.com/gpu.deploy.operator-validator")
_MOST_VERSIONS = 8


@dataclass(frozen=True)
class ClusterPolicy:
    """One ClusterPolicy. enabled: whether it deploys the device plugin, as is its default. owner: what would undo a change of it, "" for
    nothing. release: its Helm release, namespace/name. problem: why it cannot be read.
    """

    name: str
    enabled: bool
    owner: str
    release: str
    problem: str


@dataclass(frozen=True)
class Operator:
    """versions: of the API that have a ClusterPolicy, none where the operator has never been; items: its objects, of `v1` alone.

    clusters: names of the objects GPUCluster.
    """

    versions: Tuple[str, ...] = ()
    items: Tuple[Mapping[str, Any], ...] = ()
    clusters: Tuple[str, ...] = ()


@dataclass(frozen=True)
class OperatorFacts:
    """The facts for preflight. nodes: those that the operator serves by a ClusterPolicy; ours: those of them that are ours already.

    clusters: names of the objects GPUCluster. dra_nodes: nodes with its DRA driver.
    """

    versions: List[str]
    policies: List[ClusterPolicy]
    nodes: List[str]
    ours: List[str]
    clusters: List[str]
    dra_nodes: List[str]


def gathered(kubectl: Kubectl) -> OperatorFacts:
    """The facts of this cluster. KubectlError with kubectl's words."""
    found = read(kubectl)
    nodes: Dict[str, Mapping[str, Any]] = {}
    for label in _DEPLOYED if found.versions else ():
        # Chosen by the API server: a list of all nodes may have many MB.
        nodes.update({str(node["metadata"]["name"]): node for node in kubectl.items(["get", "nodes", f"--selector={label}=true"])})
    ours = [name for name, node in nodes.items() if (node["metadata"].get("labels") or {}).get(LABEL_NODE) == "true"]
    labelled = kubectl.items(["get", "nodes", f"--selector={DRA_LABEL}=true"]) if found.clusters else []
    return OperatorFacts(
        versions=list(found.versions),
        policies=[policy_of(policy) for policy in found.items],
        nodes=sorted(nodes),
        ours=sorted(ours),
        clusters=list(found.clusters),
        dra_nodes=sorted(str(node["metadata"]["name"]) for node in labelled),
    )


def read(kubectl: Kubectl) -> Operator:
    """KubectlError with kubectl's words."""
    group = kubectl.raw(f"/apis/{GROUP}") or {}
    known = [str(version.get("version"))[:80] for version in (group.get("versions") or ())[:_MOST_VERSIONS]]
    kinds = {version: served(f"{GROUP}/{version}", kubectl.raw) for version in known}
    versions = tuple(version for version in known if KIND in kinds[version])
    found = kubectl.raw(f"/apis/{GROUP}/{API_VERSION}/clusterpolicies") if API_VERSION in versions else None
    # Of whatever version: only their names are read.
    of_clusters = next((version for version in known if CLUSTER_KIND in kinds[version]), "")
    clusters = kubectl.raw(f"/apis/{GROUP}/{of_clusters}/gpuclusters") if of_clusters else None
    names = tuple(short(item["metadata"]["name"]) for item in (clusters or {}).get("items") or ())
    return Operator(versions, tuple((found or {}).get("items") or ()), names)


def policy_of(item: Mapping[str, Any]) -> ClusterPolicy:
    metadata = item["metadata"]
    annotations = metadata.get("annotations") or {}
    release = annotations.get("meta.helm.sh/release-name")
    space = annotations.get("meta.helm.sh/release-namespace")
    enabled, problem = True, ""
    try:
        enabled = _enabled(item) is not False
    except TakeOverError as error:
        problem = str(error)
    return ClusterPolicy(
        name=short(metadata["name"]),
        enabled=enabled,
        owner=owner_of(metadata),
        release=f"{short(space)}/{short(release)}" if release and space else "",
        problem=problem,
    )


def switched_off(item: Mapping[str, Any]) -> Optional[MergePatch]:
    """The ClusterPolicy without its device plugin; None for one that has none."""
    before = _enabled(item)
    if before is False:
        return None
    had = (item.get("spec") or {}).get("devicePlugin") is not None
    remembered = json.dumps({"v": VERSION, "enabled": before, "part": had}, separators=(",", ":"), sort_keys=True)
    patch: Dict[str, Any] = json.loads(WITHOUT_PLUGIN)
    return _change(item, patch["spec"], remembered, before, False)


def returned(item: Mapping[str, Any]) -> Tuple[Optional[MergePatch], List[str]]:
    """The ClusterPolicy as it was, None for one that we have not changed; and what others have changed since, which stays."""
    text = (item["metadata"].get("annotations") or {}).get(ANNOTATION_OPERATOR)
    if text is None:
        return None, []
    title = f"{KIND} {short(item['metadata']['name'])}"
    what = f"annotation {ANNOTATION_OPERATOR} of {title}"
    data = loaded(text, what)
    before, had = data.get("enabled"), data.get("part")
    if not (before is None or before is True) or not isinstance(had, bool):
        raise TakeOverError(
            f"{what} is {short(text)}; expected what this collection has written. Remove it, and set spec.devicePlugin.enabled by hand"
        )
    now = _enabled(item)
    if now is not False:
        return _change(item, {}, None, now, now), [f"devicePlugin.enabled of {title}, which was changed since"]
    others = set((item.get("spec") or {}).get("devicePlugin") or {}) - {"enabled"}
    part = {"devicePlugin": {"enabled": before} if had or others else None}
    return _change(item, part, None, False, before), []


def _enabled(item: Mapping[str, Any]) -> Optional[bool]:
    """devicePlugin.enabled, None where nothing says it. TakeOverError where it is another field."""
    part = (item.get("spec") or {}).get("devicePlugin")
    enabled = part.get("enabled") if isinstance(part, dict) else None
    if not (part is None or isinstance(part, dict)) or not (enabled is None or isinstance(enabled, bool)):
        raise TakeOverError(f"{KIND} {short(item['metadata']['name'])} has devicePlugin {short(part)}; expected enabled: true or false")
    return enabled


def _change(item: Mapping[str, Any], spec: Mapping[str, Any], remembered: Optional[str], before: Any, after: Any) -> MergePatch:
    metadata = item["metadata"]
    patch = {
        "metadata": {"resourceVersion": metadata.get("resourceVersion"), "annotations": {ANNOTATION_OPERATOR: remembered}},
        **({"spec": dict(spec)} if spec else {}),
    }
    parts = ({"devicePlugin": {"enabled": value}} for value in (before, after))
    return MergePatch(KIND, "", str(metadata["name"]), patch, next(parts), next(parts))
