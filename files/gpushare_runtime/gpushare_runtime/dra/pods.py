# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The pods of a cluster by their claims: each as it would be with the extender, in limits and annotations. Pure.

So whatever reads pods for people reads those of both back ends: one inventory, one ledger, the same views.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from gpushare_runtime.core import protocol
from gpushare_runtime.core.bounds import ReportError, as_mapping, as_text, quote
from gpushare_runtime.core.constraints import RULES_PREFIX
from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.core.objects import ALLOCATED
from gpushare_runtime.core.quantity import GIB
from gpushare_runtime.dra.claims import MOST_RESULTS, OF_LIMITS, POD_CLAIM_NAME
from gpushare_runtime.dra.slices import CLASS, DRIVER, consumed, device_name, read_inventory, read_memory

_NAME: Final = re.compile(r"gpushare-m([1-9][0-9]{0,6})(?:-x([1-9][0-9]?))?((?:--(?:is|not|on|off|by)-[a-z0-9]+(?:-[a-z0-9]+)*)*)")
#: How a part of the name begins → the annotation that it stands for.
_RULES: Final = {
    "is": protocol.ASK_MODELS,
    "not": protocol.ASK_MODELS_REFUSED,
    "on": protocol.ASK_GPUS,
    "off": protocol.ASK_GPUS_REFUSED,
    "by": protocol.ASK_ISOLATION,
}
# Of one pod, as the API server has it.
_MOST_CLAIMS: Final = 256
_UNIT: Final = 1024 * 1024
_NOTHING: Final[Mapping[str, Any]] = {}
_Key = tuple[str, str]
"""(namespace, name) of a claim."""


@dataclass(frozen=True)
class DevicePart:
    """Memory of one device that a claim has. node: of its pool."""

    node: str
    device: str
    size: int


@dataclass(frozen=True)
class SeenClaim:
    """A claim as the API server has it, as far as it is about our GPUs.

    parts: () where it is not allocated. pods: UIDs of those that it is reserved for. asks: (devices, bytes of each, 0 for whole ones) of
    its only request, None where only kube-scheduler can say what will do. of_limits: whether admission has made it. ours: whether any of
    its requests, or of what it has, is.
    """

    uid: str
    namespace: str
    name: str
    parts: tuple[DevicePart, ...]
    pods: tuple[str, ...]
    asks: tuple[int, int] | None
    of_limits: bool
    ours: bool


def read_claim(raw: Mapping[str, Any]) -> SeenClaim:
    """A v1.ResourceClaim. ReportError where what it has of our GPUs cannot be read."""
    metadata, spec, status = (as_mapping(raw.get(key)) for key in ("metadata", "spec", "status"))
    results = _list(as_mapping(as_mapping(status.get("allocation")).get("devices")).get("results"))
    ours = [result for result in map(as_mapping, islice(results, MOST_RESULTS)) if result.get("driver") == DRIVER]
    parts = tuple(
        DevicePart(str(result.get("pool")), str(result.get("device")), read_memory(consumed(as_mapping(result.get("consumedCapacity")))))
        for result in ours
        # An administrator's access uses nothing up.
        if result.get("adminAccess") is not True
    )
    users = (as_mapping(entry) for entry in islice(_list(status.get("reservedFor")), _MOST_CLAIMS))
    requests = _list(as_mapping(spec.get("devices")).get("requests"))
    of_limits = str(as_mapping(metadata.get("annotations")).get(POD_CLAIM_NAME, "")).startswith(OF_LIMITS)
    return SeenClaim(
        str(metadata.get("uid")),
        str(metadata.get("namespace")),
        str(metadata.get("name")),
        parts,
        tuple(str(user.get("uid")) for user in users if user.get("resource") == "pods"),
        _asks(requests),
        of_limits,
        bool(ours) or any(as_mapping(as_mapping(request).get("exactly")).get("deviceClassName") == CLASS for request in requests),
    )


def _list(value: object) -> Sequence[Any]:
    return value if isinstance(value, list) else ()


def _asks(requests: Sequence[Any]) -> tuple[int, int] | None:
    exactly = as_mapping(as_mapping(requests[0]).get("exactly")) if len(requests) == 1 else _NOTHING
    count = exactly.get("count", 1)
    if exactly.get("allocationMode", "ExactCount") != "ExactCount" or exactly.get("selectors") or not isinstance(count, int):
        return None
    amount = consumed(as_mapping(as_mapping(exactly.get("capacity")).get("requests")))
    return (count, 0 if amount is None else read_memory(amount)) if exactly.get("deviceClassName") == CLASS and count > 0 else None


