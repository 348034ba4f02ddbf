# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Only one run changes a host at a time."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host import lock

ROOT = Path(__file__).resolve().parents[4]
HOLDER = """
import sys
sys.path.insert(0, sys.argv[1])
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host import lock
with lock.held("gpushare_daemon of alice", sys.argv[2]):
    print("has it", flush=True)
    sys.stdin.read()
"""


def starting(path: Path) -> "subprocess.Popen[str]":
    """Another process, which gets the lock as soon as it is free, and has it until its input ends."""
    command = [sys.executable, "-c", HOLDER, ROOT / ".collections", path]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def has_open(process: "subprocess.Popen[str]", path: Path) -> bool:
    return any(os.path.realpath(link) == str(path) for link in Path(f"/proc/{process.pid}/fd").iterdir())


def holder(path: Path) -> "subprocess.Popen[str]":
    """Another process that has the lock."""
    process = starting(path)
    assert process.stdout is not None
    assert process.stdout.readline() == "has it\n"
    return process


def test_a_second_run_is_rejected_with_the_name_of_the_first(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    process = holder(path)
    try:
        with (
            pytest.raises(lock.LockedError, match=r"another run is changing this host \(gpushare_daemon of alice\)"),
            lock.held("x", str(path), 0),
        ):
            pytest.fail("two have it")
    finally:
        process.kill()
        process.wait()


def test_a_run_that_was_killed_holds_nobody_up(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    process = holder(path)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert path.exists()
    with lock.held("bob", str(path), 0):
        assert path.read_text() == "bob"
    assert not path.exists(), "a trace on the host"


def test_who_waits_gets_it_when_the_first_is_done(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    process = holder(path)
    waiting = starting(path)
    deadline = time.monotonic() + 30
    while not has_open(waiting, path):
        assert waiting.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.01)
    # Its file goes with it: who waited must not be content with the old one.
    process.communicate()
    assert waiting.stdout is not None
    assert waiting.stdout.readline() == "has it\n"
    assert path.exists()
    with pytest.raises(lock.LockedError):
        lock.held("x", str(path), 0).__enter__()
    waiting.kill()
    waiting.wait()


def test_a_file_that_goes_before_it_is_locked_is_no_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, flock = tmp_path / "lock", lock.fcntl.flock

    def after_the_end_of_the_first(descriptor: int, operation: int) -> None:
        path.unlink()
        monkeypatch.setattr(lock.fcntl, "flock", flock)
        flock(descriptor, operation)

    monkeypatch.setattr(lock.fcntl, "flock", after_the_end_of_the_first)
    with lock.held("bob", str(path), 0):
        assert path.read_text() == "bob"


def test_a_link_in_its_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "lock").symlink_to(tmp_path / "passwd")
    with pytest.raises(OSError, match="symbolic links"), lock.held("x", str(tmp_path / "lock"), 0):
        pass
    assert not (tmp_path / "passwd").exists()


def test_every_module_that_changes_a_host_holds_it() -> None:
    changes = {}
    for path in (ROOT / "plugins/modules").glob("*.py"):
        text = path.read_text()
        if "attributes.changes" in text and "fragment:\n" in text and "kubernetes.kubectl" not in text:
            # What it does may be an operation, which preflight plans with others.
            operations = re.findall(r"_operations\.(\w+) import", text)
            text += "".join((ROOT / f"plugins/module_utils/_operations/{name}.py").read_text() for name in operations)
            changes[path.stem] = bool(re.search(r"with changing\(module", text))
    assert changes
    assert [name for name, locked in changes.items() if not locked] == []
