# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What preflight reads about NVIDIA's GPU Operator."""

from __future__ import annotations

from typing import Any


def policy(**changes: Any) -> dict[str, Any]:
    return {"name": "cluster-policy", "enabled": True, "owner": "", "release": "", "patched": False, "problem": "", **changes}


def operator(*policies: dict[str, Any], nodes: tuple[str, ...] = ("gpu1", "gpu2"), **changes: Any) -> dict[str, Any]:
    """As the facts have it. By default it serves two nodes, of which none is ours yet."""
    return {"versions": ["v1"], "policies": list(policies), "nodes": list(nodes), "ours": [], **changes}