@dataclass(frozen=True)
class _Entry:
    """A claim of a pod. named: what the name says of one that admission makes; claim: None where it is not known."""

    key: _Key
    named: re.Match[str] | None
    claim: SeenClaim | None


class ClaimedPods:
    """The ResourceSlices and ResourceClaims of a cluster, and the pods that have claims. complain: takes what is wrong with one.

    inventories: the GPUs of each node that has slices; errors: why they cannot be read.
    """

    def __init__(self, complain: Callable[[str], None] = lambda text: None) -> None:
        self.inventories: dict[str, Inventory] = {}
        self.errors: dict[str, str] = {}
        self._complain = complain
        self._slices: dict[str, Mapping[str, Any]] = {}
        self._slices_of: dict[str, set[str]] = {}
        self._claims: dict[_Key, SeenClaim] = {}
        self._pods: dict[str, Mapping[str, Any]] = {}
        self._by_claim: dict[_Key, set[str]] = {}
        self._by_node: dict[str, set[str]] = {}
        self._named: set[str] = set()

    @property
    def in_use(self) -> bool:
        """Whether anything of the cluster is of this back end."""
        return bool(self._slices or self._claims or self._named)

    def set_slice(self, raw: Mapping[str, Any]) -> str:
        """A slice as it is now; the name of its node, "" for one of another driver. The pods there have to be read again."""
        spec = as_mapping(raw.get("spec"))
        if spec.get("driver") != DRIVER:
            return ""
        name = str(raw["metadata"]["name"])
        if name in self._slices:
            self._slices_of[_node_of(self._slices[name])].discard(name)
        self._slices[name] = {"spec": spec}
        node = _node_of(self._slices[name])
        self._slices_of.setdefault(node, set()).add(name)
        return self._read(node)

    def remove_slice(self, name: str) -> str:
        """The node of a slice that is gone, "" for one that was not known."""
        gone = self._slices.pop(name, None)
        if gone is None:
            return ""
        self._slices_of[_node_of(gone)].discard(name)
        return self._read(_node_of(gone))

    @property
    def slices(self) -> Collection[str]:
        """Names."""
        return self._slices.keys()

    def _read(self, node: str) -> str:
        found = [self._slices[name] for name in sorted(self._slices_of[node])]
        self.inventories.pop(node, None)
        self.errors.pop(node, None)
        try:
            if found:
                self.inventories[node] = read_inventory(found)
        except ReportError as error:
            self.errors[node] = f"its ResourceSlices cannot be used: {error}"
        return node

    def set_claim(self, raw: Mapping[str, Any]) -> _Key:
        """A claim as it is now. The pods that use it have to be read again."""
        key = (str(raw["metadata"].get("namespace")), str(raw["metadata"].get("name")))
        try:
            claim = read_claim(raw)
        except ReportError as error:
            self._complain(f"claim {key[0]}/{key[1]}: {error}; it is left out")
            self._claims.pop(key, None)
            return key
        if claim.ours:
            self._claims[key] = claim
        else:
            # Other requests may have had a device of ours, until it was given back.
            self._claims.pop(key, None)
        return key

    def remove_claim(self, key: _Key) -> None:
        self._claims.pop(key, None)

    @property
    def claims(self) -> Collection[_Key]:
        return self._claims.keys()

    def pods_on(self, node: str) -> list[Mapping[str, Any]]:
        """The pods with claims on a node, as they were set."""
        return [self._pods[uid] for uid in sorted(self._by_node.get(node, ()))]

    def pods_of(self, key: _Key) -> list[Mapping[str, Any]]:
        """The pods that use a claim."""
        return [self._pods[uid] for uid in sorted(self._by_claim.get(key, ()))]

    def forget(self, uid: str) -> None:
        """The pod is gone."""
        self._named.discard(uid)
        raw = self._pods.pop(uid, None)
        if raw is not None:
            self._by_node.get(_node_of(raw), set()).discard(uid)
            for entry in self._entries(raw):
                users = self._by_claim.get(entry.key, set())
                users.discard(uid)
                if not users:
                    self._by_claim.pop(entry.key, None)

    def pod(self, raw: Mapping[str, Any]) -> Mapping[str, Any] | str:
        """A v1.Pod as it would be with the extender; the reason where only kube-scheduler can say what it asks for."""
        uid = str(raw["metadata"]["uid"])
        self.forget(uid)
        entries = self._entries(raw)
        if not entries:
            return raw
        self._pods[uid] = raw
        self._by_node.setdefault(_node_of(raw), set()).add(uid)
        for entry in entries:
            self._by_claim.setdefault(entry.key, set()).add(uid)
        names = [entry.named for entry in entries if entry.named]
        if names:
            self._named.add(uid)
        if not _node_of(raw):
            return self._waiting(raw, entries)
        given = [entry.claim for entry in entries if entry.claim is not None and entry.claim.parts]
        if given:
            return self._with(raw, [claim for claim in given if claim.pods[:1] in ((), (uid,))])
        return _asking(raw, names, self._uuids) if names else raw

    def _entries(self, raw: Mapping[str, Any]) -> list[_Entry]:
        """The claims of a pod that may be about our GPUs."""
        spec, status = as_mapping(raw.get("spec")), as_mapping(raw.get("status"))
        if not (spec.get("resourceClaims") or status.get("extendedResourceClaimStatus")):
            # As most of 50,000 pods.
            return []
        namespace, found = str(raw["metadata"].get("namespace")), []
        statuses = islice(map(as_mapping, _list(status.get("resourceClaimStatuses"))), _MOST_CLAIMS)
        made = {str(entry.get("name")): str(entry.get("resourceClaimName") or "") for entry in statuses}
        for entry in islice(map(as_mapping, _list(spec.get("resourceClaims"))), _MOST_CLAIMS):
            name = str(entry.get("name"))
            named = _NAME.fullmatch(name) if entry.get("resourceClaimTemplateName") == CLASS else None
            key = namespace, str(entry.get("resourceClaimName") or made.get(name) or "")
            found.append(_Entry(key, named, self._claims.get(key)))
        whole = as_mapping(status.get("extendedResourceClaimStatus")).get("resourceClaimName")
        if whole:
            found.append(_Entry((namespace, str(whole)), None, self._claims.get((namespace, str(whole)))))
        return found

    def _waiting(self, raw: Mapping[str, Any], entries: Sequence[_Entry]) -> Mapping[str, Any] | str:
        ours = [entry for entry in entries if entry.named or (entry.claim and entry.claim.ours)]
        # Whole GPUs stay limits until kube-scheduler has made their claim.
        if not ours or as_mapping(raw.get("status")).get("extendedResourceClaimStatus"):
            return raw
        first, *others = ours
        if first.named and not others:
            return _asking(raw, [first.named], self._uuids)
        asks = first.claim.asks if first.claim else None
        if others or asks is None:
            what = (
                "asks by several ResourceClaims" if others else f"asks by the ResourceClaim {quote(first.key[1])} with selectors of its own"
            )
            return f"it {what}, which only kube-scheduler can judge: kubectl get resourceclaims -n {quote(first.key[0])} -o yaml shows them"
        count, size = asks
        if not size:
            return _rewritten(raw, {protocol.RESOURCE_GPUS: count}, 1, {})
        units = -(-size // (self._unit() * _UNIT))
        return _rewritten(raw, {protocol.RESOURCE_MEMORY: units * count}, count, {})

    def _unit(self) -> int:
        """MiB of a unit; nodes of one installation have the same."""
        return next((inventory.unit.mib for inventory in self.inventories.values()), GIB.mib)

    def _uuids(self) -> Mapping[str, str]:
        """Device → UUID."""
        return {device_name(gpu.uuid): gpu.uuid for inventory in self.inventories.values() for gpu in inventory.gpus}

    def _with(self, raw: Mapping[str, Any], claims: Iterable[SeenClaim]) -> Mapping[str, Any]:
        """The pod on its node, which has the devices of these claims."""
        node = _node_of(raw)
        inventory = self.inventories.get(node)
        by_device = {device_name(gpu.uuid): gpu for gpu in inventory.gpus} if inventory else {}
        unit = (inventory.unit.mib if inventory else self._unit()) * _UNIT
        by_gpu: dict[int, int] = {}
        total, gone, whole = 0, False, True
        for claim in claims:
            for part in claim.parts:
                units, gpu = -(-part.size // unit), by_device.get(part.device) if part.node == node else None
                total += units
                if gpu is None:
                    gone = True
                    continue
                by_gpu[gpu.index] = by_gpu.get(gpu.index, 0) + units
                whole = whole and not claim.of_limits and units == gpu.units
        if not total:
            # Another pod is charged for what they share.
            return _rewritten(raw, {}, 1, {})
        if gone and inventory is not None:
            name = f"{raw['metadata'].get('namespace')}/{raw['metadata'].get('name')}"
            self._complain(f"pod {name} has a GPU that node {node} does not have any more: delete the pod, whose owner makes another one")
        stated = (
            {} if gone else {protocol.ANNOTATION_ALLOCATION: json.dumps({"0": {str(index): by_gpu[index] for index in sorted(by_gpu)}})}
        )
        if whole and by_gpu and not gone:
            return _rewritten(raw, {protocol.RESOURCE_GPUS: len(by_gpu)}, 1, stated)
        return _rewritten(raw, {protocol.RESOURCE_MEMORY: total}, len(by_gpu) or 1, stated)

    def shared(self, raw: Mapping[str, Any]) -> str:
        """The claim of a pod that another pod is charged for, "" for none."""
        uid = str(raw["metadata"]["uid"])
        claims = (entry.claim for entry in self._entries(raw) if entry.claim is not None and entry.claim.parts)
        return next((claim.name for claim in claims if claim.pods[:1] not in ((), (uid,))), "")

    def reserved(self, uid: str) -> Mapping[str, list[int]]:
        """Node → indexes of the GPUs that the claims of a pod have already, though it is on no node."""
        raw = self._pods.get(uid)
        found: dict[str, list[int]] = {}
        for entry in self._entries(raw) if raw is not None and not _node_of(raw) else ():
            for part in entry.claim.parts if entry.claim is not None else ():
                inventory = self.inventories.get(part.node)
                indexes = [gpu.index for gpu in inventory.gpus if device_name(gpu.uuid) == part.device] if inventory else []
                found.setdefault(part.node, []).extend(indexes)
        return found

    def loose(self, on_a_node: Callable[[str], bool]) -> Iterator[Mapping[str, Any]]:
        """The claims that are allocated while none of their pods is on a node, each as a pod that has its GPUs: they are in use."""
        for (namespace, name), claim in sorted(self._claims.items()):
            users = {str(raw["metadata"]["uid"]) for raw in self.pods_of((namespace, name))}
            if claim.parts and not any(map(on_a_node, users | set(claim.pods))):
                metadata = {"uid": claim.uid, "namespace": namespace, "name": as_text(name)}
                raw = {"metadata": metadata, "spec": {"nodeName": claim.parts[0].node, "containers": [{"name": "claim"}]}, "status": {}}
                yield self._with(raw, [claim])


def _node_of(raw: Mapping[str, Any]) -> str:
    return str(as_mapping(raw.get("spec")).get("nodeName") or "")


def _asking(raw: Mapping[str, Any], names: Iterable[re.Match[str]], uuids: Callable[[], Mapping[str, str]]) -> Mapping[str, Any]:
    """The pod with the limits and rules that the names of its claims stand for. uuids: of all GPUs of the cluster, so few pods need it."""
    units, gpus, rules = 0, 1, dict[str, list[str]]()
    for name in names:
        gpus = int(name[2] or 1)
        units += int(name[1]) * gpus
        for part in filter(None, name[3].split("--")):
            tag, _, word = part.partition("-")
            annotation = _RULES[tag]
            rules.setdefault(annotation, []).append(uuids().get(word, word) if tag in ("on", "off") else word)
    return _rewritten(raw, {protocol.RESOURCE_MEMORY: units}, gpus, {key: ",".join(words) for key, words in rules.items()})


def _rewritten(raw: Mapping[str, Any], limits: Mapping[str, int], gpus: int, annotations: Mapping[str, str]) -> dict[str, Any]:
    """The pod with these limits in its first container, and no others of ours. The users' own annotations
    about GPUs do not count: the claim does."""
    metadata, spec = raw["metadata"], as_mapping(raw.get("spec"))
    kept = {
        key: value
        for key, value in as_mapping(metadata.get("annotations")).items()
        if key not in ALLOCATED and not key.startswith(RULES_PREFIX)
    }
    labels = {key: value for key, value in as_mapping(metadata.get("labels")).items() if key != protocol.LABEL_GPUS_PER_POD}
    labels |= {protocol.LABEL_GPUS_PER_POD: str(gpus)} if gpus > 1 else {}
    first, *others = [_without(container) for container in spec.get("containers") or [_NOTHING]]
    resources = as_mapping(first.get("resources"))
    asked = {name: str(amount) for name, amount in limits.items()}
    first = {**first, "resources": {**resources, "limits": {**as_mapping(resources.get("limits")), **asked}}}
    rest = {"containers": [first, *others], "initContainers": [_without(container) for container in spec.get("initContainers") or ()]}
    return {**raw, "metadata": {**metadata, "annotations": {**kept, **annotations}, "labels": labels}, "spec": {**spec, **rest}}


def _without(container: Mapping[str, Any]) -> dict[str, Any]:
    resources = {
        key: {name: value for name, value in as_mapping(amounts).items() if name not in protocol.RESOURCES}
        for key, amounts in as_mapping(container.get("resources")).items()
        if key in ("limits", "requests")
    }
    return {**container, "resources": resources}
