# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""This repository as a collection: the files that belong to it, and copies of them elsewhere."""

from __future__ import annotations

import gzip
import io
import shutil
import subprocess
import tarfile
from collections.abc import Mapping
from datetime import datetime
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


def packed(content: Mapping[str, tuple[bytes, int]], when: datetime) -> bytes:
    """A .tar.gz of names with bytes and mode, owned by root: the same for the same content and time."""
    tarred = io.BytesIO()
    with tarfile.open(fileobj=tarred, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, (data, mode) in sorted(content.items()):
            member = tarfile.TarInfo(name)
            member.size, member.mode, member.mtime, member.uname, member.gname = len(data), mode, int(when.timestamp()), "root", "root"
            tar.addfile(member, io.BytesIO(data))
    return gzip.compress(tarred.getvalue(), mtime=int(when.timestamp()))


def chart(when: datetime) -> bytes:
    """charts/gpushare as `helm package` packs it: a folder of the chart's name, Chart.yaml and all."""
    own = "charts/gpushare/"
    paths = [path.removeprefix(own) for path in files() if path.startswith(own)]
    return packed({f"gpushare/{path}": ((REPOSITORY / own / path).read_bytes(), 0o644) for path in paths}, when)
