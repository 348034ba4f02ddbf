# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What runs on a node, read on the node itself: also while the API server is away, to be compared later."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from e2e.api import Json
from e2e.cluster import GPUS, Cluster, allocation, is_running
from e2e.manifests import pod

NODE = "gpu1"
PLUGIN = "gpushare-device-plugin"
SPEC = "3x16"
"""The node that is disturbed, and the GPUs that it has for it: room for a whole GPU beside a pod that has two."""

Say = Callable[[str, float], None]
"""Prints what was measured, and its seconds."""


@dataclass(frozen=True)
class Seen:
    """One running container. name: pod/container; started: clock ticks after the machine's boot."""

    name: str
    id: str
    pid: int
    started: int
    devices: tuple[str, ...]


@dataclass(frozen=True)
class NodeState:
    """containers: by name; registered: resource → ids that kubelet has as healthy."""

    containers: Mapping[str, Seen]
    registered: Mapping[str, int]


def node_state(cluster: Cluster, node: str = NODE) -> NodeState:
    """The containers that run on a node in the namespace default, sidecars among them, and what kubelet has from the device plugin."""
    found = json.loads(cluster.on(node, "python3", "-c", (Path(__file__).parent / "print_node_state.py").read_text()))
    seen = [Seen(c["name"], c["id"], c["pid"], c["started"], tuple(c["devices"])) for c in found["containers"]]
    return NodeState({c.name: c for c in seen}, found["registered"])


def check_untouched(before: NodeState, after: NodeState, *, but: Collection[str] = ()) -> list[str]:
    """Every container that ran is the same process of the same container with the same device nodes. but: names left out."""
    return [
        f"{name}: was {seen}, is {after.containers.get(name, 'gone')}"
        for name, seen in before.containers.items()
        if name not in but and after.containers.get(name) != seen
    ]


# Pods of each kind that run beforehand.


def container(name: str, memory: int, command: str = "sleep 86400", **more: object) -> Json:
    """A container like the one of `pod`."""
    template: Json = pod("none", memory=memory)["spec"]["containers"][0]
    return {**template, "name": name, "command": ["/bin/sh", "-c", command], **more}


def on_two_gpus(name: str, memory: int) -> Json:
    """A pod with half of its memory on each of two GPUs."""
    wanted = pod(name, memory=memory, node=NODE)
    wanted["metadata"]["labels"] = {GPUS: "2"}
    return wanted


def with_others(name: str) -> Json:
    """A pod whose init container has ended, and whose sidecar runs."""
    wanted = pod(name, memory=4, node=NODE)
    wanted["spec"]["initContainers"] = [container("sidecar", 2, restartPolicy="Always"), container("prepare", 6, "true")]
    return wanted


PEOPLE: Mapping[str, Callable[[], Json]] = {
    "whole": lambda: pod("whole", gpus=1, node=NODE),
    "one": lambda: pod("one", memory=3, node=NODE),
    "two": lambda: on_two_gpus("two", 4),
    "others": lambda: with_others("others"),
}
"""One after the other they fill one GPU whole, and 15 of the 32 units of the other two."""


def ensure_people(cluster: Cluster) -> list[Json]:
    """The cluster with exactly these pods, all running on the node with its GPUs."""
    pods = {p["metadata"]["name"]: p for p in cluster.pods()}
    if set(pods) != set(PEOPLE) or not all(map(is_running, pods.values())):
        cluster.clear()
        for name, make in PEOPLE.items():
            cluster.create(make())
            cluster.until_running(name)
    return cluster.until_running(*PEOPLE)


def gpu(cluster: Cluster, *words: object) -> None:
    """Change the simulated GPUs of the node."""
    cluster.on(NODE, "python3", "/usr/local/lib/gpushare-lab/gpus.py", *map(str, words))


def uses(cluster: Cluster, used: list[tuple[int, str]], name: str, mib: int) -> None:
    """A process of the pod's container uses so much of its GPU."""
    made = cluster.pod(name)
    ((index),) = allocation(made)
    uid = made["metadata"]["uid"]
    found = cluster.on(NODE, "sh", "-c", f"grep -l '{uid}\\|{uid.replace('-', '_')}' /proc/[0-9]*/cgroup | cut -d/ -f3").split()
    gpu(cluster, "process", index, found[0], mib, "trainer")
    used.append((index, found[0]))
