# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""When the reservations of a group end that kube-scheduler places in one cycle: against a diary that is read anew at every question."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import hypothesis.strategies as st
import pytest
from hypothesis import example, given, settings

from gpushare_runtime.core.ledger import Ledger
from gpushare_runtime.core.pods import AllocatedPod
from gpushare_runtime.core.reservation import Group, group_of
from unit.fakes.runtime.core.naive import NaiveCycles
from unit.fakes.runtime.pods import allocated_pod, frees, inventory, ledger_of, memory, on

PODS: Final = {"a1": "a", "a2": "a", "a3": "a", "b1": "b", "b2": "b", "single": ""}
WHATS: Final = ("fits", "fits", "fits nowhere", "assume", "apply", "nominated", "failed", "deleted", "time")

THREE: Final = [("fits", uid, 0.0) for uid in ("a1", "a2", "a3")]


def group(name: str) -> Group | None:
    return Group(f"default/{name}", at_once=True) if name else None


def reserved(uid: str) -> AllocatedPod:
    return replace(allocated_pod(uid, memory(1), on(0, 1)), group=group(PODS[uid]))


@settings(max_examples=400, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(WHATS), st.sampled_from(sorted(PODS)), st.sampled_from((0.0, 0.5, 1.0, 2.0, 8.0))), max_size=40))
@example([*THREE, ("assume", "a1", 0.0), ("fits", "a2", 0.5)])
@example([*THREE, ("nominated", "a1", 0.0), ("fits", "a2", 0.0), ("nominated", "a1", 0.0), ("fits", "a3", 0.0)])
@example([*THREE, ("apply", "a1", 0.0), ("fits", "single", 1.0), ("time", "single", 2.0)])
def test_every_history(history: list[tuple[str, str, float]]) -> None:
    ledger, naive, clock = ledger_of(inventory(64)), NaiveCycles(PODS), 100.0
    for what, uid, seconds in history:
        clock += seconds
        before = ledger.is_reserved(uid)
        if what.startswith("fits"):
            if ledger.pod(uid) is not None and not before:
                # The scheduler asks about no pod that it has placed.
                continue
            ledger.asked(uid, group(PODS[uid]), clock)
            naive.write(clock, "asked", uid)
            if what == "fits":
                ledger.reserve(reserved(uid), clock + 10)
                naive.write(clock, "kept", uid)
        elif what == "time":
            ledger.expire(clock)
            naive.write(clock, "looked")
        elif before and not (what == "nominated" and uid in naive_goes(naive)):
            if what == "assume":
                ledger.assume(reserved(uid))
            elif what == "apply":
                ledger.apply(replace(reserved(uid), group=None))
            elif what == "nominated":
                ledger.going(uid, "n", clock + 600)
            else:
                (ledger.release if what == "failed" else ledger.remove)(uid)
            naive.write(clock, "goes" if what in ("assume", "apply", "nominated") else "gone", uid)
        for name in "ab":
            own = {uid for uid in ledger.in_flight if ledger.is_reserved(uid) and PODS[uid] == name and uid not in naive_goes(naive)}
            assert own == naive.kept(name), (history, clock)


def naive_goes(naive: NaiveCycles) -> set[str]:
    """The pods that were told to wait on their node, for which room is kept whatever becomes of their group."""
    return {pod for pod, what in {pod: what for _, what, pod in naive.diary}.items() if what == "goes"}


def test_a_pod_that_waits_for_its_volume_is_kept_room_for_when_the_cycle_is_over() -> None:
    ledger = ledger_of(inventory(16))
    for uid in ("a1", "a2"):
        ledger.asked(uid, group("a"), 0.0)
        ledger.reserve(reserved(uid), 600.0)
    ledger.going("a1", "n", 600.0)
    ledger.asked("single", None, 1.0)
    for clock, left in ((1.0, {"a1", "a2"}), (10.9, {"a1", "a2"}), (11.0, {"a1"}), (599.0, {"a1"}), (600.0, set())):
        ledger.expire(clock)
        assert ledger.in_flight == left, clock
    assert (frees(ledger), ledger.expired) == ([16], 2)


def test_who_is_told_of_the_room_learns_whose_it_was() -> None:
    told: list[str] = []
    ledger = Ledger(lambda by="": told.append(by))
    ledger.set_inventory("n", inventory(16))
    for uid in ("a1", "single"):
        ledger.asked(uid, group(PODS[uid]), 0.0)
        ledger.reserve(reserved(uid), 10.0)
    ledger.expire(10.0)
    assert told == ["default/a", ""]


@pytest.mark.parametrize(
    ("spec", "labels", "expected"),
    [
        ({}, (), None),
        ({"schedulingGroup": {}}, (("app", "a"),), None),
        ({"schedulingGroup": {"podGroupName": "g"}}, (), Group("ns/g", True)),
        ({"schedulingGroup": {"podGroupName": "g"}}, (("scheduling.x-k8s.io/pod-group", "h"),), Group("ns/g", True)),
        ({"workloadRef": {"name": "w", "podGroup": "g", "podGroupReplicaKey": "0"}}, (), Group("ns/w/g/0", False)),
        ({}, (("scheduling.x-k8s.io/pod-group", "g"),), Group("ns/g", False)),
        ({}, (("pod-group.scheduling.sigs.k8s.io", "g"),), Group("ns/g", False)),
    ],
)
def test_the_group_of_a_pod(spec: dict[str, object], labels: tuple[tuple[str, str], ...], expected: Group | None) -> None:
    assert group_of("ns", spec, labels) == expected
