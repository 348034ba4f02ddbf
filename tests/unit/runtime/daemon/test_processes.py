# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A process by its number and its start, and its user."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from gpushare_runtime.daemon.processes import started, user_of


def test_of_this_host() -> None:
    with subprocess.Popen(["sleep", "60"]) as process:
        mine, other = started(os.getpid()), started(process.pid)
        assert mine is not None
        assert other is not None
        assert other >= mine > 0
        assert user_of(process.pid) == (os.geteuid(), os.getegid())
        process.kill()
    assert (started(process.pid), user_of(process.pid)) == (None, None)


@pytest.mark.parametrize(
    ("stat", "status", "start", "user"),
    [
        (f"7 (a ) b) S {' '.join('1' * 18)} 4711", "Name:\tx\nUid:\t0\t1000\t0\t0\nGid:\t0\t1001\t0\t0\n", 4711, (1000, 1001)),
        ("7 (a", "Uid:\t0\t0\t0\t0\n", None, None),
        (f"7 (a) S {' '.join('1' * 18)} x", "Uid:\t0\tx\t0\t0\nGid:\t0\t0\t0\t0\n", None, None),
        ("", "Uid:\t0\nGid:\t0\n", None, None),
    ],
)
def test_what_proc_says(tmp_path: Path, stat: str, status: str, start: int | None, user: tuple[int, int] | None) -> None:
    (tmp_path / "7").mkdir()
    (tmp_path / "7/stat").write_text(stat)
    (tmp_path / "7/status").write_text(status)
    assert (started(7, tmp_path), user_of(7, tmp_path)) == (start, user)
