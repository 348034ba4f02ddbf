# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Nodes as NVIDIA's GPU Operator prepares them: nothing of NVIDIA where packages have it, and no CDI spec that names a single GPU."""

from __future__ import annotations

import json
from typing import Any

from cluster_mode.in_cluster import InCluster
from e2e.cluster import Cluster, annotations_of

SPEC = "/run/cdi/gpushare.json"
OWN = "gpushare.kubernetes/gpu"
STATE = "/var/lib/gpushare-lab/gpus.state"
_PROGRAM = "/usr/local/sbin/gpushare-lab-gpu"


class Operator(InCluster):
    """The playbook with its default strategy: each node's device plugin chooses it."""

    def settings(self, **other: Any) -> dict[str, Any]:
        return {**super().settings(), "gpushare_device_strategy": "auto", **other}


def lab_gpu(cluster: Cluster, node: str, *words: str) -> None:
    """Change the GPUs or the driver of a node."""
    cluster.on(node, _PROGRAM, *words)


def spec(cluster: Cluster, node: str) -> dict[str, Any]:
    """Our CDI spec of a node, {} while there is none, or no whole one."""
    try:
        found: dict[str, Any] = json.loads(cluster.on(node, "sh", "-c", f"cat {SPEC} 2>/dev/null || echo {{}}"))
    except ValueError:
        return {}
    return found


def named(cluster: Cluster, node: str) -> set[str]:
    return {one["name"] for one in spec(cluster, node).get("devices", [])}


def published(cluster: Cluster, node: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(annotations_of(cluster.node(node)).get("gpushare/gpus", "{}"))
    return found


def health(cluster: Cluster, node: str) -> list[str]:
    return [one["health"] for one in published(cluster, node).get("gpus", [])]


def usable(cluster: Cluster, node: str) -> bool:
    """Whether the device plugin offers exactly the GPUs that the node has now."""
    offered = published(cluster, node).get("gpus", [])
    real = {gpu.uuid for gpu in cluster.gpus(node)}
    return {one["uuid"] for one in offered} == real == named(cluster, node) and set(health(cluster, node)) == {"ok"}


def seconds_between(cluster: Cluster, node: str, first: str, second: str) -> float:
    """From the last change of one file to that of another."""
    times = [float(cluster.on(node, "stat", "-c", "%.Y", path)) for path in (first, second)]
    return times[1] - times[0]
