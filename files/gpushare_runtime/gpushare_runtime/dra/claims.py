# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A ResourceClaim of this node becomes GPUs, an environment and a CDI spec. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

from gpushare_runtime.core import protocol
from gpushare_runtime.core.bounds import as_mapping, quote
from gpushare_runtime.core.inventory import HEALTHY, Gpu, Inventory
from gpushare_runtime.core.node_report import HeldEntry
from gpushare_runtime.core.quantity import Unit, parse_quantity, parse_unit
from gpushare_runtime.dra.slices import DRIVER, consumed, device_name
from gpushare_runtime.errors import GpushareError

CDI_KIND: Final = "gpushare.kubernetes/claim"
CDI_FILE: Final = "gpushare-claims.json"
# The last without a field that an older container runtime does not read; the spec has only variables.
_CDI_VERSION: Final = "0.5.0"
VERSION: Final = 1
MOST_CLAIMS: Final = 1024
"""Of one node at a time: kubelet runs 110 pods by default, and rejects more than the administrator lets it."""
MOST_RESULTS: Final = 32
"""Of one claim, as the API server has it."""
MOST_BYTES: Final = 4 * 1024 * 1024
"""Of the file that keeps them."""
_UID: Final = re.compile(r"[0-9a-zA-Z][-0-9a-zA-Z]{0,62}")
_REQUEST: Final = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?(?:/[a-z0-9](?:[-a-z0-9]{0,61}[a-z0-9])?)?")
POD_CLAIM_NAME: Final = "resource.kubernetes.io/pod-claim-name"
#: How admission names claims for limits of memory: their pods have each container's own amount.
OF_LIMITS: Final = "gpushare-m"


class ClaimError(GpushareError, ValueError):
    """Why a claim cannot be prepared here, and what to do."""


class OtherUnitError(GpushareError):
    """A claim that was prepared in another unit is not a whole number of units of this one."""


@dataclass(frozen=True)
class Part:
    """The units of one GPU that one request of a claim has. share: Kubernetes' id, "" for none.

    whole: whether these were all units of the GPU, and asked for as such. It stays while the GPU is away or has not been read.
    """

    request: str
    uuid: str
    units: int
    share: str = ""
    whole: bool = False


@dataclass(frozen=True)
class Claim:
    """A claim that is allocated on this node. of_limits: whether admission has made it. pods: the UIDs of those that it is for."""

    uid: str
    namespace: str
    name: str
    parts: tuple[Part, ...]
    of_limits: bool = False
    pods: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def parse_claim(value: Mapping[str, Any], node: str, inventory: Inventory) -> Claim:
    """The claim as the API server has it. ClaimError where it is not allocated on this node, or its GPUs are not here."""
    metadata = as_mapping(value.get("metadata"))
    status = as_mapping(value.get("status"))
    uid, namespace, name = (str(metadata.get(key, ""))[:253] for key in ("uid", "namespace", "name"))
    if not _UID.fullmatch(uid):
        raise ClaimError(f"claim {quote(name)} has the UID {quote(uid)}; expected letters, digits and hyphens")
    results = as_mapping(as_mapping(status.get("allocation")).get("devices")).get("results")
    if not isinstance(results, list) or len(results) > MOST_RESULTS:
        found = "no allocation" if results is None else f"{type(results).__name__} of another kind or more than {MOST_RESULTS} devices"
        raise ClaimError(f"claim {namespace}/{name} has {found}: kube-scheduler has not allocated it for a pod of this node")
    gpus = {device_name(gpu.uuid): gpu for gpu in inventory.gpus}
    of_limits = str(as_mapping(metadata.get("annotations")).get(POD_CLAIM_NAME, "")).startswith(OF_LIMITS)
    ours = [result for result in map(as_mapping, results) if result.get("driver") == DRIVER]
    parts = tuple(_part(result, node, gpus, inventory.unit, f"{namespace}/{name}", of_limits) for result in ours)
    if not parts:
        raise ClaimError(f"claim {namespace}/{name} has no GPU of {DRIVER}: delete its pod, whose owner makes another one")
    reserved = status.get("reservedFor")
    users = [as_mapping(entry) for entry in reserved[:MOST_RESULTS]] if isinstance(reserved, list) else []
    pods = tuple(str(user.get("uid", "")) for user in users if user.get("resource") == "pods")
    if len(users) != 1 or not pods or not _UID.fullmatch(pods[0]):
        # kubelet does not tell of a pod that comes later: the policy gpushare-dra-shared keeps it off.
        raise ClaimError(
            f"claim {namespace}/{name} is reserved for {len(users)} users, and its GPU memory is for one pod: write "
            "resourceClaimTemplateName instead of resourceClaimName in the pods, so that each has a claim of its own"
        )
    return Claim(uid, namespace, name, parts, of_limits, pods)


