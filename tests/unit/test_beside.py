# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A long command beside others: nothing is lost, no failure is swallowed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

BESIDE = Path(__file__).parents[1] / "beside.py"


def run(*commands: str) -> tuple[int, list[str]]:
    done = subprocess.run([sys.executable, BESIDE, *commands], capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, [line for line in done.stdout.splitlines() if not line.startswith("---")]


def test_the_long_one_runs_beside_the_others_and_is_told_last(tmp_path: Path) -> None:
    gate = tmp_path / "gate"
    long = f"sh -c 'while [ ! -e {gate} ]; do sleep 0.05; done; echo long'"
    assert run(long, "echo first", f"touch {gate}", "echo second") == (0, ["first", "second", "long"])


@pytest.mark.parametrize(
    ("commands", "failed"),
    [
        (("sh -c 'exit 3'", "echo one"), "failed: sh -c 'exit 3'"),
        (("true", "false", "echo one"), "failed: false"),
        (("false", "true", "--then", "echo one"), "failed: false"),
        (("true", "echo one", "--then", "false"), "failed: false"),
    ],
)
def test_a_failure_of_either_fails_all_after_the_rest_has_run(commands: tuple[str, ...], failed: str) -> None:
    assert run(*commands) == (1, ["one", failed])


def test_what_comes_then_begins_when_all_have_ended() -> None:
    assert run("sh -c 'sleep 0.5; echo long'", "echo other", "--then", "echo then") == (0, ["other", "long", "then"])


def test_nothing_to_run_beside_is_a_fault_of_the_caller() -> None:
    assert run("true")[0] == 2
