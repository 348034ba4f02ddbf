# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Pods created, deleted, also by force while their processes live on, and created again at random: each has its GPU, none is over-booked.

GPUSHARE_FULL=1: 1000 pods; GPUSHARE_CHURN_PODS: so many. GPUSHARE_CHURN_SEED: another course of events.
GPUSHARE_CHURN_OUT: a file for the figures, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import pytest

from e2e import churn_judge as judge
from e2e.checks import check_devices, check_environment, check_totals
from e2e.churn import Churn, Stuck
from e2e.churn_log import Log
from e2e.churn_original import original_errors
from e2e.cluster import Cluster, is_running
from take_over.replay import Errors

PODS = 1000 if os.environ.get("GPUSHARE_FULL") == "1" else int(os.environ.get("GPUSHARE_CHURN_PODS", "120"))
SEED = int(os.environ.get("GPUSHARE_CHURN_SEED", "7"))
OUT = os.environ.get("GPUSHARE_CHURN_OUT")

# A busy machine starts one pod a second.
pytestmark = pytest.mark.timeout(600 + 6 * PODS)


@dataclass(frozen=True)
class Churned:
    """log: of everything; left: what is wrong with the pods that run at its end, looked at on the nodes; original: errors of the model."""

    log: Log
    counts: judge.Counts
    left: list[str]
    original: Errors


@pytest.fixture(scope="module")
def churned(cluster: Cluster, pytestconfig: pytest.Config) -> Iterator[Churned]:
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")

    def say(text: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"\n{text}", flush=True)

    cluster.clear()
    try:
        started = time.monotonic()
        try:
            log = asyncio.run(Churn(cluster, pods=PODS, seed=SEED, say=say).run())
        except Stuck as error:
            raise Stuck(f"{error}\n{cluster.story()}") from None
        seconds = time.monotonic() - started
        left: list[str] = []

        def looked() -> bool:
            running = [pod for pod in cluster.pods() if is_running(pod)]
            left[:] = check_devices(cluster, running) + check_environment(cluster, running) + check_totals(cluster)
            return True

        cluster.until("no container ends while it is looked at", looked, 120)
        found = Churned(log, judge.counts(log), left, original_errors(log))
        say(_figures(found, seconds))
        if OUT:
            Path(OUT).write_text(json.dumps(_document(found, seconds), indent=2) + "\n")
        yield found
    finally:
        cluster.clear()


def _latencies(log: Log) -> list[float]:
    """Seconds from creation to Running, of pods that had room."""
    return sorted(pod.running - pod.created for pod in log.pods.values() if pod.running is not None and pod.plan.room)


def _figures(found: Churned, seconds: float) -> str:
    peaks = ", ".join(f"{device} of {node} {most}/{size}" for (node, device), (most, size, _) in judge.peaks(found.log).items())
    wrong, over = judge.wrong_gpus(found.log), judge.over_booked(found.log)
    ran = _latencies(found.log)
    return (
        f"seed {SEED}, {seconds:.0f} s: {found.counts}\n"
        f"most units of live processes at one time: {peaks}\n"
        f"did not run: {judge.not_reached(found.log)}\n"
        f"from creation to Running: median {statistics.median(ran):.1f} s, most {ran[-1]:.1f} s\n"
        f"here:         {len(wrong)} containers with a wrong GPU, {len(over)} over-booked GPUs\n"
        f"the original: {found.original}"
    )


def _document(found: Churned, seconds: float) -> dict[str, object]:
    ran = _latencies(found.log)
    original = found.original
    return {
        "seed": SEED,
        "seconds": round(seconds),
        **asdict(found.counts),
        "running_after_seconds": {"median": round(statistics.median(ran), 2), "max": round(ran[-1], 2)},
        "most_units_at_one_time": {
            f"{node}/{device}": {"units": most, "of": size} for (node, device), (most, size, _) in judge.peaks(found.log).items()
        },
        "here": {"wrong_gpus": len(judge.wrong_gpus(found.log)), "over_booked": len(judge.over_booked(found.log))},
        "original": {
            "admissions": original.admissions,
            "wrong_gpus": {"another": original.other, "none": original.none, "too_few": original.fewer},
            "over_booking_admissions": original.over_booked,
            "of_these_with_orphans": original.with_orphans,
            "over_booked_gpus": len(original.gpus),
        },
    }


def test_enough_has_happened(churned: Churned) -> None:
    found = churned.counts
    assert found.pods >= PODS
    assert found.pairs >= 0.3 * PODS
    assert found.survivors >= 0.1 * PODS
    assert found.again >= 0.3 * PODS
    assert found.several_containers > 0
    assert found.several_gpus > 0
    assert found.slow > 0
    assert found.started_again > 0
    assert found.late > 0
    assert judge.never_seen(churned.log) == []


def test_each_container_had_the_gpus_of_its_annotation(churned: Churned) -> None:
    assert judge.wrong_gpus(churned.log) == []
    assert churned.left == []


def test_no_gpu_was_ever_over_booked(churned: Churned) -> None:
    assert judge.over_booked(churned.log) == []
    # GPUs that never were full would not show it. Few pods need not fill the largest one, nor on a busy machine all at one time.
    peaks = judge.peaks(churned.log)
    filled = {where: most / size for where, (most, size, _) in peaks.items()}
    assert max(filled.values()) == 1, filled
    assert sum(most for most, _, _ in peaks.values()) >= 0.75 * sum(size for _, size, _ in peaks.values()), filled
    if PODS >= 1000:
        assert min(filled.values()) >= 0.75, filled


def test_pods_that_had_room_ran(churned: Churned) -> None:
    found = churned.counts
    assert found.room - found.room_reached <= max(1, 0.05 * found.room), judge.not_reached(churned.log)
    assert found.late - found.late_reached <= max(1, 0.05 * found.late), judge.not_reached(churned.log)


def test_no_admission_loop(churned: Churned) -> None:
    found = churned.counts
    assert found.rejected_in_a_row <= 2, judge.rejection_runs(churned.log)
    # A busy node may say too late, a few times, that processes have survived.
    assert found.rejected <= max(3, 0.02 * found.pods), judge.not_reached(churned.log)


def test_the_original_would_have_been_wrong(churned: Churned) -> None:
    """A churn that the original's matching survives shows nothing."""
    assert churned.original.other + churned.original.none > 0
    # Wrong GPUs lead to over-booked ones only when some are full just then.
    if PODS >= 1000:
        assert churned.original.over_booked > 0
