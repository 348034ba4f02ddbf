# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Device plugins of others in the cluster: whose a DaemonSet is, who owns it, and by which label of a node it leaves that node.

Pure: objects as the API has them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Iterable, List, Mapping, Optional, Sequence, Tuple

from .._cluster.names import LABEL_TAKEN_OVER
from .._facts.device_managers import HAMI, NVIDIA, OPERATOR, ORIGINAL

#: The expression that keeps a DaemonSet away from the nodes that were taken over.
EXPRESSION = {"key": LABEL_TAKEN_OVER, "operator": "DoesNotExist"}
#: Label of the original's pods, for each of the two parts.
COMPONENT, ORIGINAL_PLUGIN, ORIGINAL_EXTENDER = "component", "gpushare-device-plugin", "gpushare-schd-extender"
_HAMI_COMPONENT = ("app.kubernetes.io/component", "hami-device-plugin")
#: By these field managers Argo CD is known that tracks by app.kubernetes.io/instance, its default before 3.0 and a label of charts, too.
_ARGO = frozenset(("argocd-controller", "argocd-application-controller"))
_OLM, _OLM_OWNER = "operators.coreos.com/", "olm.operatorframework.io/owner-name"
_IMAGE = re.compile(r"(?:.*/)?([^/:@]+)(?::[^/@]*)?(?:@.*)?")
_QUOTED = 80


@dataclass(frozen=True)
class Switch:
    """The label of a node by which a DaemonSet leaves it. stays: its value where the DaemonSet runs; away: where it does not.

    None: a node without the label.
    """

    label: str
    stays: Optional[str]
    away: Optional[str]


#: Whose it is → the label that its DaemonSet selects. With the value false the label selects a part of the original's chart, so it goes.
_SWITCHES: Mapping[str, Switch] = {ORIGINAL: Switch("gpushare", "true", None), HAMI: Switch("gpu", "on", None)}
BY_AFFINITY = Switch(LABEL_TAKEN_OVER, None, "true")
#: Every label of nodes that a take-over may change, or has changed before: the operator's stays there until its node is given back.
LABELS = frozenset([BY_AFFINITY.label, "nvidia.com/gpu.deploy.device-plugin", *(switch.label for switch in _SWITCHES.values())])


@dataclass(frozen=True)
class FoundPlugin:
    """The device plugin of others as the controller judges it, by the fields and properties of OtherPlugin. nodes: on which it serves."""

    kind: str
    title: str
    owner: str
    rejection: str
    original: bool
    nodes: List[str]


@dataclass(frozen=True)
class OtherPlugin:
    """The DaemonSet of another device plugin.

    kind: its project, as device_managers names it. owner: what would undo a change of the DaemonSet, "" for nothing. switch: how it
    leaves a node. by_affinity: whether that needs our expression in its affinity. prepared: whether it has it.
    """

    kind: str
    namespace: str
    name: str
    owner: str
    switch: Switch
    by_affinity: bool
    prepared: bool
    selector: str
    account: str

    @property
    def title(self) -> str:
        return f"DaemonSet {self.namespace}/{self.name}"

    @property
    def is_original(self) -> bool:
        return self.kind == ORIGINAL

    @property
    def rejection(self) -> str:
        """Why it cannot be moved aside here, and the change to make instead; "" where it can."""
        if self.kind == OPERATOR:
            return f"{self.title} is the GPU Operator's; expected none: wait until the operator has deleted it, then run again"
        if not self.by_affinity or self.prepared or not self.owner:
            return ""
        return (
            f"{self.title} ({self.kind}) belongs to {self.owner}, which would undo a change of it. Make this change there, then run again: "
            "spec.template.spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution.nodeSelectorTerms: "
            f"[{{matchExpressions: [{{key: {LABEL_TAKEN_OVER}, operator: DoesNotExist}}]}}] (in each term that there is)"
        )

    def found(self, nodes: Iterable[str]) -> FoundPlugin:
        """The plugin for the controller. nodes: on which it serves."""
        return FoundPlugin(self.kind, self.title, self.owner, self.rejection, self.is_original, sorted(nodes))


def other_plugins(daemon_sets: Sequence[Mapping[str, Any]]) -> List[OtherPlugin]:
    """The DaemonSets that are device plugins of others, by namespace and name."""
    found = (_plugin(daemon_set) for daemon_set in daemon_sets)
    return sorted((plugin for plugin in found if plugin is not None), key=lambda plugin: (plugin.namespace, plugin.name))


