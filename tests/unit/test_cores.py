# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""How tests find the Pythons of a machine, and make an environment with another ansible-core."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import cores
import pythons
from tree import REPOSITORY


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without a Python."""
    for name in ("PATH", "PYENV_ROOT", "UV_PYTHON_INSTALL_DIR", "XDG_DATA_HOME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{tmp_path}/shims")
    return tmp_path


def interpreter(program: Path, itself: Path | None = None) -> Path:
    """A program that says as which it runs: by default as itself."""
    program.parent.mkdir(parents=True, exist_ok=True)
    program.write_text(f"#!/bin/sh\necho {itself or program}\n")
    program.chmod(0o755)
    return program


def test_pythons_are_found_in_the_path_and_where_pyenv_and_uv_have_them(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert (pythons.interpreters(), pythons.newest()) == ({}, None)
    found = {
        "3.9": interpreter(machine / "bin/python3.9"),
        "3.10": interpreter(machine / "versions/3.10.1/bin/python3.10"),
        "3.11": interpreter(machine / ".pyenv/versions/3.11.2/bin/python3.11"),
        "3.12": interpreter(machine / ".local/share/uv/python/cpython-3.12.1-linux/bin/python3.12"),
    }
    assert pythons.interpreters() == found
    assert pythons.newest() == found["3.12"]
    monkeypatch.setenv("UV_PYTHON_INSTALL_DIR", str(machine / "other"))
    monkeypatch.setenv("PYENV_ROOT", str(machine / "root"))
    assert list(pythons.interpreters()) == ["3.9", "3.10"]
    # It is too old for the development environment.
    assert pythons.newest() is None
    found["3.13"] = interpreter(machine / "root/versions/3.13.0/bin/python3.13")
    assert pythons.newest() == found["3.13"]


def test_what_does_not_run_is_passed_over_and_an_environment_is_seen_through(machine: Path) -> None:
    # pyenv's shim of a version that it was not told to use.
    shim = interpreter(machine / "shims/python3.12")
    shim.write_text("#!/bin/sh\nexit 127\n")
    python = interpreter(machine / "usr/bin/python3.11")
    interpreter(machine / "bin/python3.11", itself=python)
    assert pythons.interpreters() == {"3.11": python}
    # Of another architecture.
    (machine / "shims/python3.13").write_bytes(b"\x7fELF")
    (machine / "shims/python3.13").chmod(0o755)
    assert pythons.newest() == python


def test_the_makefile_gets_the_newest_or_a_reason(machine: Path) -> None:
    def run() -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, REPOSITORY / "tools/pythons.py"]
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)

    assert "this machine has no Python 3.11 or newer" in run().stderr
    assert run().returncode == 1
    python = interpreter(machine / "bin/python3.13")
    assert run().stdout.strip() == str(python)


def test_all_that_is_locked_but_ansible_core_is_in_another_environment() -> None:
    lock = cores.LOCK.read_text()
    assert lock.count("\nansible-core==") == 2
    without = cores.without_core(lock)
    names = {line.split("==")[0] for line in lock.splitlines() if "==" in line}
    assert {line.split("==")[0] for line in without.splitlines() if "==" in line} == names - {"ansible-core"}
    assert without.count("--hash=") < lock.count("--hash=")


@pytest.mark.parametrize(
    ("offers", "found"), [(("2.21.5", "2.22.0rc1"), "2.22.0rc1"), (("2.22.0", "2.22.0"), None), (("2.22.0", "2.23.0b1"), "2.23.0b1")]
)
def test_a_pre_release_is_tried_until_its_release_is_out(
    monkeypatch: pytest.MonkeyPatch, offers: "tuple[str, str]", found: "str | None"
) -> None:
    def pip(command: list[str], **_options: object) -> "subprocess.CompletedProcess[str]":
        version = offers["--pre" in command]
        return subprocess.CompletedProcess(command, 0, f'{{"install": [{{"metadata": {{"version": "{version}"}}}}]}}', "")

    monkeypatch.setattr(cores.subprocess, "run", pip)
    monkeypatch.setattr(cores, "_pythons", lambda: ["3.13"])
    monkeypatch.setattr(cores, "_environment", lambda release, on: Path(f"/{release}-{on}"))
    core = cores.coming()
    assert (core and (core.version, core.on, core.program)) == (found and (found, "3.13", Path(f"/{found}-3.13/bin/python")))
