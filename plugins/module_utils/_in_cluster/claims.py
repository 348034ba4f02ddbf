# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The back end `dra` of a cluster, as the API server has it: what it lacks for claims of GPU memory, and the links from a limit to a GPU.

Names and fields are those of `_manifests/dra.py` and of the runtime's `dra/slices.py`, which tests compare.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from .._cluster.kubectl import Kubectl, KubectlError
from .._cluster.names import CLAIMS, DRA_OWN, TEMPLATE
from .._cluster.objects import served
from .._formats.finding import few
from .._formats.quantity import quantity

API = "resource.k8s.io/v1"
_PATH = f"/apis/{API}"
_MEMORY = "memory"
#: Each with its binding.
POLICIES = ("gpushare-dra-claims", "gpushare-dra-requests")
_MOST_DEVICES = 256
_SHOWN = 8
_WORDS = 200
#: kubectl's and the API server's words about a field that the server does not have or takes with other values; admission says "denied".
_OF_FIELDS, _DENIED = re.compile(r"unknown field|error validating data|is invalid: "), "denied"


@dataclass(frozen=True)
class Device:
    """A GPU of a node, by its slice and the claims of all pods. index: as in the variables of pods. instance: of MIG.

    takes_one: whether a further pod may have one unit of it.
    """

    index: int
    minor: int
    instance: bool
    takes_one: bool


