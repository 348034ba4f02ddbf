# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A cluster and its hosts as they are now, so that two moments can be compared to the byte."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from e2e.api import Json
from e2e.cluster import Cluster
from gpushare_runtime.core.protocol import ANNOTATION_USE

_PRINT_HOST_STATE = (Path(__file__).parent / "print_host_state.py").read_text()
_KINDS = (
    "serviceaccounts",
    "secrets",
    "configmaps",
    "roles",
    "rolebindings",
    "clusterroles",
    "clusterrolebindings",
    "validatingadmissionpolicies",
    "validatingadmissionpolicybindings",
    "daemonsets",
    "deployments",
)
#: The extender writes it soon after it leads, and when GPUs change.
_OF_THE_EXTENDER = "ConfigMap kube-public/gpushare-gpus"
_PLUGIN = "gpushare-device-plugin"


@dataclass(frozen=True)
class Snapshot:
    """What a thing is called → all that would change about it if it were written, restarted or moved."""

    things: Mapping[str, Any]

    def differences(self, later: Snapshot) -> list[str]:
        """What is not the same later, in words; none means nothing at all."""
        names = sorted(self.things.keys() | later.things.keys())
        absent = "absent"
        pairs = ((name, self.things.get(name, absent), later.things.get(name, absent)) for name in names)
        return [f"{name}: {before} → {after}" for name, before, after in pairs if before != after]


def take(cluster: Cluster) -> Snapshot:
    """Every watched file and unit of every host, and the objects of the cluster that an installer could touch."""
    things: dict[str, Any] = {}
    for node in cluster.nodes():
        name = node["metadata"]["name"]
        seen = json.loads(cluster.on(name, "python3", "-c", _PRINT_HOST_STATE))
        things |= {f"{name}:{path}": state for path, state in seen["files"].items()}
        things |= {f"{name}: unit {unit}": state for unit, state in seen["units"].items()}
    return Snapshot(things | objects(cluster))


def installed(node: Json) -> dict[str, str]:
    """Its annotations, without what the device plugin writes by itself: the use of the GPUs, whenever that changes."""
    return {name: value for name, value in (node["metadata"].get("annotations") or {}).items() if name != ANNOTATION_USE}


def objects(cluster: Cluster) -> dict[str, Any]:
    """Objects by their version; nodes, whose status beats, by the rest of them; pods by their containers."""
    things: dict[str, Any] = {}
    listed = json.loads(
        cluster.kubectl("get", ",".join([*_KINDS, "nodes", "pods"]), "--all-namespaces", "-o", "json", "--show-managed-fields")
    )
    for item in listed["items"]:
        metadata = item["metadata"]
        name = f"{item['kind']} {metadata.get('namespace', '')}/{metadata['name']}"
        if item["kind"] == "Node":
            # The device plugin's own annotations are compared by their values.
            ours = [entry for entry in metadata["managedFields"] if "gpushare" in entry["manager"] and _PLUGIN not in entry["manager"]]
            things[name] = [metadata.get("labels"), installed(item), item["spec"], item["status"]["allocatable"], ours]
        elif item["kind"] == "Pod":
            containers = [
                (status["name"], status.get("containerID"), status["restartCount"]) for status in item["status"]["containerStatuses"]
            ]
            things[name] = [metadata["uid"], metadata.get("annotations"), containers]
        elif name == _OF_THE_EXTENDER:
            things[name] = metadata["uid"]
        else:
            things[name] = metadata["resourceVersion"]
    return things


def settled(cluster: Cluster) -> Snapshot:
    """The cluster once its own controllers have nothing left to write."""
    last: list[object] = []

    def still() -> bool:
        last.append(objects(cluster))
        return len(last) > 1 and last[-1] == last[-2]

    cluster.until("the cluster's objects stay as they are", still, 60)
    return take(cluster)
