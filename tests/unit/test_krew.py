# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The archive and the manifest for krew: what krew checks of them, and what the launcher does at its first and second call."""

from __future__ import annotations

import hashlib
import io
import subprocess
import tarfile
from datetime import datetime, timezone
from pathlib import Path

import yaml

import krew

WHEN = datetime(2026, 1, 1, tzinfo=timezone.utc)
# A Python that notes what it is asked, and makes a virtual environment with itself in it.
PYTHON = """#!/bin/sh
echo "$@" >> "$LOG"
case "$*" in
  *"-m venv "*) mkdir -p "$3/bin"; cp "$0" "$3/bin/python" ;;
  "-c "*) exit "${TOO_OLD:-0}" ;;
esac
"""


def built() -> bytes:
    return krew.archive(("gpushare_runtime-0.1.0-py3-none-any.whl", b"wheel"), "aiohttp==1 --hash=sha256:0\n", WHEN)


def test_the_same_content_makes_the_same_archive_and_the_manifest_has_its_hash() -> None:
    data = built()
    assert data == built()
    with tarfile.open(fileobj=io.BytesIO(data)) as tar:
        names = tar.getnames()
    made = yaml.safe_load(krew.manifest("kubectl-gpushare-0.1.0.tar.gz", data, "0.1.0", "https://example.org/gpushare"))
    assert (made["kind"], made["metadata"], made["spec"]["version"]) == ("Plugin", {"name": "gpushare"}, "v0.1.0")
    assert len(made["spec"]["shortDescription"]) <= 50
    for platform in made["spec"]["platforms"]:
        assert platform["sha256"] == hashlib.sha256(data).hexdigest()
        assert platform["uri"] == "https://example.org/gpushare/releases/download/v0.1.0/kubectl-gpushare-0.1.0.tar.gz"
        assert platform["bin"] in names


def test_the_launcher_installs_once_and_passes_on_what_it_was_asked(tmp_path: Path) -> None:
    with tarfile.open(fileobj=io.BytesIO(built())) as tar:
        tar.extractall(tmp_path / "plugin", filter="data")
    python, log = tmp_path / "python", tmp_path / "log"
    python.write_text(PYTHON)
    python.chmod(0o755)
    # krew links the launcher into a folder of the search path.
    (tmp_path / "bin").mkdir()
    link = tmp_path / "bin/kubectl-gpushare"
    link.symlink_to(tmp_path / "plugin/kubectl-gpushare")

    def call(*argv: str, **environment: str) -> tuple[int, str]:
        log.write_text("")
        env = {"PATH": "/usr/bin:/bin", "LOG": str(log), "GPUSHARE_PYTHON": str(python), **environment}
        done = subprocess.run([link, *argv], env=env, capture_output=True, text=True, check=False)
        return done.returncode, done.stderr

    status, said = call("pods", TOO_OLD="1")
    assert (status, said.count("expected Python 3.10 or newer")) == (1, 1)
    assert not (tmp_path / "plugin/env").exists()
    status, said = call("pods", "-A")
    assert status == 0
    lines = log.read_text().splitlines()
    assert "--require-hashes" in lines[2]
    assert lines[3].endswith("gpushare_runtime-0.1.0-py3-none-any.whl")
    assert lines[-1] == "-m gpushare_runtime.kubectl_program.main pods -A"
    assert call("top") == (0, "")
    assert log.read_text() == "-m gpushare_runtime.kubectl_program.main top\n"
    assert sorted(path.name for path in (tmp_path / "plugin").iterdir() if path.name.startswith("env")) == ["env"]