def _part(result: Mapping[str, Any], node: str, gpus: Mapping[str, Gpu], unit: Unit, claim: str, of_limits: bool) -> Part:
    request, pool, device = (str(result.get(key, "")) for key in ("request", "pool", "device"))
    if pool != node:
        raise ClaimError(f"claim {claim} is allocated in the pool {quote(pool)}, this node is {node}: delete its pod")
    gpu = gpus.get(device)
    if gpu is None:
        here = ", ".join(sorted(gpus)) or "none"
        raise ClaimError(f"claim {claim} has the GPU {quote(device)}, which is not in this node (there are: {here[:200]}): delete its pod")
    if not _REQUEST.fullmatch(request):
        raise ClaimError(f"claim {claim} has a request of the name {quote(request)}; expected lower-case letters, digits and hyphens")
    amount = consumed(as_mapping(result.get("consumedCapacity")))
    if amount is None:
        # An administrator's access consumes nothing; every other allocation says what it does.
        raise ClaimError(f"claim {claim} consumes no memory of the GPU {quote(device)}: adminAccess is not supported; leave it out")
    share = str(result.get("shareID") or "")
    units = _units(amount, unit, claim)
    return Part(request, gpu.uuid, units, share if _UID.fullmatch(share) else "", units == gpu.units and not of_limits)


