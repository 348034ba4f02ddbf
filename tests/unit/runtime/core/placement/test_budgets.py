# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Evictions counted against disruption budgets, as kube-scheduler's filterPodsWithPDBViolation counts them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpushare_runtime.core.placement.preemption import Budget, read_budget, violations
from gpushare_runtime.core.pods import AllocatedPod
from gpushare_runtime.extender.cache import Cluster
from unit.runtime.core.test_ledger import memory


def budget(allowed: int, namespace: str = "default", disrupted: tuple[str, ...] = (), **selector: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "b", "namespace": namespace},
        "spec": {"selector": selector},
        "status": {"disruptionsAllowed": allowed, "disruptedPods": dict.fromkeys(disrupted, "2026-01-01T00:00:00Z")},
    }


def pods(*apps: str) -> list[AllocatedPod]:
    return [AllocatedPod(f"u{i}", "default", f"p{i}", "n", memory(1), None, (("app", app),)) for i, app in enumerate(apps)]


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


def test_every_part_of_a_selector_must_hold() -> None:
    both = budget(0, matchLabels={"app": "a"}, matchExpressions=[{"key": "tier", "operator": "Exists"}])
    two = budget(0, matchLabels={"app": "a", "tier": "x"})
    two_expressions = [{"key": "app", "operator": "Exists"}, {"key": "tier", "operator": "In", "values": ["x"]}]
    for raw in (both, two, budget(0, matchExpressions=two_expressions)):
        half, whole = pods("a", "a")
        whole = replace(whole, labels=(("app", "a"), ("tier", "x")))
        assert violations([half, whole], [read_budget(raw)]) == [False, True]
    absent = budget(0, matchExpressions=[{"key": "tier", "operator": "NotIn", "values": ["x"]}])
    assert violations(pods("a"), [read_budget(absent)]) == [True], "who has no such label is not in"
    missing = budget(0, matchExpressions=[{"key": "tier", "operator": "DoesNotExist"}])
    assert violations(pods("a"), [read_budget(missing)]) == [True]


def test_each_budget_counts_on_its_own_and_every_eviction_counts() -> None:
    one = read_budget(budget(1, matchLabels={"app": "a"}))
    all_of_them = read_budget(budget(2, matchExpressions=[{"key": "app", "operator": "Exists"}]))
    assert violations(pods("b", "a", "b", "a"), [one, all_of_them]) == [False, False, True, True]
    assert violations(pods("a", "a"), [all_of_them, one]) == [False, True]
    assert violations(pods("a", "a"), iter([one, all_of_them])) == [False, True]


def test_a_budget_as_the_api_server_has_it() -> None:
    raw = budget(2, "n", ("p",), matchLabels={"a": "b"}, matchExpressions=[{"key": "k", "operator": "Exists"}])
    assert read_budget(raw) == Budget("n", "b", {"a": "b"}, (("k", "Exists", ()),), 2, frozenset({"p"}))
    bare = {"metadata": {"namespace": "n", "name": "b"}}
    assert read_budget(bare) == read_budget(bare | {"spec": {"selector": None}}) == Budget("n", "b", {}, (), 0, frozenset())


def test_a_pod_without_labels_counts_against_none() -> None:
    """kube-scheduler does not even look then, also where a selector wants a label not to be there."""
    bare = [replace(pod, labels=()) for pod in pods("a", "b")]
    for operator in ("NotIn", "DoesNotExist"):
        raw = budget(0, matchExpressions=[{"key": "app", "operator": operator, "values": ["c"]}])
        assert violations(bare, [read_budget(raw)]) == [False, False]


def test_each_namespace_has_budgets_of_its_own() -> None:
    first, second = pods("a", "a")
    mixed = [first, replace(second, namespace="other"), second, replace(first, namespace="other")]
    both = [read_budget(budget(allowed, namespace, matchLabels={"app": "a"})) for allowed, namespace in ((1, "default"), (0, "other"))]
    assert violations(mixed, both) == [False, True, True, True]
