# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The leader dies in the middle of 300 pending pods: all are bound in the end, no GPU twice, and nobody answers before its time."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from e2e.api import Json
from e2e.cluster import GPU_NODES, Cluster
from ha.burst import PODS, Fall, Room, at_once, bound, chosen_at, clear, conflicts, manifests, settled, until_all_wait
from ha.planes import PLANES, WAYS, Line, bring_back, leader, log_since, now

KILLS = 10 if os.environ.get("GPUSHARE_FULL") else 2
# What the extender says when it starts, when a wait for the leadership begins, and when that is over.
STARTS = " listens on "
BEGINS, OPENS = "this host's scheduler holds it", "the pods are as the API server has them now"
WAIT = ("have Bindings under way", "the pods are compared with the API server", "extender serves the scheduler of host")
# filter's line about a pod, by its namespace and name.
FITS = re.compile(r"filter (\S+), .* nodes fit")


@pytest.mark.parametrize("number", range(1, KILLS + 1))
def test_all_pods_are_bound_once_though_the_leader_is_killed(
    cluster: Cluster, room: Room, falls: list[Fall], say: Callable[[str], None], number: int
) -> None:
    way = list(WAYS)[number % len(WAYS)]
    pods = manifests(number)
    at_once(cluster, lambda one: cluster.api.create(PODS, one), pods, done_already=409)
    until_all_wait(cluster, len(pods))
    former = leader(cluster)
    say(f"kill {number}: {len(pods)} pods wait; {former} leads")
    try:
        room.open_a_third()
        cluster.until("a third of the pods is bound", lambda: len(bound(cluster)) > len(pods) // 3, 60)
        # The kill takes a moment, in which the others begin to be bound; on a busy machine longer than the Lease lasts.
        killing = now()
        with ThreadPoolExecutor(1) as executor:
            kill = executor.submit(WAYS[way], cluster, former)
            room.open()
            kill.result()
        killed = now()

        def all_bound() -> list[Json] | None:
            found = bound(cluster)
            return found if len(found) == len(pods) else None

        found = cluster.until("all pods are bound", all_bound, 300)
        real = {one["metadata"]["name"] for one in found if one["spec"]["nodeName"] in GPU_NODES}
        found = cluster.until("those on real nodes run", lambda: settled(cluster, real), 240, *sorted(real)[:3])
        problems = conflicts(cluster, found)
        successor = leader(cluster)
        # On a busy machine the Lease may change hands more than once: every term of every extender that answers after the kill counts.
        terms = [
            _terms(plane, log_since(cluster, plane, killing), restarted=plane == former)
            for plane in PLANES
            if plane != former or way != "node"
        ]
        opened = min((moment for one in terms for moment in one.opened), default=None)
        assert opened is not None, "no extender says that its wait is over"
        chosen = sorted(chosen_at(one) for one in found)
        after = [moment for moment in chosen if moment > killed]
        fall = Fall(
            way=way,
            former=former,
            leader=successor,
            bound_before=len(chosen) - len(after),
            bound_after=len(after),
            opened_s=round(opened - killed, 2),
            first_bound_s=round(after[0] - killed, 2) if after else 0.0,
            last_bound_s=round(after[-1] - killed, 2) if after else 0.0,
            told_to_wait=_told_to_wait(cluster, {one["metadata"]["uid"] for one in found}),
            conflicts=len(problems),
        )
        falls.append(fall)
        say(str(fall))
    finally:
        bring_back(cluster)
        room.close()
        clear(cluster)
    assert problems == []
    assert fall.bound_before > 0, "the leader was killed before it had bound anything: that is no burst"
    assert fall.bound_after > 0, "the leader was killed after it had bound everything: that is no burst"
    let_through = {name for one in terms for name in one.let_through}
    others = [name for one in found if chosen_at(one) > killed and (name := f"default/{one['metadata']['name']}") not in let_through]
    assert others == [], "a GPU was chosen before the wait was over"
    assert [line for one in terms for line in one.early] == [], "an extender answered before its wait was over"


@dataclass(frozen=True)
class Terms:
    """What an extender did since the kill.

    opened: when its wait was over; let_through: pods that it found nodes for after that; early: answers before.
    """

    opened: list[float]
    let_through: set[str]
    early: list[str]


def _terms(plane: str, lines: list[Line], *, restarted: bool) -> Terms:
    """By the order of the lines: journald stamps one when it takes it, on a busy machine later than it was written.

    restarted: what the process before said is left out.
    """
    starts = [index for index, line in enumerate(lines) if STARTS in line.text] if restarted else [0]
    found, is_open = Terms([], set(), []), False
    for line in lines[starts[-1] :] if starts else []:
        if BEGINS in line.text:
            is_open = False
        elif OPENS in line.text:
            is_open = True
            found.opened.append(line.at)
        elif _answers(line):
            if not is_open:
                found.early.append(f"{plane}: {line.text}")
            elif words := FITS.search(line.text):
                found.let_through.add(words[1])
    return found


def _answers(line: Line) -> bool:
    """Whether the extender let a pod through: the filter found nodes, or a GPU was bound."""
    return FITS.search(line.text) is not None or ("bind " in line.text and " to node " in line.text)


def _told_to_wait(cluster: Cluster, pods: Collection[str]) -> int:
    """How many of these pods (UIDs) had a scheduling attempt that an extender without the leadership turned away, by their events."""
    events = cluster.api.items("/api/v1/namespaces/default/events", fieldSelector="reason=FailedScheduling")
    told = {event["involvedObject"]["uid"] for event in events if any(words in event.get("message", "") for words in WAIT)}
    return len(told.intersection(pods))
