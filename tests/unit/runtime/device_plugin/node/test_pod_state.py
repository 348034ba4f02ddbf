# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The stages of a pod's end: each event at each stage, and that the table in the docstring has the same rows."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from gpushare_runtime.device_plugin.node import pod_state
from gpushare_runtime.device_plugin.node.local_pods import LocalPod, parse_local_pod
from gpushare_runtime.device_plugin.node.pod_state import START_GRACE, PodState, Stage, Watched, WatchState
from unit.fakes.runtime.device_plugin.local_pods import memory
from unit.fakes.runtime.pods import inventory

ACTIVE, ENDING, RELEASED = Stage
NOW = 1000.0


def seen(phase: str) -> LocalPod:
    return parse_local_pod(memory(inventory(16), 0, 2, phase=phase))


def judged(state: PodState, pod: LocalPod | None) -> None:
    state.judge(Watched(pod, None, WatchState(True, NOW)), NOW)


def dropped(state: PodState, lost: bool, pod: LocalPod | None) -> None:
    state.drop(lost, 1)
    judged(state, pod)


def offered(state: PodState, pod: LocalPod) -> None:
    state.note_free_ids(pod, NOW)
    judged(state, pod)


EVENTS: dict[str, tuple[Callable[[PodState], object], dict[Stage, Stage]]] = {
    "kubelet forgets it": (lambda state: dropped(state, False, seen("Running")), {ACTIVE: ENDING}),
    "kubelet loses its record": (lambda state: dropped(state, True, seen("Running")), {ENDING: ACTIVE, RELEASED: ACTIVE}),
    "kubelet has its ids free, and it is over": (lambda state: offered(state, seen("Failed")), {ACTIVE: ENDING}),
    "kubelet has its ids free, and it is active": (lambda state: offered(state, seen("Running")), {ENDING: ACTIVE, RELEASED: ACTIVE}),
    "the API server shows it active": (lambda state: judged(state, seen("Running")), {ENDING: ACTIVE, RELEASED: ACTIVE}),
    "the API server shows it finished": (lambda state: judged(state, seen("Succeeded")), {ACTIVE: ENDING}),
    "kubelet records ids for it": (lambda state: state.count(1), {ENDING: ACTIVE, RELEASED: ACTIVE}),
    "kubelet lists all that it has": (lambda state: state.relist(), {}),
    "kubelet is about to start a container": (lambda state: state.start(("main",), [""], NOW), {RELEASED: ENDING}),
    "a container is not started after all": (lambda state: state.forget_start("main"), {}),
    "it has a process": (lambda state: state.scan(True, None), {}),
    "its ids are free": (lambda state: state.release(), {ENDING: RELEASED}),
}


@pytest.mark.parametrize("before", Stage)
@pytest.mark.parametrize("event", EVENTS)
def test_the_stage_after_an_event(event: str, before: Stage) -> None:
    happens, moves = EVENTS[event]
    state = PodState(0.0, stage=before, ending_since=None if before is ACTIVE else 0.0)
    happens(state)
    assert state.stage is moves.get(before, before)
    assert (state.ending_since is None) == (state.stage is ACTIVE)


def test_the_table_has_these_moves() -> None:
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in (pod_state.__doc__ or "").splitlines() if line.startswith("| ")]
    written = {(stage, then) for stages, _, then in rows[1:] for stage in stages.split(", ")}
    moves = {(before.name, after.name) for _, each in EVENTS.values() for before, after in each.items()}
    assert written == moves


@pytest.mark.parametrize(
    ("state", "last", "over"),
    [
        (PodState(0.0), None, False),
        (PodState(0.0, stage=ENDING, ending_since=NOW, alive=True, ran=True), None, False),
        (PodState(0.0, stage=ENDING, ending_since=NOW, ran=True), None, True),
        (PodState(0.0, stage=ENDING, ending_since=NOW), None, False),
        (PodState(0.0, stage=ENDING, ending_since=NOW - START_GRACE), None, True),
        (PodState(0.0, stage=ENDING, ending_since=NOW), "Pending", False),
        (PodState(0.0, stage=ENDING, ending_since=NOW), "Running", True),
        (PodState(0.0, stage=ENDING, ending_since=NOW - 9, starts={("main",): (NOW - 1, [""])}), "Pending", False),
        (PodState(0.0, stage=ENDING, ending_since=NOW - 9, starts={("main",): (NOW - 1, ["before"])}), "Pending", True),
        (PodState(0.0, stage=RELEASED, ending_since=0.0, ran=True), None, False),
    ],
)
def test_it_is_over_without_a_process_unless_it_may_soon_have_one(state: PodState, last: str | None, over: bool) -> None:
    assert state.is_over(Watched(None, seen(last) if last else None, WatchState(True, NOW)), NOW) is over


def test_starts_are_kept_until_they_are_taken_back() -> None:
    state = PodState(0.0)
    state.start(("a", "b"), ["", ""], NOW)
    state.has_started("c", ["id"], NOW + 1)
    assert state.starts == {("a", "b"): (NOW, ["", ""]), ("c",): (NOW + 1, ["id"])}
    state.forget_start("b")
    assert state.starts == {("c",): (NOW + 1, ["id"])}
