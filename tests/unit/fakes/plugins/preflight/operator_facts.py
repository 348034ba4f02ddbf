# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What preflight reads about NVIDIA's GPU Operator."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

NO_OPERATOR: dict[str, Any] = {key: [] for key in ("versions", "policies", "nodes", "ours", "clusters", "dra_nodes")}
NO_DRA: dict[str, Any] = {"published": [], "holders": []}


def policy(**changes: Any) -> dict[str, Any]:
    return {"name": "cluster-policy", "enabled": True, "owner": "", "release": "", "problem": "", **changes}


def operator(*policies: dict[str, Any], nodes: tuple[str, ...] = ("gpu1", "gpu2"), **changes: Any) -> dict[str, Any]:
    """As the facts have it. By default it serves two nodes, of which none is ours yet."""
    return {**NO_OPERATOR, "versions": ["v1"], "policies": list(policies), "nodes": list(nodes), **changes}


def gpu_cluster(*nodes: str) -> dict[str, Any]:
    """Facts of an operator with a GPUCluster, which brings NVIDIA's DRA driver to these nodes."""
    return {**NO_OPERATOR, "clusters": ["gpu-cluster"], "dra_nodes": list(nodes)}


def dra(*nodes: str, driver: str = "gpu.nvidia.com", holders: Sequence[str] = ()) -> dict[str, Any]:
    """Facts of a driver that publishes the GPUs of these nodes; holders: nodes with a pod that has some."""
    return {
        "published": [{"node": node, "driver": driver} for node in nodes],
        "holders": [{"node": node, "pod": "default/train", "driver": driver} for node in holders],
    }
