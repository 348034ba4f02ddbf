# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Evictions counted against disruption budgets, as kube-scheduler's filterPodsWithPDBViolation counts them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare_runtime.core.placement.budgets import (
    MOST_BUDGETS,
    MOST_COMPARED,
    MOST_COMPARED_OF_ONE,
    MOST_REQUIREMENTS,
    Budget,
    Budgets,
    Effort,
    read_budget,
    violations,
)
from gpushare_runtime.core.pods import AllocatedPod
from unit.fakes.runtime.core.placement.disruption_budgets import budget
from unit.fakes.runtime.pods import memory


def pods(*apps: str) -> list[AllocatedPod]:
    return [AllocatedPod(f"u{i}", "default", f"p{i}", "n", memory(1), None, (("app", app),)) for i, app in enumerate(apps)]


def looked_up(budgets: Budgets) -> Callable[[AllocatedPod], Sequence[Budget] | None]:
    """As one question does."""
    effort = Effort()
    return lambda pod: budgets.covering(pod, effort)


def counted(pods: list[AllocatedPod], *raws: dict[str, Any]) -> list[bool]:
    return violations(pods, looked_up(Budgets(map(read_budget, raws))))


def test_they_follow_lists_and_events_and_are_told_apart_by_namespace_and_name() -> None:
    known = Budgets()
    budgets = [
        read_budget(budget(allowed, namespace, name=name, matchLabels={"app": "a"})) for allowed, (namespace, name) in enumerate(NAMES)
    ]
    assert list(known) == []
    known.replace(budgets[:2])
    known.event("ADDED", budgets[2])
    assert list(known) == budgets
    known.event("MODIFIED", replace(budgets[0], allowed=7))
    for _ in range(2):
        known.event("DELETED", budgets[1])
        assert {(b.namespace, b.name): b.allowed for b in known} == {("a", "x"): 7, ("b", "x"): 2}
    known.event("DELETED", budgets[2])
    known.event("DELETED", budgets[2])
    assert list(known) == [replace(budgets[0], allowed=7)]
    known.replace([budgets[1]])
    assert list(known) == [budgets[1]]
    known.event("ADDED", replace(budgets[1], name="other", labels={"app": "other"}))
    for name, left in (("other", {"app": "a"}), (budgets[1].name, {})):
        known.event("DELETED", replace(budgets[1], name=name))
        wanted = {one for namespace in known._namespaces.values() for one in namespace._wanted}
        assert (wanted, len(known._namespaces)) == (set(left.items()), len(left)), "nothing stays of what is gone"


NAMES = ("ax", "ay", "bx")


def test_a_budget_without_status_allows_nothing() -> None:
    raw = budget(3, matchLabels={"app": "a"})
    del raw["status"]
    assert counted(pods("a"), raw) == [True]


def test_a_budget_as_the_api_server_has_it() -> None:
    raw = budget(2, "n", ("p",), matchLabels={"a": "b"}, matchExpressions=[{"key": "k", "operator": "Exists"}])
    assert read_budget(raw) == Budget("n", "b", {"a": "b"}, (("k", "Exists", frozenset()),), 2, frozenset({"p"}))
    bare = {"metadata": {"namespace": "n", "name": "b"}}
    assert read_budget(bare) == read_budget(bare | {"spec": {"selector": None}}) == Budget("n", "b", {}, (), 0, frozenset())


