# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""This repository as a collection: the files that belong to it, and copies of them elsewhere."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
# What a release holds at its top, and nothing else.
RELEASED = frozenset(
    {
        "CHANGELOG.md",
        "COPYING",
        "LICENSE",
        "LICENSES",
        "README.md",
        "README.zh-CN.md",
        "SECURITY.md",
        "changelogs",
        "charts",
        "docs",
        "files",
        "inventory.example",
        "meta",
        "playbooks",
        "plugins",
        "roles",
    }
)


def files() -> list[str]:
    """Every file of the work tree that is not ignored, relative to the repository, sorted."""
    # A checkout may belong to somebody else than who tests it.
    own = ["-c", f"safe.directory={REPOSITORY}"]
    command = ["git", *own, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True, timeout=60).stdout
    # Of those in git's list, one may have been deleted.
    return sorted(path for path in listed.split("\0") if path and (REPOSITORY / path).exists())


def released() -> list[str]:
    """Those of them that users get."""
    return [path for path in files() if path.split("/")[0] in RELEASED]


def copy(paths: list[str], target: Path) -> None:
    """Copy these files below `target`; links stay links."""
    for path in paths:
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(REPOSITORY / path, target / path, follow_symlinks=False)
