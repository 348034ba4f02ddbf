# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""ansible-test sanity on what is released, in environments of its own: no container, no root, nothing in the user's home.

Tests and the lab are not modules of a collection: ruff and mypy look at them, not these rules.
"""

from __future__ import annotations

import configparser
import os
import re
import subprocess
import sys
from pathlib import Path

from cores import Core
from pythons import interpreters
from sanity_ignores import of_core
from tree import copy, released

GET_PIP = """\
# pip's own installer, of which only the wheel comes from the index.
import sys

sys.path.insert(0, {wheel!r})
from pip._internal.cli.main import main

sys.exit(main(["install", "--upgrade", "--force-reinstall", *(a for a in sys.argv[1:] if a not in ("--no-setuptools", "--no-wheel"))]))
"""


def cache() -> Path:
    """Where the environments stay for the next run."""
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return base / "gpushare-sanity"


def pip_of(ansible_test: Path) -> str:
    """The version of pip that ansible-test wants, by its own word."""
    text = (ansible_test / "_internal/python_requirements.py").read_text()
    match = re.search(r"^\s+pip='([0-9.]+)',", text, re.MULTILINE)
    assert match, f"{ansible_test}: python_requirements.py names no version of pip; look how this release of ansible-test gets its pip"
    return match.group(1)


def prepare_home(home: Path, ansible_test: Path) -> None:
    """A home for ansible-test with this machine's pip settings and with pip's installer, which is not on the package index."""
    # ansible-test passes no PIP_* variable on.
    listed = subprocess.run([sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True, timeout=60)
    settings = configparser.ConfigParser(interpolation=None)
    settings["global"] = {}
    for name, value in re.findall(r"^(?::env:|\w+)\.([\w-]+)='(.*)'$", listed.stdout, re.MULTILINE):
        settings["global"].setdefault(name, value)
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    (home / ".config/pip").mkdir(parents=True, exist_ok=True)
    with (home / ".config/pip/pip.conf").open("w") as file:
        settings.write(file)

    wanted = pip_of(ansible_test)
    wheels = home / "pip"
    if not list(wheels.glob(f"pip-{wanted}-*.whl")):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(wheels), f"pip=={wanted}"]
        subprocess.run(command, check=True, timeout=300)
    (wheel,) = wheels.glob(f"pip-{wanted}-*.whl")
    script = home / f".ansible/test/cache/get_pip_{wanted.replace('.', '_')}.py"
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(GET_PIP.format(wheel=str(wheel)))


def run_sanity(scratch: Path, core: Core, *arguments: str, seconds: float = 1200) -> subprocess.CompletedProcess[str]:
    """`ansible-test sanity` of that ansible-core on a copy of the release below `scratch`."""
    home = cache() / f"ansible-{core.version}"
    ask = "import os, ansible_test; print(os.path.dirname(os.path.abspath(ansible_test.__file__)))"
    found = subprocess.run([core.program, "-c", ask], capture_output=True, text=True, check=True, timeout=60)
    prepare_home(home, Path(found.stdout.strip()))
    collection = scratch / "ansible_collections/gpushare/kubernetes"
    copy([*released(), "galaxy.yml"], collection)
    name, ignores = of_core(core.program)
    (collection / "tests/sanity").mkdir(parents=True)
    (collection / "tests/sanity" / name).write_text(ignores)
    folder = core.program.parent
    path = [str(folder), *dict.fromkeys(str(python.parent) for python in interpreters().values()), "/usr/local/bin", "/usr/bin", "/bin"]
    environment = {"HOME": str(home), "PATH": ":".join(path), "LC_ALL": "C.UTF-8"}
    command = [str(folder / "ansible-test"), "sanity", "--venv", "--color", "no", *arguments]
    return subprocess.run(
        command, cwd=collection, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=seconds, check=False
    )
