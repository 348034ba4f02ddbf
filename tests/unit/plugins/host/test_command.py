# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Commands that answer, fail, are missing or hang."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.command import run


def test_an_answer() -> None:
    outcome = run([sys.executable, "-c", "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)"], 30)
    assert (outcome.status, outcome.out, outcome.err, outcome.ok, outcome.words) == (3, "out\n", "err\n", False, "out err")


def test_english_whatever_the_user_speaks(monkeypatch) -> None:
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    assert run(["/bin/sh", "-c", "echo $LC_ALL"], 30).out == "C\n"


def test_a_program_that_is_missing() -> None:
    outcome = run(["/nonexistent"], 30)
    assert (outcome.status, outcome.timed_out) == (None, None)
    assert "No such file" in outcome.err


def test_a_program_that_hangs_is_ended_with_its_children(tmp_path: Path) -> None:
    started = time.monotonic()
    outcome = run(["/bin/sh", "-c", f"sleep 60 & echo $! > {tmp_path}/child; wait"], 0.5)
    assert (outcome.status, outcome.timed_out) == (None, 0.5)
    assert time.monotonic() - started < 10
    child = int((tmp_path / "child").read_text())
    deadline = time.monotonic() + 10
    while os.path.exists(f"/proc/{child}") and "Z" not in Path(f"/proc/{child}/stat").read_text().split(")")[1]:
        assert time.monotonic() < deadline
        time.sleep(0.05)
