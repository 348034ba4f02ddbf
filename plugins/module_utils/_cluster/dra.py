# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Dynamic resource allocation (DRA) of NVIDIA's GPUs, as the API has it: the drivers that publish GPUs, and the pods that have some.

A driver is known by its name, or by its devices: one that no release of ours has heard of names the GPUs by their UUIDs, too. kubelet
deletes the ResourceSlices of a driver 30 s after it has gone (pkg/kubelet/cm/dra/plugin of Kubernetes 1.37.2), and its claims stay.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from .kubectl import Kubectl
from .names import DRA_HAMI, DRA_NVIDIA, DRA_OWN

_GROUP = "resource.k8s.io"
#: Of Kubernetes 1.34, 1.33 and 1.32; NVIDIA's driver runs from 1.32 on. Older ones have other fields.
_VERSIONS = ("v1", "v1beta2", "v1beta1")
_UUID = re.compile(r"(?:GPU|MIG)-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_KNOWN = (DRA_NVIDIA, DRA_HAMI, DRA_OWN)
_MOST_VERSIONS = 8
_QUOTED = 80


@dataclass(frozen=True)
class PublishedDriver:
    """A driver with GPUs on a node."""

    node: str
    driver: str


@dataclass(frozen=True)
class ClaimHolder:
    """A pod with a claim on GPUs of such a driver."""

    node: str
    pod: str
    driver: str


@dataclass(frozen=True)
class DraFacts:
    """The drivers that publish GPUs, and the pods that have some."""

    published: List[PublishedDriver]
    holders: List[ClaimHolder]


def facts(kubectl: Kubectl) -> Dict[str, Any]:
    """The DraFacts as JSON. KubectlError with kubectl's words."""
    return asdict(gathered(kubectl))


def gathered(kubectl: Kubectl) -> DraFacts:
    """The facts of this cluster. KubectlError with kubectl's words."""
    version = _version(kubectl)
    published = _published(kubectl, version)
    drivers = {*_KNOWN, *(entry.driver for entry in published)}
    claims = kubectl.pages(f"/apis/{_GROUP}/{version}/resourceclaims", optional=True) if version else ()
    holders = {holder for claim in claims for holder in _holders(claim, drivers)}
    return DraFacts(published, [ClaimHolder(*holder) for holder in sorted(holders)])


def published(kubectl: Kubectl) -> List[PublishedDriver]:
    """The drivers that publish GPUs; none where the API server has no such group. KubectlError with kubectl's words."""
    return _published(kubectl, _version(kubectl))


def drivers_on(found: Sequence[Mapping[str, str]], node: str) -> List[str]:
    """The drivers that publish GPUs on this node. found: each PublishedDriver as JSON."""
    return [entry["driver"] for entry in found if entry["node"] == node]


def _version(kubectl: Kubectl) -> str:
    """Of the API, "" for none that is known."""
    group = kubectl.raw(f"/apis/{_GROUP}") or {}
    served = {str(version.get("version")) for version in (group.get("versions") or ())[:_MOST_VERSIONS]}
    return next((version for version in _VERSIONS if version in served), "")


def _published(kubectl: Kubectl, version: str) -> List[PublishedDriver]:
    slices = kubectl.pages(f"/apis/{_GROUP}/{version}/resourceslices", optional=True) if version else ()
    found = {entry for entry in map(_with_gpus, slices) if entry is not None}
    return [PublishedDriver(*entry) for entry in sorted(found)]


def _with_gpus(item: Mapping[str, Any]) -> Optional[Tuple[str, str]]:
    """(node, driver) of a slice with GPUs of one node."""
    spec = item.get("spec") or {}
    node, driver = str(spec.get("nodeName") or ""), str(spec.get("driver"))[:_QUOTED]
    return (node, driver) if node and (driver in _KNOWN or any(map(_is_gpu, spec.get("devices") or ()))) else None


def _is_gpu(device: Mapping[str, Any]) -> bool:
    # v1beta1 has what a device is one level deeper.
    attributes = (device.get("basic") or device).get("attributes") or {}
    return any(_UUID.fullmatch(str(value.get("string", ""))) for value in attributes.values())


def _holders(claim: Mapping[str, Any], drivers: Set[str]) -> Set[Tuple[str, str, str]]:
    """(node, pod, driver) of a claim. One with the access of an administrator uses no GPU up."""
    status = claim.get("status") or {}
    allocation = status.get("allocation") or {}
    results = (allocation.get("devices") or {}).get("results") or ()
    given = {str(result.get("driver"))[:_QUOTED] for result in results if result.get("adminAccess") is not True}
    node = _node_of(allocation)
    namespace = str(claim["metadata"].get("namespace"))
    pods = [str(user.get("name")) for user in status.get("reservedFor") or () if user.get("resource") == "pods"]
    return {(node, f"{namespace}/{pod}", driver) for pod in pods for driver in given & drivers if node}


def _node_of(allocation: Mapping[str, Any]) -> str:
    """The node to which an allocation is bound, "" for one of several nodes."""
    terms = (allocation.get("nodeSelector") or {}).get("nodeSelectorTerms") or ()
    names = [
        value
        for term in terms
        for field in term.get("matchFields") or ()
        if field.get("key") == "metadata.name" and field.get("operator") == "In"
        for value in field.get("values") or ()
    ]
    return str(names[0]) if len(names) == 1 else ""
