# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A copy of a node or of the ledger answers every question as the original, and leaves it as it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import hypothesis.strategies as st
from hypothesis import given, settings

from gpushare_runtime.core.constraints import Rules
from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.core.ledger import Ledger, NodeLedger
from gpushare_runtime.core.node_ledger import GpuUsage, NodeRecord
from gpushare_runtime.core.node_report import Held, HeldEntry, Rejection
from gpushare_runtime.core.placement.policies import Binpack
from gpushare_runtime.core.placement.view import seen_by
from gpushare_runtime.core.quantity import GIB
from gpushare_runtime.core.request import ContainerRequest, Kind, Request
from unit.fakes.runtime.pods import allocated_pod, gpu, inventory, ledger_of, memory, on, pending, whole

SHY: Final = Request((ContainerRequest(Kind.APP, 0, "main", units=2, core=20),), rules=Rules(not_with=(("app", "a"),)))
COUNTED: Final = replace(memory(3), cpu=500)
ASKED: Final = (memory(1), memory(4), memory(9), whole(1), whole(2), SHY, replace(memory(2), rules=Rules(models=("A100",))))
UIDS: Final = ("a", "b", "c", "d")
#: What changes a node, what gives it away, and what is asked below by itself.
NOT_ASKED: Final = {
    "copy", "simulate", "put", "drop", "reject", "set_record", "end_rejections", "count_by_report", "remember", "remembered", "guarded",
    "memo", "fault",
}  # fmt: skip
_OF_REQUESTS: Final = ("candidates", "exclusions", "remaining_after", "fits_when_empty")
_OF_PODS: Final = ("gpus_of", "still_valid")
_PLAIN: Final = (
    "name", "record", "classes", "only_class", "inventory", "inventory_error", "gpu_states", "unknown", "rejections", "free", "free_cpu",
    "free_units", "likeness", "gone",
)  # fmt: skip
_CALLED: Final = ("largest_free", "empty_gpus", "overbooked", "problems", "pods_without_gpu", "usage")
_ELSEWHERE: Final = {"pods", "pod", "usable", "exclusion", "possible", "units_of", "class_of"}


def answers(node: NodeLedger) -> dict[str, object]:
    """To every question that a node has an answer to."""
    found: dict[str, object] = {name: getattr(node, name) for name in _PLAIN}
    found |= {name: getattr(node, name)() for name in _CALLED}
    for number, asked in enumerate(ASKED):
        found |= {f"{name} {number}": getattr(node, name)(asked) for name in _OF_REQUESTS}
        found[f"exclusion {number}"] = [node.exclusion(asked, state) for state in node.gpu_states]
    for pod in node.pods:
        found |= {f"{name} {pod.uid}": getattr(node, name)(pod) for name in _OF_PODS}
        found[f"pod {pod.uid}"] = node.pod(pod.uid), pod.allocation and node.possible(pod.allocation)
    found |= {f"units of {uid}": node.units_of(uid) for uid in UIDS}
    found |= {"pods": list(node.pods), "usable": list(node.usable), "class": [node.class_of(state.gpu) for state in node.gpu_states]}
    return found


def test_every_question_is_asked_here() -> None:
    asked = {*_PLAIN, *_CALLED, *_OF_REQUESTS, *_OF_PODS, *_ELSEWHERE}
    assert {name for name in dir(NodeLedger("n")) if not name.startswith("_")} == asked | NOT_ASKED


