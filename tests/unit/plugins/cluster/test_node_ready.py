# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Whether a node counts as ready after its container runtime was restarted."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.node_ready import SETTLED, not_ready, unix_time

RESTART = 1_790_000_000.25


def lease(at: float) -> dict[str, Any]:
    return {"spec": {"renewTime": datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%dT%H:%M:%S.%fZ")}}


def node(status: str = "True", message: str = "kubelet is posting ready status") -> dict[str, Any]:
    conditions = [{"type": "MemoryPressure", "status": "False"}, {"type": "Ready", "status": status, "message": message}]
    return {"status": {"conditions": conditions}}


def test_the_condition_of_before_the_restart_does_not_count() -> None:
    assert "no heartbeat" in str(not_ready(node(), lease(RESTART - 1), RESTART))
    # kubelet may not have asked the runtime yet.
    assert "no heartbeat" in str(not_ready(node(), lease(RESTART + SETTLED - 0.001), RESTART))
    assert not_ready(node(), lease(RESTART + SETTLED), RESTART) is None


@pytest.mark.parametrize("status", ["False", "Unknown"])
def test_a_node_that_is_not_ready_says_why(status: str) -> None:
    why = not_ready(
        node(status, "container runtime network not ready:\n cni plugin not initialized " + "x" * 900), lease(RESTART + 99), RESTART
    )
    assert str(why).startswith(f"its condition Ready is {status}: container runtime network not ready: cni plugin")
    assert len(str(why)) < 340


def test_what_is_missing_is_said() -> None:
    assert not_ready(None, None, RESTART) == "the cluster has no such node"
    assert "Ready is missing" in str(not_ready({}, lease(RESTART + 99), RESTART))
    nothing = "kubelet has no heartbeat, neither in a lease in kube-node-lease nor in the condition Ready"
    assert not_ready(node(), None, RESTART) == nothing
    assert not_ready(node(), {"spec": {"renewTime": "soon"}}, RESTART) == nothing


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("2026-11-22T11:00:00Z", 1795345200.0),
        ("2026-11-22T11:00:00.500000Z", 1795345200.5),
        ("2026-13-22T11:00:00Z", None),
        ("2026-11-22T11:00:00+01:00", None),
        ("", None),
    ],
)
def test_times_as_kubernetes_writes_them(text: str, time: float | None) -> None:
    assert unix_time(text) == time
