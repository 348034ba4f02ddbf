# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The Pythons of this machine. `python3 tools/pythons.py` prints the newest that the development environment is made with.

Only the standard library, and syntax of 3.8: it runs before there is an environment.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

# What modules must compile and import on: the targets of the ansible-core versions that meta/runtime.yml admits.
PYTHONS = tuple(f"3.{minor}" for minor in range(8, 15))
# What the locked requirements are resolved for.
DEVELOPMENT = PYTHONS[PYTHONS.index("3.11") :]


def interpreters() -> dict[str, Path]:
    """The Pythons of this machine by version, each the program itself: a shim in its place would confuse ansible-test."""
    return {version: program for version in PYTHONS if (program := _find(version))}


def newest() -> Path | None:
    """The newest that the development environment can be made with; None without one."""
    return next((program for version in reversed(DEVELOPMENT) if (program := _find(version))), None)


def folders() -> list[Path]:
    """Where Pythons lie: the PATH, and the versions of pyenv and uv, whose own folders may not be in it."""
    path = [Path(folder) for folder in os.environ.get("PATH", "").split(":") if folder]
    data = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share")
    # pyenv's shims stand beside the versions that they choose from.
    versions = [folder.parent / "versions" for folder in path if folder.name == "shims"]
    versions.append(Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv") / "versions")
    versions.append(Path(os.environ.get("UV_PYTHON_INSTALL_DIR") or data / "uv/python"))
    return [*path, *(folder for place in dict.fromkeys(versions) for folder in sorted(place.glob("*/bin"), reverse=True))]


def _find(version: str) -> Path | None:
    programs = (folder / f"python{version}" for folder in folders())
    return next((python for program in programs if program.is_file() and (python := _itself(program))), None)


def _itself(program: Path) -> Path | None:
    """The interpreter below it, where it works and can make environments; not one of an environment."""
    code = "import ensurepip, os, sys, venv; print(os.path.join(sys.base_prefix, 'bin', 'python%d.%d' % sys.version_info[:2]))"
    try:
        done = subprocess.run([program, "-c", code], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    found = Path(done.stdout.strip())
    return found if done.returncode == 0 and found.is_file() else None


if __name__ == "__main__":
    chosen = newest()
    if chosen is None:
        sys.exit(f"this machine has no Python {DEVELOPMENT[0]} or newer with venv and ensurepip")
    print(chosen)