def _units(amount: object, unit: Unit, claim: str) -> int:
    try:
        value = parse_quantity(str(amount))
    except ValueError as error:
        raise ClaimError(f"claim {claim} consumes {quote(amount)} of memory: {error}") from None
    size = unit.mib * 1024 * 1024
    if value <= 0 or value % size:
        raise ClaimError(f"claim {claim} consumes {quote(amount)} of memory, not a multiple of the unit {unit.name}: delete its pod")
    return int(value // size)


def conflict(
    claim: Claim, prepared: Iterable[Claim], inventory: Inventory, left: Iterable[HeldEntry] = (), *, everybody: bool = False
) -> str:
    """Why the GPUs cannot take the claim beside those that are prepared; "" if they can. left: what processes of pods that are gone use.

    everybody: for the log. Without, for the owner of the pod, it names nothing of other namespaces.
    """
    used: dict[str, int] = {}
    holders: dict[str, dict[str, None]] = {}
    taken = [(part.uuid, part.units, str(other)) for other in prepared if other.uid != claim.uid for part in other.parts]
    for uuid, units, holder in [*taken, *((entry.gpu, entry.units, f"processes of pod {entry.pod or entry.uid}") for entry in left)]:
        used[uuid] = used.get(uuid, 0) + units
        visible = everybody or holder.removeprefix("processes of pod ").startswith(f"{claim.namespace}/")
        holders.setdefault(uuid, {})[holder if visible else "others"] = None
    for part in claim.parts:
        used[part.uuid] = used.get(part.uuid, 0) + part.units
    for part in claim.parts:
        gpu = inventory.by_uuid[part.uuid]
        if used[part.uuid] > gpu.units:
            others = ", ".join(list(holders.get(part.uuid, ()))[:3]) or "none"
            return (
                f"GPU {gpu.index} has {gpu.units} units, and {used[part.uuid]} would be in use with claim {claim} beside what "
                f"is not free yet ({others}); kubelet tries again"
            )
        if gpu.health != HEALTHY:
            return f"GPU {gpu.index} is not usable: {gpu.health}"
    return ""


def environment(claim: Claim, request: str, inventory: Inventory) -> dict[str, str]:
    """The variables of the containers that use this request: those of Allocate, with the GPUs in the order of their indexes."""
    parts = sorted((part for part in claim.parts if part.request == request), key=lambda part: inventory.by_uuid[part.uuid].index)
    first = inventory.by_uuid[parts[0].uuid]
    units = sum(part.units for part in parts)
    return {
        # For NVIDIA's runtime: CDI has given the GPUs.
        protocol.ENV_VISIBLE_DEVICES: "void",
        protocol.ENV_INDEX: str(first.index),
        protocol.ENV_GPU_UNITS: str(first.units),
        protocol.ENV_POD_UNITS: str(units),
        # The pod has the amount of each container, where several share the claim.
        **({} if claim.of_limits else {protocol.ENV_CONTAINER_UNITS: str(units)}),
    }


def cdi_name(claim: Claim, request: str) -> str:
    """The CDI device of one request of a claim."""
    return f"{claim.uid}-{request.replace('/', '.')}"


def cdi_spec(environments: Mapping[str, Mapping[str, str]]) -> bytes:
    """The spec that gives containers their environment. environments: by the name of the device."""
    devices = [
        {"name": name, "containerEdits": {"env": [f"{key}={value}" for key, value in sorted(variables.items())]}}
        for name, variables in sorted(environments.items())
    ]
    return json.dumps({"cdiVersion": _CDI_VERSION, "kind": CDI_KIND, "devices": devices}, indent=1).encode() + b"\n"


@dataclass(frozen=True)
class PreparedClaim:
    """A claim that containers may use, and what its containers got: a container that restarts gets the same. devices: name → variables."""

    claim: Claim
    devices: Mapping[str, Mapping[str, str]]


def prepare(claim: Claim, inventory: Inventory) -> PreparedClaim:
    """The claim, with the variables of its containers."""
    requests = sorted({part.request for part in claim.parts})
    return PreparedClaim(claim, {cdi_name(claim, request): environment(claim, request, inventory) for request in requests})


def to_checkpoint(prepared: Iterable[PreparedClaim], unit: Unit) -> bytes:
    """The file that the next process reads. unit: of the claims' units."""
    entries = [
        {
            "uid": entry.claim.uid,
            "namespace": entry.claim.namespace,
            "name": entry.claim.name,
            "parts": [[part.request, part.uuid, part.units, part.share] for part in entry.claim.parts],
            "whole": [part.whole for part in entry.claim.parts],
            "of_limits": entry.claim.of_limits,
            "pods": list(entry.claim.pods),
            "devices": {name: dict(variables) for name, variables in entry.devices.items()},
        }
        for entry in sorted(prepared, key=lambda entry: entry.claim.uid)
    ]
    return json.dumps({"v": VERSION, "unit": unit.name, "claims": entries}, separators=(",", ":")).encode()


def from_checkpoint(data: bytes, unit: Unit) -> list[PreparedClaim]:
    """The claims that a former process prepared, in units of this one. ClaimError where the file is not one of ours; OtherUnitError."""
    if len(data) > MOST_BYTES:
        raise ClaimError(f"{len(data)} bytes are more than {MOST_BYTES}")
    try:
        read = json.loads(data)
        if read["v"] != VERSION or len(read["claims"]) > MOST_CLAIMS:
            raise ClaimError(f"version {quote(read['v'])} with {len(read['claims'])} claims; expected {VERSION} with at most {MOST_CLAIMS}")
        # A file of an older plugin has none.
        before = parse_unit(str(read.get("unit", unit.name)))
        return [_in_unit(_entry(entry), before, unit) for entry in read["claims"]]
    except ClaimError:
        # It is a ValueError, too, and says what is wrong.
        raise
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise ClaimError(f"it is not a file of claims: {error!r}"[:300]) from None


def _entry(entry: Mapping[str, Any]) -> PreparedClaim:
    # A file of an older plugin does not say so: the variables of a container have the units of its first GPU.
    sizes = {str(variables.get(protocol.ENV_GPU_UNITS)) for variables in entry["devices"].values()} if not entry["of_limits"] else ()
    whole = entry.get("whole") or [str(part[2]) in sizes for part in entry["parts"]]
    parts = tuple(
        Part(str(request), str(uuid), int(units), str(share), all_of_it is True)
        for (request, uuid, units, share), all_of_it in zip(entry["parts"], whole, strict=True)
    )
    uids = entry["uid"], *entry["pods"]
    if not parts or not all(isinstance(uid, str) and _UID.fullmatch(uid) for uid in uids):
        raise ClaimError(f"found {quote(dict(entry))}; expected a claim with its UID and GPUs")
    claim = Claim(entry["uid"], str(entry["namespace"]), str(entry["name"]), parts, entry["of_limits"] is True, tuple(entry["pods"]))
    return PreparedClaim(claim, {str(name): {str(k): str(v) for k, v in variables.items()} for name, variables in entry["devices"].items()})


def _in_unit(entry: PreparedClaim, before: Unit, unit: Unit) -> PreparedClaim:
    """The same memory. Its containers keep their variables, in the unit in which they started."""
    odd = [part for part in entry.claim.parts if part.units * before.mib % unit.mib]
    if odd:
        raise OtherUnitError(
            f"claim {entry.claim} was prepared with {before.amount(odd[0].units)} of a GPU; expected a multiple of {unit}: set the unit of "
            f"memory to {before.name} again (gpushare_memory_unit, memoryUnit of the chart) until no pod of this node has a GPU"
        )
    parts = tuple(replace(part, units=part.units * before.mib // unit.mib) for part in entry.claim.parts)
    return replace(entry, claim=replace(entry.claim, parts=parts))
