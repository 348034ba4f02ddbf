# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A new user on a lab, who does what the pages say as they say it."""

from __future__ import annotations

import os
import stat
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from e2e.cluster import CONTROL_PLANE, LAB, Cluster
from e2e.cluster import run as run_command
from gpushare_lab import cluster as lab_cluster
from gpushare_lab import state as lab_state
from labs import TWO, Labs

Shell = Callable[..., str]

_KUBECTL = """#!/bin/sh
# Plugins are where the collection puts them: on a control plane. The lab keeps its state at the home of who runs the tests.
case "$1" in
gpushare | inspect) HOME={home} exec {python} {lab} --name {name} exec {plane} env KUBECONFIG=/etc/kubernetes/admin.conf kubectl "$@" ;;
esac
exec {kubectl} --kubeconfig {kubeconfig} "$@"
"""

#: ssh's sockets: the path of one has at most 107 characters, and pytest's folders have longer names with each run.
_SOCKETS = tempfile.TemporaryDirectory(prefix="cp-")


@pytest.fixture
def bare(labs: Labs) -> Cluster:
    """Hosts with Kubernetes that nobody has touched."""
    return labs.bare(TWO)


@pytest.fixture
def installed(labs: Labs) -> Cluster:
    """The same after site.yml, without pods in the namespace default."""
    cluster = labs.installed(TWO)
    cluster.clear()
    return cluster


def shell(cluster: Cluster, folder: Path) -> Shell:
    """Runs one line of a page in `folder`, at home in `folder/home`, with kubectl for this cluster; its output."""
    (folder / "home").mkdir(parents=True, exist_ok=True)
    program = folder / "bin/kubectl"
    program.parent.mkdir(exist_ok=True)
    program.write_text(
        _KUBECTL.format(
            home=Path.home(),
            python=sys.executable,
            lab=LAB,
            name=cluster.name,
            plane=CONTROL_PLANE,
            kubectl=lab_cluster.kubectl_file(lab_state.existing(cluster.name)),
            kubeconfig=cluster.kubeconfig,
        )
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    own = {name: value for name, value in os.environ.items() if not name.startswith(("ANSIBLE_", "PYTHON"))}
    path = f"{program.parent}:{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**own, "HOME": str(folder / "home"), "PATH": path, "ANSIBLE_NOCOLOR": "1", "ANSIBLE_HOST_KEY_CHECKING": "False"}
    environment["ANSIBLE_SSH_CONTROL_PATH_DIR"] = _SOCKETS.name

    def line(command: str, seconds: float = 900) -> str:
        return run_command(["bash", "-euo", "pipefail", "-c", f"cd {folder} && {command}"], seconds=seconds, environment=environment)

    return line
