# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Other releases of this collection, as copies of this checkout, and their playbooks."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from e2e.cluster import REPOSITORY, Cluster
from timeline import span

# What is no part of a checkout, and large.
_LEFT_OUT = (".git", ".venv*", "__pycache__", "*_cache", "node_modules")
_PLUGIN = "files/gpushare_runtime/gpushare_runtime/device_plugin/main.py"


def play(folder: Path, cluster: Cluster, playbook: str, *arguments: str, inventory: Path | None = None) -> subprocess.CompletedProcess[str]:
    """A playbook of the collection in that folder. inventory: another one than the lab's own."""
    environment = {**os.environ, "ANSIBLE_CONFIG": str(folder / "ansible.cfg"), "ANSIBLE_FORCE_COLOR": "0"}
    command = [str(Path(sys.executable).with_name("ansible-playbook")), "-i", str(inventory or cluster.inventory), playbook, *arguments]
    with span("playbook", playbook):
        return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=1200, check=False)


def next_release(folder: Path, version: str = "0.1.1", plugin_exits: int | None = None) -> Path:
    """A copy of this checkout whose runtime has another version. plugin_exits: the status with which its device plugin ends at once."""
    copy = folder / f"release-{version}"
    shutil.copytree(REPOSITORY, copy, symlinks=True, ignore=shutil.ignore_patterns(*_LEFT_OUT))
    project = copy / "files/gpushare_runtime/pyproject.toml"
    text = project.read_text()
    assert 'version = "0.1.0"' in text
    project.write_text(text.replace('version = "0.1.0"', f'version = "{version}"'))
    if plugin_exits is not None:
        source = (copy / _PLUGIN).read_text()
        first = "    settings = parse_arguments(argv)\n"
        assert source.count(first) == 1
        (copy / _PLUGIN).write_text(source.replace(first, f"{first}    return {plugin_exits}\n"))
    return copy
