# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A cluster with claims as the tests of the other back end see theirs: its pods have limits, and the annotations that name their GPUs.

Limits are those of the manifests, annotations are written here from what kube-scheduler has allocated. So the same checks compare both with
what containers have.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from copy import deepcopy

from cluster_mode.installs import gpushare
from dra.shares import SLICES, Share, allocated, claims, gpus_by_device
from e2e.api import Json
from e2e.cluster import GPUS, MEMORY, Cluster, asked
from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.dra.slices import slices

ALLOCATION = "scheduler.framework.gpushare.allocation"
#: (node, device) → index and GiB of the GPU.
Known = Mapping[tuple[str, str], tuple[int, int]]


class ByClaims(Cluster):
    """The same lab. kept: UID of a pod → its annotations, also after its end, when it has no claim any more."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self._asked: dict[str, Json] = {}
        self._kept: dict[str, dict[str, str]] = {}
        self._real: dict[tuple[str, str], tuple[int, int]] = {}

    def create(self, pod: Json) -> Json:
        made = super().create(pod)
        self._asked[made["metadata"]["uid"]] = pod
        return made

    def clear(self) -> None:
        super().clear()
        self.until("no claim is left", lambda: not claims(self), 60)

    def pods(self, namespace: str = "default") -> list[Json]:
        found = super().pods(namespace)
        return self._seen(found) if namespace == "default" else found

    def pod(self, name: str, namespace: str = "default") -> Json:
        found = super().pod(name, namespace)
        return self._seen([found])[0] if namespace == "default" else found

    def until_unschedulable(self, name: str, seconds: float = 30) -> str:
        """In numbers by `kubectl gpushare explain`, because kube-scheduler has none."""
        said = super().until_unschedulable(name, seconds)
        nodes = json.loads(gpushare(self, "explain", name, "-o", "json"))["nodes"]
        return "; ".join([said, *(f"{one['name']}: {one['reason']}" for one in nodes)])

    def publish_gpus(self, node: str, inventory: str) -> None:
        made = slices(node, self.node(node)["metadata"]["uid"], Inventory.from_json(inventory), 1)
        for one in made:
            self.api.create(SLICES, one)

    def nodes_with_gpus(self) -> set[str]:
        return {one["spec"]["nodeName"] for one in self.api.items(SLICES)}

    def _seen(self, pods: Sequence[Json]) -> list[Json]:
        shares = allocated(self)
        known = self._known([share for of in shares.values() for share in of])
        return [self._one(pod, shares.get(pod["metadata"]["uid"], []), known) for pod in pods]

    def _known(self, shares: Sequence[Share]) -> Known:
        """By the driver; a node that is no machine has slices alone."""
        if not self._real:
            self._real = {where: (gpu.index, gpu.mib // 1024) for where, gpu in gpus_by_device(self).items()}
        if all((share.node, share.device) in self._real for share in shares):
            return self._real
        found = dict(self._real)
        for one in self.api.items(SLICES):
            for device in one["spec"]["devices"]:
                attributes = device["attributes"]
                size = attributes["index"]["int"], attributes["mib"]["int"] // 1024
                found.setdefault((one["spec"]["nodeName"], device["name"]), size)
        return found

    def _one(self, pod: Json, shares: Sequence[Share], known: Known) -> Json:
        """The pod as it would be with the other back end."""
        uid = pod["metadata"]["uid"]
        seen = deepcopy(pod)
        if uid in self._asked:
            wanted = self._asked[uid]["spec"]
            for field in ("containers", "initContainers"):
                for container, of in zip(seen["spec"].get(field, ()), wanted.get(field, ()), strict=True):
                    container["resources"] = {**container.get("resources", {}), "limits": of.get("resources", {}).get("limits", {})}
        if shares:
            self._kept[uid] = _annotations(seen["spec"], shares, known)
        seen["metadata"]["annotations"] = {**(pod["metadata"].get("annotations") or {}), **self._kept.get(uid, {})}
        return seen


def _annotations(spec: Json, shares: Sequence[Share], known: Known) -> dict[str, str]:
    gpus = sorted((*known[share.node, share.device], share.gib) for share in shares)
    total = sum(gib for _, _, gib in gpus)
    staying = {place: asked(container, MEMORY) for place, container in enumerate(spec["containers"])}
    inits = spec.get("initContainers", ())
    staying |= {-1 - place: asked(one, MEMORY) for place, one in enumerate(inits) if one.get("restartPolicy") == "Always"}
    staying = {place: units for place, units in staying.items() if units}
    if any(asked(container, GPUS) for container in spec["containers"]):
        staying = {0: total}
    rest = total - sum(staying.values())
    if rest > 0:
        # What an init container had beyond those that run on.
        staying[-1 - len(inits)] = rest
    by_container = {str(place): {str(index): units * gib // total for index, _, gib in gpus} for place, units in staying.items()}
    index, size, _ = gpus[0]
    return {
        "ALIYUN_COM_GPU_MEM_IDX": str(index),
        "ALIYUN_COM_GPU_MEM_DEV": str(size),
        "ALIYUN_COM_GPU_MEM_POD": str(total),
        ALLOCATION: json.dumps(by_container),
    }