def owner_of(metadata: Mapping[str, Any]) -> str:
    """The controller that brings this object to its own state again: an operator, Argo CD, Flux, OLM, or Helm; "" for nothing that is
    known."""
    labels, annotations = metadata.get("labels") or {}, metadata.get("annotations") or {}
    for owner in metadata.get("ownerReferences") or ():
        if owner.get("controller"):
            return f"{short(owner.get('kind'))} {short(owner.get('name'))}"
    argo = annotations.get("argocd.argoproj.io/tracking-id") or labels.get("argocd.argoproj.io/instance")
    managers = {str(claim.get("manager")) for claim in metadata.get("managedFields") or ()}
    if argo or managers & _ARGO:
        return f"Argo CD ({short(argo or labels.get('app.kubernetes.io/instance') or 'of this object')})"
    for label in ("kustomize.toolkit.fluxcd.io/name", "helm.toolkit.fluxcd.io/name"):
        if label in labels:
            return f"Flux ({short(labels[label])})"
    # As operator-lifecycle-manager (decorators.ComponentLabelKeyPrefix) and operator-controller (labels.OwnerNameKey) mark what they own,
    # read on 2026-11-25. A ClusterPolicy that an administrator has made in the console has none of them.
    olm = next((label for label in sorted(labels) if label.startswith(_OLM) or label == _OLM_OWNER), "")
    if olm:
        return f"OLM ({short(labels[olm] or olm[len(_OLM) :])})"
    release = annotations.get("meta.helm.sh/release-name")
    if release or labels.get("app.kubernetes.io/managed-by") == "Helm":
        return f"the Helm release {short(release or 'of this object')}"
    return ""


def place_of(item: Mapping[str, Any]) -> Tuple[str, str]:
    """(namespace, name)."""
    return item["metadata"]["namespace"], item["metadata"]["name"]


def terms_of(affinity: Optional[Mapping[str, Any]]) -> List[Mapping[str, Any]]:
    """The terms of a required node affinity."""
    required = ((affinity or {}).get("nodeAffinity") or {}).get("requiredDuringSchedulingIgnoredDuringExecution") or {}
    return list(required.get("nodeSelectorTerms") or ())


def is_empty(term: Mapping[str, Any]) -> bool:
    """Whether it matches no node."""
    return not term.get("matchExpressions") and not term.get("matchFields")


def is_prepared(affinity: Optional[Mapping[str, Any]]) -> bool:
    """Whether no pod with this affinity runs on a node that was taken over."""
    terms = terms_of(affinity)
    return bool(terms) and all(is_empty(term) or EXPRESSION in (term.get("matchExpressions") or ()) for term in terms)


def _plugin(item: Mapping[str, Any]) -> Optional[OtherPlugin]:
    metadata, spec = item["metadata"], item["spec"]
    template = spec["template"]
    pod = template["spec"]
    kind = _kind_of(template, metadata)
    if kind is None:
        return None
    selected = pod.get("nodeSelector") or {}
    known = _SWITCHES.get(kind)
    labelled = known is not None and selected.get(known.label) == known.stays
    affinity = pod.get("affinity")
    labels = (spec.get("selector") or {}).get("matchLabels") or {}
    namespace = str(metadata["namespace"])
    return OtherPlugin(
        kind,
        namespace,
        str(metadata["name"]),
        owner_of(metadata),
        known if known is not None and labelled else BY_AFFINITY,
        not labelled,
        is_prepared(affinity),
        ",".join(f"{key}={value}" for key, value in sorted(labels.items())),
        f"system:serviceaccount:{namespace}:{pod.get('serviceAccountName') or pod.get('serviceAccount') or 'default'}",
    )


def _kind_of(template: Mapping[str, Any], metadata: Mapping[str, Any]) -> Optional[str]:
    labels = (template.get("metadata") or {}).get("labels") or {}
    containers = [
        (str(container.get("name")), _image(str(container.get("image")))) for container in template["spec"].get("containers") or ()
    ]
    images = {image for _name, image in containers}
    if labels.get(COMPONENT) == ORIGINAL_PLUGIN or images & {"k8s-gpushare-plugin", "gpushare-device-plugin"}:
        return ORIGINAL
    if labels.get(_HAMI_COMPONENT[0]) == _HAMI_COMPONENT[1] or "hami" in images:
        return HAMI
    # The same image is NVIDIA's feature discovery, too.
    if not any(name.startswith("nvidia-device-plugin") and image == "k8s-device-plugin" for name, image in containers):
        return None
    owners = {str(owner.get("kind")) for owner in metadata.get("ownerReferences") or ()}
    return OPERATOR if "ClusterPolicy" in owners or "NVIDIADriver" in owners else NVIDIA


def _image(reference: str) -> str:
    """The last part of an image's name, without tag and digest."""
    match = _IMAGE.fullmatch(reference)
    return match.group(1) if match else ""


def short(value: Any) -> str:
    """A value of others in a message."""
    text = str(value)
    return text if len(text) <= _QUOTED else text[:_QUOTED] + "…"
