# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The leader dies in the middle of 300 pending pods: all are bound in the end, no card twice, and nobody binds before the fence opens."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor

import pytest

from e2e.api import Json
from e2e.cluster import GPU_NODES, Cluster, is_running
from ha.burst import PODS, Fall, Room, at_once, bound, chosen_at, clear, conflicts, manifests, until_all_wait
from ha.planes import PLANES, WAYS, Line, bring_back, leader, log_since, now

KILLS = 10 if os.environ.get("GPUSHARE_FULL") else 2
# What the extender's fence says when its term begins and when it lets the verbs through.
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
        found = cluster.until("those on real nodes run", lambda: _settled(cluster, real), 240, *sorted(real)[:3])
        problems = conflicts(cluster, found)
        successor = leader(cluster)
        since = {plane: killed if plane == former else killing for plane in PLANES if plane != former or way != "node"}
        logs = {plane: log_since(cluster, plane, moment) for plane, moment in since.items()}
        opening = _opening(logs[successor])
        opened = logs[successor][opening].at
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
    # By the order of the lines: journald stamps one when it takes it, on a busy machine later than it was written.
    let_through = {words[1] for line in logs[successor][opening:] if (words := FITS.search(line.text))}
    others = [name for one in found if chosen_at(one) > killed and (name := f"default/{one['metadata']['name']}") not in let_through]
    assert others == [], "a card was chosen before the fence had opened"
    early = [f"{plane}: {line.text}" for plane, lines in logs.items() for line in lines if _answers(line) and line.at < opened]
    assert early == [], "an extender answered before its fence had opened"


def _settled(cluster: Cluster, real: set[str]) -> list[Json] | None:
    """All bound pods, once those on real nodes run or were refused."""
    found = bound(cluster)
    done = {one["metadata"]["name"] for one in found if is_running(one) or one["status"].get("phase") == "Failed"}
    return found if real <= done else None


def _opening(lines: list[Line]) -> int:
    """The line that says that the last term's fence is open."""
    begun = [index for index, line in enumerate(lines) if BEGINS in line.text]
    assert begun, "the new leader's extender does not say that its term begins"
    opened = [index for index, line in enumerate(lines) if index >= begun[-1] and OPENS in line.text]
    assert opened, "the new leader's extender does not say that its fence is open"
    return opened[0]


def _answers(line: Line) -> bool:
    """Whether the extender let a pod through: the filter found nodes, or a card was bound."""
    return FITS.search(line.text) is not None or ("bind " in line.text and " to node " in line.text)


def _told_to_wait(cluster: Cluster, pods: Collection[str]) -> int:
    """How many of these pods (UIDs) had a scheduling attempt that the fence turned away, by their events."""
    events = cluster.api.items("/api/v1/namespaces/default/events", fieldSelector="reason=FailedScheduling")
    told = {event["involvedObject"]["uid"] for event in events if any(words in event.get("message", "") for words in WAIT)}
    return len(told.intersection(pods))
