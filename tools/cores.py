# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Environments with other releases of ansible-core: the oldest that the collection admits, the newest of today, and the next one.

Everything else in them is as locked in requirements/dev.txt.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

import yaml

from pythons import DEVELOPMENT, interpreters
from tree import REPOSITORY

LOCK = REPOSITORY / "requirements/dev.txt"
UNUSED_DAYS = 14


@dataclass(frozen=True)
class Core:
    """A release of ansible-core. program: its environment's Python, of version `on`. lacks: a newer one that needs another Python."""

    version: str
    on: str
    program: Path
    lacks: str = ""

    def __str__(self) -> str:
        return f"ansible-core {self.version} on Python {self.on}"

    @property
    def is_own(self) -> bool:
        """Whether it is that of the environment which runs this."""
        return self.program == Path(sys.executable)


def own() -> Core:
    """That of the environment which runs this."""
    return Core(version("ansible-core"), f"{sys.version_info[0]}.{sys.version_info[1]}", Path(sys.executable))


def oldest() -> Core:
    """Exactly the version from which on meta/runtime.yml admits, with the oldest Python that there is for it."""
    admitted = yaml.safe_load((REPOSITORY / "meta/runtime.yml").read_text())["requires_ansible"]
    match = re.fullmatch(r">=(\d+\.\d+\.\d+)", admitted)
    assert match, f"meta/runtime.yml: found {admitted!r}, expected one lower bound"
    return _core(match[1], _pythons()[0])


def newest() -> Core:
    """The newest of this day for the newest Python of this machine."""
    on = _pythons()[-1]
    there, at_all = offered(on), offered(DEVELOPMENT[-1])
    lacks = "" if there == at_all else f"pip offers ansible-core {at_all}, for a newer Python than this machine has: {on}"
    return _core(there, on, lacks)


def coming() -> Core | None:
    """The newest pre-release for the newest Python of this machine. None once its release is out."""
    on = _pythons()[-1]
    there = offered(on, options=["--pre"])
    return None if there == offered(on) else _core(there, on)


def offered(on: str, name: str = "ansible-core", options: Sequence[str] = ()) -> str:
    """The newest release of a package that pip offers for a version of Python, with these options of it."""
    of_python = ["--python-version", on, "--only-binary", ":all:", *options]
    command = [sys.executable, "-m", "pip", "install", "--dry-run", "--ignore-installed", "--no-deps", "--quiet", *of_python]
    done = subprocess.run([*command, "--report", "-", name], capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise OSError(f"pip cannot say which {name} it offers: {done.stderr[-500:]}")
    return str(json.loads(done.stdout)["install"][0]["metadata"]["version"])


def without_core(lock: str) -> str:
    """The locked requirements but for ansible-core."""
    blocks = re.split(r"\n(?=[A-Za-z0-9])", lock)
    return "\n".join(block for block in blocks if not block.startswith("ansible-core=="))


def _pythons() -> list[str]:
    """What there is of those that the lock is for."""
    here = interpreters()
    return [one for one in DEVELOPMENT if one in here]


def _core(release: str, on: str, lacks: str = "") -> Core:
    if (release, on) == (own().version, own().on):
        return Core(release, on, Path(sys.executable), lacks)
    return Core(release, on, _environment(release, on) / "bin/python", lacks)


def _environment(release: str, on: str) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gpushare-cores"
    cache.mkdir(parents=True, exist_ok=True)
    python, requirements = interpreters()[on], without_core(LOCK.read_text())
    digest = hashlib.sha256(f"{python}\n{requirements}".encode()).hexdigest()[:12]
    folder = cache / f"{release}-python{on}-{digest}"
    made = folder / ".complete"
    # Two suites may want the same one.
    with (cache / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists():
            shutil.rmtree(folder, ignore_errors=True)
            _run(str(python), "-m", "venv", str(folder))
            (folder / "requirements.txt").write_text(requirements)
            pip = [str(folder / "bin/python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-compile"]
            _run(*pip, "--require-hashes", "--no-deps", "-r", str(folder / "requirements.txt"))
            # With what this release needs otherwise than the locked one.
            _run(*pip, f"ansible-core=={release}")
        made.touch()
        for other in cache.iterdir():
            if other.is_dir() and other != folder and not _is_in_use(other / made.name):
                shutil.rmtree(other)
    return folder


def _is_in_use(made: Path) -> bool:
    return made.exists() and time.time() - made.stat().st_mtime < UNUSED_DAYS * 86400


def _run(*command: str) -> None:
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=600, check=False)
    if done.returncode:
        raise OSError(f"{' '.join(command[:6])} … ended with {done.returncode}: {done.stdout[-2000:]}")