_HELD: Final = Held(
    (HeldEntry("GPU-00000001", "c", "default/c", 2, "unmanaged"), HeldEntry("GPU-00000000", "gone", "default/gone", 1, "orphaned")),
    (Rejection("x", "GPU-00000000", 4, 1.0), Rejection("y", "GPU-00000001", 16, 1.0, True)),
)
_GPUS: Final = Inventory(GIB, (gpu(0, 16), gpu(1, 16, health="lost"), gpu(2, 24, cordoned=True)), core=100, cpu=8000)
_RECORDS: Final = (
    NodeRecord("n", inventory(16, 16)),
    NodeRecord("n", inventory(16, 16), "", _HELD),
    NodeRecord("n", replace(inventory(16, 16), cpu=4000, core=100), model="A100"),
    NodeRecord("n", _GPUS, "", replace(_HELD, entries=())),
    NodeRecord("n", None, "unreadable"),
    NodeRecord("n", inventory(16, 16), "", Held((HeldEntry("GPU-old", "a", "default/a", 4, "gone"),))),
)
_PODS: Final = st.builds(
    lambda uid, request, allocation, mirror: replace(allocated_pod(uid, request, allocation), mirror=mirror),
    st.sampled_from(UIDS),
    st.sampled_from((memory(4), COUNTED, SHY, whole(1))),
    st.sampled_from((None, on(0, 4), on(1, 3), on(1, 16), on(7, 4))),
    st.sampled_from((False, False, False, True)),
)
_EVENTS: Final = st.one_of(
    st.sampled_from(_RECORDS),
    _PODS,
    st.tuples(st.sampled_from(("remove", "reject")), st.sampled_from(UIDS)),
    st.sampled_from((2.0, 20.0, 70.0)),
)


def happen(ledger: Ledger, event: object, clock: list[float]) -> None:
    """What the watches show, or that so many seconds pass."""
    if isinstance(event, NodeRecord):
        ledger.set_node(event)
    elif isinstance(event, tuple):
        getattr(ledger, event[0])(event[1])
    elif isinstance(event, float):
        ledger.expire(clock[0])
        clock[0] += event
        ledger.expire(clock[0])
    else:
        ledger.apply(event)  # type: ignore[arg-type]


@settings(max_examples=150, deadline=None)
@given(st.lists(_EVENTS, max_size=12), st.lists(_EVENTS, min_size=1, max_size=4))
def test_a_copy_answers_as_the_original_and_changes_nothing_of_it(before: list[object], after: list[object]) -> None:
    ledger, clock = ledger_of(inventory(16, 16)), [0.0]
    for event in before:
        happen(ledger, event, clock)
    node = ledger.node("n") or NodeLedger("n")
    copies = [node.copy(), node.simulate()]
    other = ledger.copy()
    said = answers(node)
    assert [answers(copied) for copied in copies] == [said, said]
    assert answers(other.node("n") or NodeLedger("n")) == said
    assert (other.classes, [other.pod(uid) for uid in UIDS]) == (ledger.classes, [ledger.pod(uid) for uid in UIDS])
    for event in after:
        happen(other, event, [1000.0])
    changed = node.simulate(without=UIDS[:2])
    changed.put(allocated_pod("d", SHY, on(0, 2)))
    changed.set_record(_RECORDS[3])
    assert answers(node) == said == answers(node.copy()), "what happens to a copy is the copy's"
    for event in after:
        happen(ledger, event, clock)
    assert answers(copies[0]) == said, "and what happens to the original is the original's"


def test_a_gpu_that_has_just_rejected_a_pod_takes_none_of_its_size_while_another_pod_is_nominated_there() -> None:
    """Its node has not reported the rejection yet."""
    ledger = ledger_of(inventory(16, 24))
    ledger.apply(allocated_pod("failed", memory(12), on(0, 12)))
    ledger.reject("failed")
    ledger.remove("failed")
    ledger.nominate("other", replace(pending(memory(1), uid="other"), priority=5, nominated="n"))
    seen = seen_by(ledger, Binpack(), ledger.nodes["n"], pending(memory(12)))
    assert seen is not ledger.nodes["n"]
    assert [state.gpu.index for state in seen.candidates(memory(12))] == [1]


def test_sums_with_one_pod_more_are_others() -> None:
    before = GpuUsage({0: 4}, {0: 20}, {0: 1}, {}, [], True)
    after = before.and_one(allocated_pod("a", whole(1), on(0, 16)), {0: 16})
    assert (before, after) == (GpuUsage({0: 4}, {0: 20}, {0: 1}, {}, [], True), GpuUsage({0: 20}, {0: 20}, {0: 2}, {0: 1}, [], True))
