# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The wheel that is built on the controller: the same bytes every time, and pip takes it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._wheel import WheelError, WheelHash, build_wheel, wheel_hash

RUNTIME = Path(__file__).resolve().parents[3] / "files" / "gpushare_runtime"

PYPROJECT = """
[project]
name = "Little-Package"
version = "1.2.3"
requires-python = ">=3.10"
dependencies = ["orjson>=3"]
[project.scripts]
little = "little_package.main:main"
[tool.setuptools.package-data]
little_package = ["py.typed"]
"""


@pytest.fixture
def package(tmp_path: Path) -> Path:
    source = tmp_path / "source"
    (source / "little_package" / "inner").mkdir(parents=True)
    (source / "pyproject.toml").write_text(PYPROJECT)
    (source / "little_package" / "__init__.py").write_text("")
    (source / "little_package" / "py.typed").write_text("")
    (source / "little_package" / "main.py").write_text("def main() -> None:\n    print('it runs')\n")
    (source / "little_package" / "inner" / "__init__.py").write_text("")
    return source


def test_pip_installs_it_and_its_command_runs(package: Path, tmp_path: Path) -> None:
    wheel = build_wheel(package)
    file = tmp_path / wheel.filename
    file.write_bytes(wheel.content)
    venv.create(tmp_path / "venv", with_pip=False)
    pip = [sys.executable, "-m", "pip", "--python", str(tmp_path / "venv"), "install", "--quiet", "--no-index", "--no-deps"]
    requirement = tmp_path / "requirement.txt"
    requirement.write_text(f"{file} --hash=sha256:{wheel.sha256}\n")
    subprocess.run([*pip, "--require-hashes", "-r", str(requirement)], check=True)
    done = subprocess.run([str(tmp_path / "venv" / "bin" / "little")], check=True, capture_output=True, text=True)
    assert (wheel.filename, done.stdout) == ("little_package-1.2.3-py3-none-any.whl", "it runs\n")


def test_the_same_sources_give_the_same_bytes(package: Path, tmp_path: Path) -> None:
    first = build_wheel(package)
    copy = tmp_path / "elsewhere"
    shutil.copytree(package, copy)
    for path in copy.rglob("*"):
        os.utime(path, (1_000_000_000, 1_000_000_000))
        path.chmod(0o700)
    (copy / "little_package" / "__pycache__").mkdir()
    (copy / "little_package" / "__pycache__" / "main.cpython-311.pyc").write_bytes(b"compiled")
    assert build_wheel(copy).content == first.content


@pytest.mark.parametrize("name", ["main.py", "inner/__init__.py", "inner/more.py"])
def test_a_changed_source_changes_the_hash(package: Path, name: str) -> None:
    first = build_wheel(package).sha256
    (package / "little_package" / name).write_text("changed = True\n")
    assert build_wheel(package).sha256 != first


def test_the_hash_of_a_wheel_is_made_once_in_a_run(package: Path) -> None:
    wheel = build_wheel(package)
    first = wheel_hash(package)
    assert first == WheelHash("1.2.3", wheel.sha256)
    (package / "little_package" / "main.py").write_text("changed = True\n")
    assert wheel_hash(package) == first
    wheel_hash.cache_clear()
    assert wheel_hash(package) == WheelHash("1.2.3", build_wheel(package).sha256) != first


def test_what_is_no_package_is_rejected_with_its_folder(package: Path) -> None:
    (package / "little_package" / "__init__.py").unlink()
    with pytest.raises(WheelError, match=r"little_package must be a package"):
        build_wheel(package)
    (package / "pyproject.toml").unlink()
    with pytest.raises(WheelError, match=r"must hold a pyproject.toml"):
        build_wheel(package)


def test_the_runtime_offers_its_three_commands(tmp_path: Path) -> None:
    wheel = build_wheel(RUNTIME)
    file = tmp_path / wheel.filename
    file.write_bytes(wheel.content)
    listed = subprocess.run([sys.executable, "-m", "zipfile", "-e", str(file), str(tmp_path / "out")], check=False)
    assert listed.returncode == 0
    scripts = (tmp_path / "out" / f"gpushare_runtime-{wheel.version}.dist-info" / "entry_points.txt").read_text()
    for command in ("gpushare-device-plugin", "gpushare-extender", "kubectl-gpushare", "kubectl-inspect-gpushare"):
        assert f"{command} = gpushare_runtime." in scripts