LABELS = st.dictionaries(st.sampled_from("abc"), st.sampled_from("xy"), max_size=3)
EXPRESSIONS = st.fixed_dictionaries(
    {"key": st.sampled_from("abc"), "operator": st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist"])},
    optional={"values": st.lists(st.sampled_from("xy"), max_size=2, unique=True)},
)


@st.composite
def some_budgets(draw: st.DrawFn) -> dict[str, Any]:
    selector = {"matchLabels": draw(LABELS), "matchExpressions": draw(st.lists(EXPRESSIONS, max_size=2))}
    disrupted = draw(st.sampled_from([(), ("p0",), ("p1", "p2")]))
    return budget(draw(st.integers(0, 2)), draw(st.sampled_from("mn")), disrupted, draw(st.sampled_from("pqrs")), **selector)


def naive(all_of_them: dict[tuple[str, str], dict[str, Any]], evicted: list[AllocatedPod]) -> list[bool]:
    """Every pod against every budget, as filterPodsWithPDBViolation."""
    left = {key: raw["status"]["disruptionsAllowed"] for key, raw in all_of_them.items()}
    found = []
    for pod in evicted:
        labels, violates = dict(pod.labels), False
        for key, raw in all_of_them.items():
            wanted, expressions = raw["spec"]["selector"]["matchLabels"], raw["spec"]["selector"]["matchExpressions"]
            if key[0] != pod.namespace or not labels or not (wanted or expressions) or pod.name in raw["status"]["disruptedPods"]:
                continue
            meets = {
                "In": lambda has, values: has in values,
                "NotIn": lambda has, values: has not in values,
                "Exists": lambda has, values: has is not None,
                "DoesNotExist": lambda has, values: has is None,
            }
            if wanted.items() <= labels.items() and all(
                meets[each["operator"]](labels.get(each["key"]), each.get("values", [])) for each in expressions
            ):
                left[key] -= 1
                violates = violates or left[key] < 0
        found.append(violates)
    return found


@settings(max_examples=300)
@given(
    st.lists(some_budgets(), max_size=6),
    st.lists(st.tuples(st.sampled_from(["ADDED", "MODIFIED", "DELETED"]), some_budgets()), max_size=6),
    st.lists(st.tuples(st.sampled_from("mn"), LABELS), max_size=5),
)
def test_whatever_the_selectors_it_is_the_naive_count(
    listed: list[dict[str, Any]], events: list[tuple[str, dict[str, Any]]], of_pods: list[tuple[str, dict[str, str]]]
) -> None:
    known, expected = Budgets(map(read_budget, listed)), {(raw["metadata"]["namespace"], raw["metadata"]["name"]): raw for raw in listed}
    for kind, raw in events:
        known.event(kind, read_budget(raw))
        key = raw["metadata"]["namespace"], raw["metadata"]["name"]
        expected.pop(key, None)
        if kind != "DELETED":
            expected[key] = raw
    evicted = [
        replace(pod, namespace=namespace, labels=tuple(sorted(labels.items())))
        for pod, (namespace, labels) in zip(pods(*"ppppp"), of_pods, strict=False)
    ]
    assert violations(evicted, looked_up(known)) == naive(expected, evicted)


def compared(monkeypatch: pytest.MonkeyPatch, evicted: list[AllocatedPod], raws: list[dict[str, Any]]) -> int:
    """How often a pod is compared with a budget."""
    count = 0
    covers = Budget.covers

    def counting(self: Budget, *args: Any) -> bool:
        nonlocal count
        count += 1
        return covers(self, *args)

    monkeypatch.setattr(Budget, "covers", counting)
    counted(evicted, *raws)
    monkeypatch.undo()
    return count


@pytest.mark.parametrize(
    "selector",
    [
        lambda n: {"matchLabels": {"app": f"a{n}"}},
        lambda n: {"matchLabels": {"all": "alike", "app": f"a{n}"}},
        lambda n: {"matchLabels": {"app": f"a{n}", "zone": "alike"}},
        lambda n: {"matchExpressions": [{"key": "app", "operator": "In", "values": [f"a{n}", f"b{n}"]}]},
        lambda n: {"matchExpressions": [{"key": f"app{n}", "operator": "Exists"}]},
        lambda n: {"matchExpressions": [{"key": "all", "operator": "In", "values": ["alike", f"b{n}"]}], "matchLabels": {"app": f"a{n}"}},
    ],
)
def test_a_pod_is_compared_with_budgets_that_want_what_it_has(monkeypatch: pytest.MonkeyPatch, selector: Any) -> None:
    """One preemption asks about thousands of pods, and a namespace may have thousands of budgets."""
    labels = (("all", "alike"), ("app", "a7"), ("app7", ""), ("zone", "alike"))
    evicted = [replace(pod, labels=labels) for pod in pods(*"pppp")]
    for count in (20, 1000):
        # Of the first ones each may stand where it stands with all of them: nothing is rare yet.
        raws = [budget(0, name=f"b{n}", **selector(n)) for n in range(count)]
        assert 4 <= compared(monkeypatch, evicted, raws) <= 4 * 3


ALIKE: dict[str, Any] = {"matchLabels": {"app": "a"}}


def kept(count: int, what: str) -> dict[str, Any]:
    """A selector that has so many of something, and covers the pods of app a."""
    if what == "labels":
        return {"matchLabels": {"app": "a"}, "matchExpressions": [{"key": f"k{n}", "operator": "DoesNotExist"} for n in range(count - 1)]}
    return {"matchExpressions": [{"key": "app", "operator": "In", "values": ["a", *(f"v{n}" for n in range(count - 1))]}]}


@pytest.mark.parametrize(("what", "most"), [("labels", 16), ("values", 64)])
def test_a_selector_beyond_the_bound_makes_its_namespace_one_without_allowance(what: str, most: int) -> None:
    both = pods("a", "b")
    assert counted(both, budget(1, **kept(most, what))) == [False, False]
    longer = read_budget(budget(1, **kept(most + 1, what)))
    assert (longer.labels, longer.expressions) == ({}, ()), "nothing of it is kept"
    known = Budgets([longer])
    other = [replace(pod, namespace="other") for pod in both]
    assert violations([*both, *other, replace(both[0], labels=())], looked_up(known)) == [True, True, False, False, False]
    known.event("MODIFIED", read_budget(budget(1, **ALIKE)))
    assert violations(both, looked_up(known)) == [False, False]
    known.event("MODIFIED", longer)
    known.event("DELETED", longer)
    assert violations(both, looked_up(known)) == [False, False]


def test_a_pod_with_more_budgets_or_labels_than_are_compared_has_no_allowance() -> None:
    alike = [budget(1, name=f"b{n}", **ALIKE) for n in range(MOST_BUDGETS + 1)]
    assert counted(pods("a", "b"), *alike[1:]) == [False, False]
    assert counted(pods("a", "b"), *alike) == [True, False]
    assert looked_up(Budgets(map(read_budget, alike)))(pods("a")[0]) is None
    plain = pods("a")[0]
    for labels, expected in ((63, False), (64, True)):
        many = replace(plain, labels=(("app", "a"), *((f"z{n}", "") for n in range(labels))))
        assert counted([many], alike[0]) == [expected]
        assert counted([many]) == [False], "where there is none"


def test_a_question_compares_no_more_than_so_much_and_of_one_namespace_less() -> None:
    def namespaces(most: int, names: str) -> list[AllocatedPod]:
        return [replace(pod, namespace=name) for name in names for pod in pods(*"a" * most)]

    # Of 256 labels and expressions each pod is compared with all.
    selector = {"matchExpressions": [{"key": "app", "operator": "NotIn", "values": [f"v{n}"]} for n in range(MOST_REQUIREMENTS)]}
    raws = [budget(10_000, name=f"b{n}", namespace=of, **selector) for n in range(MOST_BUDGETS) for of in "abcdef"]
    known = Budgets(map(read_budget, raws))
    each = MOST_COMPARED_OF_ONE // 256
    asked = looked_up(known)
    beyond = [asked(pod) is None for pod in namespaces(each + 10, "a")]
    assert beyond == [False] * each + [True] * 10
    assert [asked(pod) is None for pod in namespaces(1, "b")] == [False], "another's are counted"
    total = sum(looked(pod) is not None for looked in [looked_up(known)] for pod in namespaces(each + 1, "abcdef"))
    assert total == MOST_COMPARED // 256
