# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Progress: whoever waits hears at least every 20 s what for; time is what the test says it is."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_lab import process
from gpushare_lab.process import Steps, run, run_logged, until


class Clock:
    """Seconds that pass only when they are told to."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def steps(clock: Clock) -> Steps:
    return Steps(clock, 20.0)


def test_nothing_is_said_before_its_time(clock: Clock, steps: Steps) -> None:
    with steps.under_way("building Kubernetes"):
        clock.now += 19.9
        assert steps.line() is None
        assert steps.until_due() == pytest.approx(0.1)
        clock.now += 0.1
        assert steps.line() == "still: building Kubernetes, 20 s"


def test_the_innermost_long_step_is_told_and_a_short_one_in_it_is_not(clock: Clock, steps: Steps) -> None:
    with steps.under_way("making kubernetes"), steps.under_way("building Kubernetes"):
        clock.now += 30
        with steps.under_way("podman ps"):
            assert steps.line() == "still: building Kubernetes, 30 s"


def test_many_short_steps_are_not_silence(clock: Clock, steps: Steps) -> None:
    clock.now += 25
    with steps.under_way("podman start"):
        assert steps.line() == "still: podman start, 0 s"


def test_a_step_that_failed_is_over(clock: Clock, steps: Steps) -> None:
    with contextlib.suppress(ValueError), steps.under_way("building"):
        raise ValueError
    clock.now += 25
    assert steps.line() == "still at work"


def test_every_thread_has_a_step_of_its_own(clock: Clock, steps: Steps) -> None:
    begun, ended = threading.Barrier(3), threading.Event()

    def work(what: str) -> None:
        with steps.under_way(what):
            begun.wait(30)
            ended.wait(30)

    threads = [threading.Thread(target=work, args=[what]) for what in ("debootstrap", "building etcd")]
    for thread in threads:
        thread.start()
    begun.wait(30)
    clock.now += 40
    line = steps.line()
    ended.set()
    for thread in threads:
        thread.join()
    assert line is not None
    assert sorted(line.split("; ")) == ["still: building etcd, 40 s", "still: debootstrap, 40 s"]


# Eighths of a second, which floating-point numbers add without rounding.
@given(st.lists(st.integers(1, 480).map(lambda eighths: eighths / 8), min_size=1, max_size=30))
def test_a_line_is_due_whenever_20_seconds_passed_without_one(waits: list[float]) -> None:
    clock = Clock()
    steps = Steps(clock, 20.0)
    last = clock.now
    for wait in waits:
        clock.now += wait
        due = clock.now - last >= 20.0
        assert (steps.line() is not None) == due
        assert (steps.until_due() == 0) == due
        if due:
            steps.said()
            last = clock.now


def under_way_in(monkeypatch: pytest.MonkeyPatch, call: Callable[[], object]) -> list[str]:
    """The names of the steps that a call goes through."""
    names: list[str] = []

    @contextlib.contextmanager
    def noted(what: str):  # type: ignore[no-untyped-def]
        names.append(what)
        yield

    monkeypatch.setattr(process, "under_way", noted)
    call()
    return names


def test_commands_and_waits_are_steps_by_themselves(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:  # type: ignore[no-untyped-def]
    assert under_way_in(monkeypatch, lambda: run(["true", "a  b"])) == ["true a b"]
    assert under_way_in(monkeypatch, lambda: until("the node", 9, lambda: True)) == ["waiting for the node"]
    log = tmp_path / "log"
    assert under_way_in(monkeypatch, lambda: run_logged("building", ["true"], log)) == [f"building, see {log}"]
    named = under_way_in(monkeypatch, lambda: run(["/usr/bin/env", "true", "join", "--token", "secret"], check=False))
    assert named == ["env true join"]
    (long,) = under_way_in(monkeypatch, lambda: run(["true", "x" * 500]))
    assert long.startswith("true xxx")
    assert len(long) <= 100


def test_a_command_that_takes_its_time_is_told_by_the_ticker(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path
) -> None:  # type: ignore[no-untyped-def]
    fifo = tmp_path / "fifo"
    run(["mkfifo", fifo])
    quick = Steps(every_s=0.01)
    monkeypatch.setattr(process, "_STEPS", quick)
    monkeypatch.setattr(process, "under_way", quick.under_way)
    said = threading.Event()
    printed = process.say

    def say(text: str) -> None:
        printed(text)
        if f"still: cat {fifo}, " in text and not said.is_set():
            said.set()
            fifo.write_text("enough")

    monkeypatch.setattr(process, "say", say)
    with process.ticking():
        assert run(["cat", fifo], timeout_s=60).stdout == "enough"
    assert f"still: cat {fifo}, " in capsys.readouterr().err
