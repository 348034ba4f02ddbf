# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The runner: a step that hangs, crashes or raises is failed with what it had found, and the next one runs; the report is always whole."""

from __future__ import annotations

import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_proof.context import Context
from gpu_proof.findings import FAILED, NOT_POSSIBLE, RAN, Findings
from gpu_proof.runner import run_step, run_steps
from gpu_proof.steps import Step

BODIES = {
    "fine": 'findings.check("one", 1, 1); findings.value("figure", 7)',
    "differs": 'findings.check("one", "this", "that"); findings.check("two", 2, 2)',
    "partly": 'findings.cannot("one", "found nothing"); findings.check("two", 2, 2)',
    "nothing": 'findings.cannot("one", "found nothing; expected all")',
    "cannot": 'raise NotPossible("found no GPU; expected one")',
    "raises": 'findings.check("one", 1, 1); raise ValueError("odd")',
    "hangs": 'findings.check("one", 1, 1); time.sleep(600)',
    "crashes": 'findings.check("one", 1, 1); os.kill(os.getpid(), 11)',
    "leaves": 'import subprocess; findings.value("pid", subprocess.Popen(["sleep", "600"]).pid); findings.check("one", 1, 1)',
    "silent": "pass",
    "makes_groups": 'made = context.folder / "a"; made.mkdir(); (context.folder / "groups").write_text(str(made)); time.sleep(600)',
}


@pytest.fixture
def context(tmp_path: Path) -> Context:
    for name, body in BODIES.items():
        imports = "import os, time\nfrom gpu_proof.findings import NotPossible\n"
        (tmp_path / f"step_{name}.py").write_text(f"{imports}def run(context, findings):\n    {body}\n")
    out = tmp_path / "out"
    out.mkdir()
    return Context(tmp_path, out, path=(str(tmp_path), *sys.path))


def step(name: str, seconds: float = 60.0) -> Step:
    return Step(name, f"it {name}", f"step_{name}", seconds)


@pytest.mark.parametrize(
    ("name", "outcome", "why"),
    [
        ("fine", RAN, ""),
        ("partly", RAN, ""),
        ("differs", FAILED, "one: found this, expected that"),
        ("nothing", NOT_POSSIBLE, "one: found nothing; expected all"),
        ("cannot", NOT_POSSIBLE, "found no GPU; expected one"),
        ("raises", FAILED, "ValueError: odd"),
        ("crashes", FAILED, "its process ended with -11, after 1 checks"),
    ],
)
def test_the_outcome_of_a_step(context: Context, name: str, outcome: str, why: str) -> None:
    found = run_step(step(name), context, 60)
    assert (found.outcome, found.why) == (outcome, why)


def test_a_step_that_hangs_is_ended_with_what_it_had_found(context: Context) -> None:
    began = time.monotonic()
    found = run_step(step("hangs"), context, 3)
    assert time.monotonic() - began < 30
    assert (found.outcome, found.why) == (FAILED, "it did not end within 3 s, after 1 checks")
    assert [one.name for one in found.checks] == ["one"]


def test_what_a_step_leaves_behind_is_ended(context: Context) -> None:
    left = run_step(step("leaves"), context, 60).values["pid"]
    for _ in range(100):
        stat = Path(f"/proc/{left}/stat")
        # A zombie waits for whoever adopts it.
        if not stat.exists() or stat.read_text().rpartition(") ")[2].startswith("Z"):
            return
        time.sleep(0.1)
    os.kill(left, 9)
    pytest.fail("it still runs")


def test_control_groups_of_a_step_that_was_ended_are_removed(context: Context) -> None:
    assert "did not end" in run_step(step("makes_groups"), context, 3).why
    (folder,) = context.folder.glob("proof-makes_groups-*")
    assert (folder / "groups").exists()
    assert not (folder / "a").exists()


def test_all_steps_run_whatever_one_does_and_the_report_has_them(context: Context) -> None:
    steps = [step("crashes"), step("cannot"), step("hangs", 2), step("fine")]
    status, file = run_steps(steps, context, {"kernel": "6.1"}, 120, lambda _: None)
    report = json.loads(file.read_text())
    assert status == 1
    assert [one["outcome"] for one in report["steps"]] == [FAILED, NOT_POSSIBLE, FAILED, RAN]
    assert (report["complete"], report["steps"][3]["values"]) == (True, {"figure": 7})


@pytest.mark.parametrize(("names", "status"), [(["fine"], 0), (["fine", "cannot"], 0), (["cannot"], 2), (["fine", "differs"], 1)])
def test_the_exit_status(context: Context, names: list[str], status: int) -> None:
    assert run_steps([step(name) for name in names], context, {}, 120, lambda _: None)[0] == status


def test_where_the_time_is_over_the_rest_is_failed_and_said(context: Context) -> None:
    _, file = run_steps([step("hangs", 60), step("fine")], context, {}, 2, lambda _: None)
    report = json.loads(file.read_text())
    first, second = (one["why"] for one in report["steps"])
    assert first.startswith("it did not end within")
    assert second == "no time was left for it"


def test_the_report_is_written_after_each_step(context: Context) -> None:
    seen: list[int] = []

    def said(line: str) -> None:
        file = context.out / "gpu-proof.json"
        seen.append(len(json.loads(file.read_text())["steps"]) if file.exists() else 0)

    run_steps([step("fine"), step("partly")], context, {}, 120, said)
    assert max(seen[:-1]) >= 1
    assert seen[-1] == 2


def test_a_step_without_any_check_has_proved_nothing(context: Context) -> None:
    assert run_step(step("silent"), context, 60).outcome == NOT_POSSIBLE


def test_findings_are_kept_in_their_file(tmp_path: Path) -> None:
    made = Findings(tmp_path / "f")
    made.check("one", 1, 2)
    made.cannot("two", "why")
    made.value("three", [3])
    assert replace(Findings.read(tmp_path / "f"), file=made.file) == made
    assert Findings.read(tmp_path / "none").outcome == NOT_POSSIBLE
