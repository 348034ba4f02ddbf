# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The built image: the same bytes each time, small, and its programs run without any right. Needs apt of Debian 12, pip and podman."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import tomllib  # type: ignore[import-not-found,unused-ignore]

from image.build import build, machine
from image.layout import MOST_MB, MOST_PACKED_MB
from tree import REPOSITORY

SOURCE = REPOSITORY / "files/gpushare_runtime"
SCRIPTS = tomllib.loads((SOURCE / "pyproject.toml").read_text())["project"]["scripts"]
# What it takes on a slow machine with others beside it.
SECONDS = 1200
# As the pods run it, by the runtime that also runs on hosts with both versions of control groups. podman's own limits fail where they
# cannot be raised.
BARE = ("--network=none", "--read-only", "--user=65535", "--cap-drop=ALL", "--security-opt=no-new-privileges")


def podman(*words: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(["podman", *words], capture_output=True, text=True, timeout=300)
    assert not check or done.returncode == 0, done.stderr
    return done


def run(image: str, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
    limits = ["--ulimit=nofile=4096:4096", "--ulimit=nproc=4096:4096"]
    return podman("--runtime=runc", "run", "--rm", *limits, *BARE, image, *command, check=check)


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("image")
    build(SOURCE, machine(), folder / "work", folder / "image.tar")
    return folder / "image.tar"


@pytest.fixture(scope="module")
def image(archive: Path) -> Iterator[str]:
    loaded = podman("load", "--quiet", "--input", str(archive)).stdout.strip().rpartition(" ")[2]
    yield loaded
    podman("rmi", "--force", loaded)


@pytest.mark.timeout(SECONDS)
def test_two_builds_have_the_same_bytes(archive: Path, tmp_path: Path) -> None:
    build(SOURCE, machine(), tmp_path / "elsewhere", tmp_path / "second.tar")
    assert (tmp_path / "second.tar").read_bytes() == archive.read_bytes()


@pytest.mark.timeout(SECONDS)
def test_it_is_small(archive: Path, image: str) -> None:
    assert archive.stat().st_size < MOST_PACKED_MB * 10**6
    assert int(podman("image", "inspect", "--format", "{{.Size}}", image).stdout) < MOST_MB * 10**6


@pytest.mark.timeout(SECONDS)
@pytest.mark.parametrize("name", sorted(SCRIPTS))
def test_every_program_starts_without_any_right(image: str, name: str) -> None:
    # The completion takes words only; it has no help.
    command = [name, *([] if name.startswith("kubectl_complete") else ["--help"])]
    assert run(image, *command, check=False).returncode == 0


@pytest.mark.timeout(SECONDS)
def test_it_has_nvidias_program_for_cdi_specs(image: str) -> None:
    assert "NVIDIA Container Toolkit CLI" in run(image, "nvidia-ctk", "cdi", "generate", "--help").stdout


@pytest.mark.timeout(SECONDS)
def test_the_probe_answers(image: str) -> None:
    assert json.loads(run(image, "gpushare-probe").stdout)["devices"] == []


@pytest.mark.timeout(SECONDS)
def test_every_module_is_there_and_what_is_not_needed_is_not(image: str) -> None:
    program = """
import ctypes, importlib, os, pkgutil, shutil, sys, gpushare_runtime
for module in pkgutil.walk_packages(gpushare_runtime.__path__, "gpushare_runtime."):
    importlib.import_module(module.name)
cached = {name: getattr(module, "__cached__", None) for name, module in sys.modules.items()}
stale = [name for name, path in cached.items() if path and not os.path.exists(path)]
assert len(cached) > 500
ctypes.CDLL("libc.so.6")
print(stale, [shutil.which(name) for name in ("sh", "bash", "pip", "ldconfig")], os.getuid(), sys.prefix)
"""
    found = run(image, "python3", "-I", "-c", program).stdout
    assert found == "[] [None, None, None, None] 65535 /opt/gpushare\n"
    assert run(image, "python3", "-I", "-m", "pip", check=False).returncode != 0
