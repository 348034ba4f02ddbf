# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Runs the steps one after the other, each in a process of its own with a deadline, and writes the report after each."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from gpu_proof import groups
from gpu_proof.context import Context
from gpu_proof.findings import FAILED, NOT_POSSIBLE, RAN, Check, Findings, write_atomically
from gpu_proof.scrub import Scrubber
from gpu_proof.steps import Step

_AFTER_KILL: Final = 5.0
_LOG_LINES: Final = 30


@dataclass(frozen=True)
class Result:
    """One step. why: the reason for FAILED and NOT_POSSIBLE; log: the last lines that it printed, if it failed."""

    name: str
    what: str
    outcome: str
    seconds: float
    why: str = ""
    checks: Sequence[Check] = ()
    values: Mapping[str, Any] = field(default_factory=dict)
    log: Sequence[str] = ()


def run_step(step: Step, context: Context, seconds: float) -> Result:
    """Never takes much longer than that, and never raises for what the step does."""
    if seconds <= 0:
        return Result(step.name, step.what, FAILED, 0.0, "no time was left for it")
    folder = Path(tempfile.mkdtemp(prefix=f"proof-{step.name}-", dir=context.folder))
    own, kept, log = folder / "context.json", folder / "findings.json", folder / "log"
    own.write_text(replace(context, folder=folder).to_json())
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(context.path or sys.path), "PYTHONFAULTHANDLER": "1"}
    if context.library and not context.loads:
        environment["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, (context.library, os.environ.get("LD_LIBRARY_PATH"))))
    began, late = time.monotonic(), False
    with log.open("wb") as output:
        command = [sys.executable, "-m", "gpu_proof.child", step.module, str(own), str(kept)]
        process = subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True)
        try:
            process.wait(seconds)
        except subprocess.TimeoutExpired:
            late = True
        finally:
            # Also what the step has started and left.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                # One that hangs in the driver cannot be ended.
                process.wait(_AFTER_KILL)
    left = folder / "groups"
    groups.remove([one for one in map(Path, left.read_text().splitlines() if left.exists() else ()) if one.exists()])
    findings = Findings.read(kept)
    if late:
        findings.error = f"it did not end within {seconds:g} s, after {len(findings.checks)} checks"
    elif process.returncode:
        findings.error = f"its process ended with {process.returncode}, after {len(findings.checks)} checks"
    failed = [f"{one.name}: found {one.found}, expected {one.expected}" for one in findings.checks if one.outcome == FAILED]
    absent = [f"{one.name}: {one.found}" for one in findings.checks if one.outcome == NOT_POSSIBLE]
    outcome = findings.outcome
    reasons = {FAILED: [*failed, findings.error], NOT_POSSIBLE: [findings.impossible, *absent], RAN: []}[outcome]
    printed = log.read_text(errors="replace").splitlines()[-_LOG_LINES:] if outcome == FAILED else ()
    took = round(time.monotonic() - began, 1)
    why = "; ".join(filter(None, reasons))
    return Result(step.name, step.what, outcome, took, why, findings.checks, findings.values, printed)


def run_steps(
    steps: Sequence[Step], context: Context, machine: Mapping[str, Any], total: float, said: Callable[[str], None] = print
) -> tuple[int, Path]:
    """0 if what was possible did as expected, 1 if something failed, 2 if nothing was possible; and the report's file."""
    began = time.monotonic()
    results: list[Result] = []
    file = context.out / "gpu-proof.json"
    for step in steps:
        said(f"=== {step.name}: {step.what} (at most {step.seconds:g} s)")
        result = run_step(step, context, min(step.seconds, total - (time.monotonic() - began)))
        results.append(result)
        for line in lines(result):
            said(line)
        report = {
            "v": 1,
            "date": time.strftime("%Y-%m-%d"),
            "machine": dict(machine),
            "seconds": round(time.monotonic() - began, 1),
            "complete": len(results) == len(steps),
            "steps": [asdict(one) for one in results],
        }
        write_atomically(file, Scrubber().text(json.dumps(report, indent=1)) + "\n")
    outcomes = [one.outcome for one in results]
    said(f"=== {', '.join(f'{one.name}: {one.outcome}' for one in results)}")
    return (1 if FAILED in outcomes else 0 if RAN in outcomes else 2), file


def lines(result: Result) -> Sequence[str]:
    """For people."""
    words = {RAN: "  as expected", FAILED: "  FAILED", NOT_POSSIBLE: "  not possible here"}
    made = [
        f"{words[one.outcome]}: {one.name}: {one.found[:300]}{f' (expected {one.expected[:300]})' if one.outcome == FAILED else ''}"
        for one in result.checks
    ]
    made += [f"  {name}: {value}" for name, value in result.values.items() if not isinstance(value, (list, dict))]
    return [*made, f"{result.name}: {result.outcome} in {result.seconds} s{f': {result.why[:600]}' if result.why else ''}"]
