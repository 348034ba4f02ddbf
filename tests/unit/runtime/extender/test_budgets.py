# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Evictions counted against disruption budgets, as kube-scheduler's filterPodsWithPDBViolation counts them."""

from __future__ import annotations

from typing import Any

import pytest

from gpushare_runtime.extender.budgets import read_budget, violations
from gpushare_runtime.extender.cluster import Cluster
from gpushare_runtime.ledger import Holder
from unit.runtime.test_ledger import memory


def budget(allowed: int, namespace: str = "default", disrupted: tuple[str, ...] = (), **selector: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "b", "namespace": namespace},
        "spec": {"selector": selector},
        "status": {"disruptionsAllowed": allowed, "disruptedPods": dict.fromkeys(disrupted, "2026-01-01T00:00:00Z")},
    }


def pods(*apps: str) -> list[Holder]:
    return [Holder(f"u{i}", "default", f"p{i}", "n", memory(1), None, (("app", app),)) for i, app in enumerate(apps)]


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (budget(0, matchLabels={"app": "a"}), [True, False, True]),
        (budget(1, matchLabels={"app": "a"}), [False, False, True]),
        (budget(2, matchLabels={"app": "a"}), [False, False, False]),
        (budget(0, namespace="other", matchLabels={"app": "a"}), [False] * 3),
        (budget(0), [False] * 3),
        (budget(0, disrupted=("p0",), matchLabels={"app": "a"}), [False, False, True]),
        (budget(0, matchExpressions=[{"key": "app", "operator": "In", "values": ["b", "c"]}]), [False, True, False]),
        (budget(0, matchExpressions=[{"key": "app", "operator": "NotIn", "values": ["b"]}]), [True, False, True]),
        (budget(0, matchExpressions=[{"key": "app", "operator": "Exists"}]), [True] * 3),
        (budget(0, matchExpressions=[{"key": "app", "operator": "DoesNotExist"}]), [False] * 3),
    ],
)
def test_who_violates_it(raw: dict[str, Any], expected: list[bool]) -> None:
    assert violations(pods("a", "b", "a"), [read_budget(raw)]) == expected


def test_the_clusters_budgets_follow_lists_and_events() -> None:
    cluster, raw = Cluster(), budget(1, matchLabels={"app": "a"})
    cluster.replace_budgets([read_budget(raw)])
    raw["status"]["disruptionsAllowed"] = 0
    cluster.budget_event("MODIFIED", read_budget(raw))
    assert [one.allowed for one in cluster.budgets] == [0]
    cluster.budget_event("DELETED", read_budget(raw))
    assert not cluster.budgets


def test_without_budgets_nobody_does() -> None:
    assert violations(pods("a"), []) == [False]


def test_a_budget_without_status_allows_nothing() -> None:
    raw = budget(3, matchLabels={"app": "a"})
    del raw["status"]
    assert violations(pods("a"), [read_budget(raw)]) == [True]