def lacks(kubectl: Kubectl) -> List[str]:
    """The parts of the API that claims of GPU memory need and the API server lacks. A request that writes nothing tells.

    KubectlError where it fails for another reason: missing rights, or an admission of others.
    """
    if "ResourceSlice" not in served(API, kubectl.raw):
        return [f"the API {API}"]
    device = {"name": "gpu", "allowMultipleAllocations": True, "capacity": {_MEMORY: {"value": "1Gi"}}}
    pool = {"name": "gpushare-preflight", "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRA_OWN, "nodeName": "gpushare-preflight", "pool": pool, "devices": [device]}
    item = {"apiVersion": API, "kind": "ResourceSlice", "metadata": {"generateName": "gpushare-preflight-"}, "spec": spec}
    try:
        made = kubectl.json(["create", "--dry-run=server", "-f", "-"], json.dumps(item)) or {}
    except KubectlError as error:
        if not _OF_FIELDS.search(str(error)) or _DENIED in str(error):
            raise
        return [f"a ResourceSlice of ours ({' '.join(str(error).split())[-_WORDS:]})"]
    # The API server leaves fields out whose gate is off.
    kept = [found.get("allowMultipleAllocations") for found in (made.get("spec") or {}).get("devices") or ()]
    return [] if kept == [True] else ["devices that several claims share (the feature gate DRAConsumableCapacity)"]


def holders(found: Mapping[str, Any]) -> List[str]:
    """The pods with claims on GPUs of ours, of the facts of `_cluster/dra.py`."""
    return [f"{entry['pod'][:_WORDS]} on {entry['node'][:_WORDS]}" for entry in _held(found)]


def holding(found: Mapping[str, Any], nodes: Optional[Set[str]]) -> List[Dict[str, str]]:
    """The same as `gpu_pods` has them, on these nodes (None: on any)."""
    held = [entry for entry in _held(found) if nodes is None or entry["node"] in nodes]
    return [{"pod": entry["pod"], "node": entry["node"], "asks": f"a claim of {DRA_OWN}"} for entry in held]


def _held(found: Mapping[str, Any]) -> List[Mapping[str, str]]:
    return [entry for entry in found["holders"] if entry["driver"] == DRA_OWN]


def waiting(kubectl: Kubectl) -> List[str]:
    """The pods that wait for a GPU of ours by a claim that users have written, and such claims without a pod."""
    return sorted(_owner(claim["metadata"]) for claim in kubectl.pages(f"{_PATH}/resourceclaims", optional=True) if _waits(claim))


def _waits(claim: Mapping[str, Any]) -> bool:
    requests = (((claim.get("spec") or {}).get("devices") or {}).get("requests")) or ()
    asked = [way for request in requests for way in (request.get("exactly"), *(request.get("firstAvailable") or ())) if way]
    return not (claim.get("status") or {}).get("allocation") and any(way.get("deviceClassName") == TEMPLATE for way in asked)


def _owner(metadata: Mapping[str, Any]) -> str:
    pods = [str(owner.get("name")) for owner in metadata.get("ownerReferences") or () if owner.get("kind") == "Pod"]
    return f"{metadata.get('namespace', '')}/{pods[0]}" if pods else f"ResourceClaim {metadata.get('namespace', '')}/{metadata['name']}"


def broken(kubectl: Kubectl, nodes: Sequence[str], namespace: str) -> List[str]:
    """The links from a limit to a GPU that are not there yet, as words. nodes: that must publish GPUs; namespace: of the probe's pods."""
    kinds = [f"mutatingadmissionpolic{ending}.admissionregistration.k8s.io" for ending in ("ies", "ybindings")]
    asked = [*(f"{kind}/{name}" for kind in kinds for name in POLICIES), f"deviceclasses.resource.k8s.io/{TEMPLATE}"]
    found = kubectl.items(["get", *asked, "--ignore-not-found"])
    there = {(str(item["kind"]), str(item["metadata"]["name"])) for item in found}
    wanted = [(kind, name) for name in POLICIES for kind in ("MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding")]
    wanted.append(("DeviceClass", TEMPLATE))
    left = [f"{kind} {name} is not there" for kind, name in wanted if (kind, name) not in there]
    if namespace not in _with_template(kubectl):
        left.append(f"namespace {namespace} without the ResourceClaimTemplate {TEMPLATE}, which {CLAIMS} makes")
    offering = {node for node, devices in _devices(kubectl).items() if devices}
    return left + [f"node {node}: no ResourceSlice of {DRA_OWN} with a GPU" for node in nodes if node not in offering]


def without_templates(kubectl: Kubectl) -> List[str]:
    """The namespaces whose pods cannot have GPUs, as words: one may be full, or have an admission of others."""
    have = _with_template(kubectl)
    spaces = [item["metadata"] for item in kubectl.pages("/api/v1/namespaces")]
    without = sorted(str(space["name"]) for space in spaces if space["name"] not in have and "deletionTimestamp" not in space)
    words = (
        f"found no ResourceClaimTemplate {TEMPLATE} in {few(without, _SHOWN)}; expected it in each namespace, or its pods get no GPU; see "
        f"in the log of {CLAIMS} why the API server takes none there, such as a quota"
    )
    return [words] if without else []


def _with_template(kubectl: Kubectl) -> Set[str]:
    templates = kubectl.pages(f"{_PATH}/resourceclaimtemplates", fieldSelector=f"metadata.name={TEMPLATE}")
    return {str(item["metadata"].get("namespace")) for item in templates}


def offers(kubectl: Kubectl) -> Dict[str, List[Device]]:
    """The GPUs of each node."""
    taken: Dict[Tuple[str, str], int] = {}
    for claim in kubectl.pages(f"{_PATH}/resourceclaims"):
        devices = ((claim.get("status") or {}).get("allocation") or {}).get("devices") or {}
        for result in devices.get("results") or ():
            if result.get("driver") == DRA_OWN:
                key = str(result.get("pool")), str(result.get("device"))
                part = quantity((result.get("consumedCapacity") or {}).get(_MEMORY))
                taken[key] = taken.get(key, 0) + (part or 0)
    return {
        node: [_device(device, taken.get((node, str(device.get("name"))), 0)) for device in found]
        for node, found in _devices(kubectl).items()
    }


def _devices(kubectl: Kubectl) -> Dict[str, List[Mapping[str, Any]]]:
    """Those of the newest generation of each node's pool, which has the node's name."""
    pools: Dict[str, List[Mapping[str, Any]]] = {}
    for item in kubectl.pages(f"{_PATH}/resourceslices", fieldSelector=f"spec.driver={DRA_OWN}"):
        spec = item.get("spec") or {}
        pools.setdefault(str(spec.get("nodeName") or ""), []).append(spec)
    found = {}
    for node, specs in pools.items():
        newest = max(_generation(spec) for spec in specs)
        found[node] = [device for spec in specs if _generation(spec) == newest for device in spec.get("devices") or ()][:_MOST_DEVICES]
    return found


def _generation(spec: Mapping[str, Any]) -> int:
    found = (spec.get("pool") or {}).get("generation")
    return found if isinstance(found, int) else 0


def _device(device: Mapping[str, Any], taken: int) -> Device:
    attributes = device.get("attributes") or {}
    memory = (device.get("capacity") or {}).get(_MEMORY) or {}
    all_of_it = quantity(memory.get("value")) or 0
    step = quantity(((memory.get("requestPolicy") or {}).get("validRange") or {}).get("step")) or all_of_it
    return Device(
        index=_number(attributes, "index"),
        minor=_number(attributes, "minor"),
        instance=str((attributes.get("uuid") or {}).get("string", "")).startswith("MIG-"),
        takes_one=not device.get("taints") and 0 < taken + step <= all_of_it,
    )


def _number(attributes: Mapping[str, Any], name: str) -> int:
    found = (attributes.get(name) or {}).get("int")
    return found if isinstance(found, int) and not isinstance(found, bool) else -1
