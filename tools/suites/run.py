# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Runs suites two at a time: each in a process of its own, those on one lab one after the other, and every one whatever another says."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from cores import newest
from labs import lab_name
from suites.table import Suite
from tree import REPOSITORY

BUILD = REPOSITORY / "build/suites"
TIMELINE = BUILD / "timeline.jsonl"
LAB = REPOSITORY / "tools/lab/lab"
TELL_EVERY_S = 15.0
# The longest test without a limit of its own takes ten minutes on an idle machine.
LONGEST_TEST_S = 3000
# A suite that hangs must not take the others' result with it.
LONGEST_S = 5400.0
PREPARE = Suite("prepare", "what the lab's cache keeps", command=(sys.executable, str(LAB), "prepare"))


@dataclass
class Job:
    """One suite's run. Times in seconds since the runner's start."""

    suite: Suite
    process: subprocess.Popen[bytes] | None = None
    began: float = 0.0
    ended: float | None = None
    passed: int = 0
    failed: int = 0
    skipped: int = 0
    trouble: str = ""

    @property
    def log(self) -> Path:
        return BUILD / f"{self.suite.name}.log"

    @property
    def report(self) -> Path:
        return BUILD / f"{self.suite.name}.xml"

    @property
    def seconds(self) -> float:
        return (self.ended or self.began) - self.began


