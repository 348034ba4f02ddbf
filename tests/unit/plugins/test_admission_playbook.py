# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The role admission on an API server without policies: it stops the run, unless somebody has accepted that."""

from __future__ import annotations

from pathlib import Path

import pytest

from unit.plugins.test_preflight_playbook import play

PLAY = """
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.include_role:
        name: gpushare.kubernetes.admission
    - ansible.builtin.debug:
        msg: the run goes on
"""
KUBECTL = """#!/bin/sh
echo "$@" >> {calls}
echo 'Error from server (NotFound): the server could not find the requested resource' >&2
exit 1
"""


@pytest.mark.parametrize("accepted", [False, True])
def test_without_policies_nothing_is_installed_unless_that_is_wanted(tmp_path: Path, accepted: bool) -> None:
    kubectl, calls = tmp_path / "kubectl", tmp_path / "calls"
    kubectl.write_text(KUBECTL.format(calls=calls))
    kubectl.chmod(0o755)
    (tmp_path / "play.yml").write_text(PLAY)
    variables = {"gpushare_kubectl": str(kubectl)} | ({"gpushare_without_policies": "yes"} if accepted else {})
    done = play(tmp_path, tmp_path / "play.yml", {"kube_control_plane": {"cp1": {}}, "gpu_nodes": {"gpu1": {}}}, **variables)
    words = " ".join((done.stdout + done.stderr).split())
    assert (done.returncode == 0, "the run goes on" in words) == (accepted, accepted), words
    assert ("Expected Kubernetes 1.30 or newer" in words) != accepted
    assert "the token of any GPU node can change annotations, labels and status of every pod" in words
    assert [line for line in calls.read_text().splitlines() if "get --raw" not in line] == []
