# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The role admission: without policies it stops the run, unless somebody has accepted that; accounts of nodes that are gone are named."""

from __future__ import annotations

from pathlib import Path

import pytest

from playbooks.play import ROOT, Hosts, play
from unit.fakes.plugins.cluster.kubectl_stub import make_kubectl

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


REPORT = """
- hosts: all
  gather_facts: false
  tasks:
    - ansible.builtin.include_role:
        name: gpushare.kubernetes.admission
        tasks_from: report
"""


def account(node: str) -> dict[str, object]:
    fields = [{"manager": "gpushare.kubernetes", "operation": "Apply"}]
    return {"metadata": {"name": f"gpushare-device-plugin-{node}", "namespace": "kube-system", "managedFields": fields}}


@pytest.mark.parametrize(("nodes", "gone"), [(("gpu1", "gpu7", "gpu8"), ""), (("gpu1",), "gpu7,gpu8")])
def test_accounts_of_nodes_that_the_api_server_no_longer_has_are_named_with_the_command_that_deletes_them(
    tmp_path: Path, nodes: tuple[str, ...], gone: str
) -> None:
    accounts = [account(node) for node in ("gpu1", "gpu7", "gpu8")]
    answers = {"serviceaccounts": {"items": accounts}, "/api/v1/nodes": {"items": [{"metadata": {"name": node}} for node in nodes]}}
    kubectl = make_kubectl(tmp_path / "kubectl", answers)
    (tmp_path / "play.yml").write_text(REPORT)
    hosts: Hosts = {"kube_control_plane": {"cp1": {}}, "gpu_nodes": {"gpu1": {}}}
    done = play(tmp_path, tmp_path / "play.yml", hosts, gpushare_kubectl=str(kubectl))
    words = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == 0, words
    assert (
        "accounts belong to nodes that the cluster does not have: gpushare-device-plugin-gpu7, gpushare-device-plugin-gpu8" in words
    ) == bool(gone)
    assert (f"remove_dead_node with -e gpushare_remove_nodes={gone}." in words) == bool(gone)
    assert "tasks_from: report" in (ROOT / "playbooks/finish.yml").read_text()
