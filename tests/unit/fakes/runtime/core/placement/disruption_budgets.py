# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A PodDisruptionBudget as the API server returns it."""

from __future__ import annotations

from typing import Any


def budget(allowed: int, namespace: str = "default", disrupted: tuple[str, ...] = (), name: str = "b", **selector: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"selector": selector},
        "status": {"disruptionsAllowed": allowed, "disruptedPods": dict.fromkeys(disrupted, "2026-01-01T00:00:00Z")},
    }
