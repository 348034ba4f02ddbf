# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""playbooks/scale.yml through Ansible itself, on hosts that have not joined. Every host of these inventories is this machine."""

from __future__ import annotations

import socket
import subprocess
from pathlib import Path

from playbooks.play import ROOT, Hosts, play

KUBECTL = """#!/bin/sh
case "$*" in
  *"get --raw /version"*) echo '{"gitVersion": "v1.36.3"}';;
  *"get nodes --output=name"*) echo node/another;;
  *"get daemonsets.apps"*) echo '{"kind": "List", "items": []}';;
  *"auth can-i"*) echo yes;;
  *"get --raw /apis/nvidia.com"* | *"get --raw /apis/resource.k8s.io"*) echo 'Error from server (NotFound)' >&2; exit 1;;
  *) echo "unexpected: $*" >&2; exit 1;;
esac
"""
GONE = "#!/bin/sh\necho 'connection refused' >&2; exit 1\n"


def scale(folder: Path, kubectl: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = folder / "kubectl"
    program.write_text(kubectl)
    program.chmod(0o755)
    hosts: Hosts = {"kube_control_plane": {"cp1": {}}, "gpu_nodes": {"gpu1": {}}}
    variables = {"gpushare_kubectl": str(program), "gpushare_node_name": socket.gethostname().lower()}
    return play(folder, ROOT / "playbooks/scale.yml", hosts, *arguments, **variables)


def words(done: subprocess.CompletedProcess[str]) -> str:
    return " ".join((done.stdout + done.stderr).split())


def test_a_gpu_node_that_has_not_joined_is_left_out_and_reported(tmp_path: Path) -> None:
    done = scale(tmp_path, KUBECTL, "--limit", "gpu1")
    assert done.returncode == 0, words(done)
    assert "the rest of the run leaves them out: gpu1. Join them with kubeadm join" in words(done)
    assert "TASK [Check every host]" not in done.stdout


def test_a_control_plane_is_not_prepared_for_a_cluster_without_the_extender(tmp_path: Path) -> None:
    done = scale(tmp_path, KUBECTL)
    assert done.returncode != 0
    assert "expected a kube-scheduler that this collection has configured: run site.yml" in words(done)
    assert "changed=1" not in done.stdout


def test_without_a_control_plane_that_answers_nobody_knows_who_has_joined(tmp_path: Path) -> None:
    done = scale(tmp_path, GONE)
    assert done.returncode != 0
    assert "No control plane of the group kube_control_plane answers for the cluster. Nothing was changed" in words(done)