@dataclass
class Runner:
    """say: prints a line. full: at full size. ended: told of each suite that has its result."""

    jobs: list[Job]
    at_once: int
    full: bool
    expected: Callable[[Suite], float]
    say: Callable[[str], None]
    ended: Callable[[Job], None] = lambda job: None
    started: float = field(default_factory=time.monotonic)

    def run(self) -> None:
        """Run all; afterwards every job has its result, and no lab is up."""
        BUILD.mkdir(parents=True, exist_ok=True)
        TIMELINE.unlink(missing_ok=True)
        prepare = Job(PREPARE)
        needs = any(job.suite.lab or job.suite.prepared for job in self.jobs)
        waiting = sorted(self.jobs, key=lambda job: -self.expected(job.suite))
        running: list[Job] = []
        instances = {job.suite.instance for job in self.jobs if job.suite.lab}
        removing: list[subprocess.Popen[bytes]] = []
        removed: set[str] = set()
        told = 0.0
        try:
            for instance in instances:
                remove_lab(instance).wait(300)
            if needs:
                self._start(prepare)
                running.append(prepare)
            while waiting or running:
                for job in [job for job in running if self._is_over(job)]:
                    running.remove(job)
                    self._finish(job)
                    if job is not prepare:
                        self.ended(job)
                    used = {other.suite.instance for other in [*waiting, *running]}
                    if job.suite.lab and job.suite.instance not in used:
                        removed.add(job.suite.instance)
                        removing.append(remove_lab(job.suite.instance))
                if needs and prepare.failed:
                    # Without it nothing on a lab can run; the others can.
                    for job in [job for job in waiting if job.suite.lab or job.suite.prepared]:
                        waiting.remove(job)
                        job.failed, job.trouble = 1, f"not run: the lab's cache could not be made, see {prepare.log}"
                while (startable := self._next(waiting, running, ready=not needs or prepare.ended is not None)) is not None:
                    waiting.remove(startable)
                    self._start(startable)
                    running.append(startable)
                if self._now() - told >= TELL_EVERY_S:
                    told = self._now()
                    self.say(f"[{_clock(told)}] " + "; ".join(self._progress(job) for job in running))
                time.sleep(0.3)
            if prepare.failed:
                self.jobs.append(prepare)
        finally:
            for job in running:
                assert job.process is not None
                os.killpg(job.process.pid, signal.SIGTERM)
            for job in running:
                assert job.process is not None
                job.process.wait(60)
            for process in [*removing, *map(remove_lab, instances - removed)]:
                process.wait(300)

    def _next(self, waiting: list[Job], running: list[Job], *, ready: bool) -> Job | None:
        """The longest one that may start now."""
        if len(running) >= self.at_once or any(job.suite.alone for job in running):
            return None
        labs = {job.suite.instance for job in running if job.suite.lab}
        for job in waiting:
            if (job.suite.lab or job.suite.prepared) and not ready:
                continue
            if job.suite.instance in labs or (job.suite.alone and (running or len(waiting) > sum(other.suite.alone for other in waiting))):
                continue
            return job
        return None

    def _start(self, job: Job) -> None:
        suite = job.suite
        job.report.unlink(missing_ok=True)
        command = list(suite.command)
        if not command:
            options = ["-v", "-p", "timeline", "--timeout", str(LONGEST_TEST_S), f"--junitxml={job.report}"]
            command = [str(self._python(suite)), "-m", "pytest", *suite.tests, *options]
        job.began = self._now()
        self.say(f"[{_clock(job.began)}] {suite.name}: {suite.what}")
        with job.log.open("wb") as log:
            job.process = subprocess.Popen(
                command,
                cwd=REPOSITORY,
                env=environment(suite, full=self.full, shared=self._shares(suite)),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def _python(self, suite: Suite) -> Path:
        """What runs the suite: where it is to have the newest ansible-core, maybe that of another environment."""
        if suite.newest_core:
            try:
                core = newest()
            except (OSError, subprocess.SubprocessError) as error:
                self.say(f"{suite.name}: on this environment's ansible-core, because the newest cannot be had: {error}")
            else:
                self.say(f"{suite.name}: {core}{f'; {core.lacks}' if core.lacks else ''}")
                return core.program
        return Path(sys.executable)

    def _shares(self, suite: Suite) -> bool:
        """Whether another suite goes on with its lab."""
        return not suite.always and sum(job.suite.instance == suite.instance for job in self.jobs) > 1

    def _is_over(self, job: Job) -> bool:
        assert job.process is not None
        if job.process.poll() is None and self._now() - job.began > LONGEST_S:
            job.trouble = f"ended after {LONGEST_S:g} s; "
            os.killpg(job.process.pid, signal.SIGKILL)
            job.process.wait(60)
        return job.process.poll() is not None

    def _finish(self, job: Job) -> None:
        assert job.process is not None
        job.ended = self._now()
        code = job.process.returncode
        if job.suite.command:
            job.passed, job.failed = (1, 0) if code == 0 else (0, 1)
        else:
            job.passed, job.failed, job.skipped, names = counts(job.report)
            if not job.failed and (code or not job.passed):
                job.failed = 1
                job.trouble += f"pytest ended with {code} after {job.passed} tests that passed"
            for name in names:
                self.say(f"[{_clock(job.ended)}] {job.suite.name}: FAILED {name}")
        for why in left_out(job.report):
            self.say(f"[{_clock(job.ended)}] {job.suite.name}: LEFT OUT {why}")
        word = "FAILED" if job.failed else "passed"
        self.say(f"[{_clock(job.ended)}] {job.suite.name}: {word} after {_clock(job.seconds)}, {job.passed} passed, {job.failed} failed")

    def _progress(self, job: Job) -> str:
        since = _clock(self._now() - job.began)
        return f"{job.suite.name} {since} {last_line(job.log)}".rstrip()

    def _now(self) -> float:
        return time.monotonic() - self.started


def environment(suite: Suite, *, full: bool, shared: bool) -> dict[str, str]:
    """The environment of a suite's process. shared: others use its lab, too."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpushare-lab"
    own = {"GPUSHARE_TIMELINE": str(TIMELINE), "GPUSHARE_SUITE": suite.name, "PYTHONUNBUFFERED": "1"}
    own["PYTHONPATH"] = f"{REPOSITORY / 'tests'}:{os.environ.get('PYTHONPATH', '')}".rstrip(":")
    if suite.lab:
        # A shared lab stays for the next suite that needs it; this runner removes it.
        own["GPUSHARE_SHARED_LAB" if shared else "GPUSHARE_OWN_LAB"] = lab_name(suite.instance)
    if programs := sorted(cache.glob("nvidia-smi-*/nvidia-smi")):
        own["GPUSHARE_LAB_NVIDIA_SMI"] = str(programs[-1])
    return {**os.environ, **own, **suite.env, **(suite.full if full else {})}


def remove_lab(instance: str) -> subprocess.Popen[bytes]:
    """Begin to remove that lab: what a killed run left, or what nobody needs any more."""
    with (BUILD / "labs.log").open("ab") as log:
        return subprocess.Popen([sys.executable, str(LAB), "--name", lab_name(instance), "down"], stdout=log, stderr=log)


def counts(report: Path) -> tuple[int, int, int, list[str]]:
    """Passed, failed, skipped, and the names of those that failed, of a report in JUnit's form; zeros without one."""
    if not report.exists():
        return 0, 0, 0, []
    cases = list(ElementTree.parse(report).getroot().iter("testcase"))
    bad = [case for case in cases if case.find("failure") is not None or case.find("error") is not None]
    skipped = [case for case in cases if case.find("skipped") is not None]
    names = [f"{case.get('classname')}::{case.get('name')}" for case in bad]
    # A test whose teardown fails stands in the report twice.
    different = {(case.get("classname"), case.get("name")) for case in cases}
    failed = len({(case.get("classname"), case.get("name")) for case in bad})
    return len(different) - failed - len(skipped), failed, len(skipped), list(dict.fromkeys(names))


def left_out(report: Path) -> list[str]:
    """Why tests were skipped, each reason once, of a report in JUnit's form; [] without one."""
    if not report.exists():
        return []
    return list(dict.fromkeys(skipped.get("message", "") for skipped in ElementTree.parse(report).getroot().iter("skipped")))


def last_line(log: Path, most: int = 90) -> str:
    """The end of what a suite has said, short."""
    if not log.exists():
        return ""
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 4000))
        lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    text = lines[-1] if lines else ""
    # pytest's own line: path::test PASSED [ 41%], or the other way round where several workers run.
    if name := re.search(r"::(\S+)", text):
        done = re.findall(r"\[\s*(\d+)%\]", "\n".join(lines))
        text = f"{done[-1] if done else 0} % {name[1]}"
    return text[:most]


def failures(job: Job, most: int = 250) -> str:
    """What a red suite says of its failures."""
    text = job.log.read_text(errors="replace") if job.log.exists() else ""
    begin = re.search(r"^=+ (?:FAILURES|ERRORS) =+$", text, re.MULTILINE)
    lines = text[begin.start() if begin else 0 :].splitlines()
    if len(lines) > most:
        lines = [*lines[: most // 2], f"… {len(lines) - most} lines, all in {job.log} …", *lines[-most // 2 :]]
    return "\n".join([f"=== {job.suite.name}: {job.trouble or 'what failed'}", *lines])


def _clock(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"


def totals(jobs: list[Job]) -> Mapping[str, int]:
    """The sums of all suites."""
    return {word: sum(getattr(job, word) for job in jobs) for word in ("passed", "failed", "skipped")}
