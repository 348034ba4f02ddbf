# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""playbooks/remove_node.yml and remove_dead_node.yml through Ansible itself: what they reject, and what the dead way asks kubectl for."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from playbooks.play import ROOT, Hosts, play

# Answers for the two lists that a selection needs, and the end of it; every call is noted.
KUBECTL = """#!/bin/sh
echo "$@" >> {folder}/calls
case "$*" in
  *"get --raw /version"*) echo '{{"gitVersion": "v1.36.3"}}';;
  *"get nodes --output=name"*) echo node/cp1;;
  *"auth can-i"*) echo yes;;
  *"get --raw /api/v1/nodes"*) cat {folder}/nodes;;
  *"get --raw /api/v1/namespaces/kube-system/serviceaccounts"*) cat {folder}/accounts;;
  *"get pods"*|*"get --raw"*) echo '{{"kind": "List", "items": []}}';;
  *delete*|*annotate*) cat > /dev/null;;
  *) echo "unexpected: $*" >&2; exit 1;;
esac
"""
AWAY = {"ansible_connection": "ssh", "ansible_host": "127.0.0.1", "ansible_port": 1}


def node(name: str, ready: str) -> dict[str, Any]:
    metadata = {"name": name, "annotations": {"gpushare/gpus": "{}"}, "managedFields": []}
    return {"metadata": metadata, "status": {"conditions": [{"type": "Ready", "status": ready}], "capacity": {}}}


def run(folder: Path, playbook: str, names: str, ready: str = "Unknown", *arguments: str) -> subprocess.CompletedProcess[str]:
    (folder / "nodes").write_text(json.dumps({"items": [node("cp1", "True"), node("gpu1", "True"), node("gpu2", ready)]}))
    applied = [{"manager": "gpushare.kubernetes", "operation": "Apply"}]
    accounts = [{"name": f"gpushare-device-plugin-{name}", "managedFields": applied} for name in ("gpu1", "gpu2", "gone")]
    (folder / "accounts").write_text(json.dumps({"items": [{"metadata": {**one, "namespace": "kube-system"}} for one in accounts]}))
    kubectl = folder / "kubectl"
    kubectl.write_text(KUBECTL.format(folder=folder))
    kubectl.chmod(0o755)
    hosts: Hosts = {"kube_control_plane": {"cp1": {}}, "gpu_nodes": {"gpu1": {}, "gpu2": AWAY, "cp1": {}}}
    extra = ("-e", f"gpushare_remove_nodes={names}", *arguments)
    return play(folder, ROOT / f"playbooks/{playbook}.yml", hosts, *extra, gpushare_kubectl=str(kubectl))


def writes(folder: Path) -> list[str]:
    calls = (folder / "calls").read_text().splitlines() if (folder / "calls").exists() else []
    return [call.partition("--request-timeout=20s ")[2] for call in calls if not {"get", "auth"}.intersection(call.split())]


@pytest.mark.parametrize(
    ("playbook", "names", "words"),
    [
        ("remove_node", "", "gpushare_remove_nodes is empty"),
        ("remove_node", "gpu1,gpu9", "gpushare_remove_nodes has gpu9. Expected hosts of the group gpu_nodes"),
        ("remove_node", "cp1", "gpushare_remove_nodes has cp1."),
        ("remove_node", "gpu2", "gpu2 cannot be reached or read"),
        ("remove_dead_node", "", "gpushare_remove_nodes is empty"),
        ("remove_dead_node", "gpu1", "gpu1 can be reached, so it is not dead"),
    ],
)
def test_a_selection_is_rejected_before_anything_is_changed(tmp_path: Path, playbook: str, names: str, words: str) -> None:
    done = run(tmp_path, playbook, names)
    # ansible-core 2.18 prints a message of two lines as JSON does.
    said = " ".join((done.stdout + done.stderr).replace("\\n", " ").split())
    assert done.returncode != 0, said
    assert words in said
    assert writes(tmp_path) == []


def test_a_host_that_is_not_in_the_run_is_rejected(tmp_path: Path) -> None:
    done = run(tmp_path, "remove_dead_node", "gpu2", "Unknown", "--limit", "cp1")
    assert "gpu2 is not in this run, so it cannot be checked whether it answers" in " ".join(done.stdout.split())
    assert writes(tmp_path) == []


def test_a_node_that_is_ready_is_rejected_although_its_host_does_not_answer(tmp_path: Path) -> None:
    done = run(tmp_path, "remove_dead_node", "gpu2", "True")
    said = " ".join((done.stdout + done.stderr).split())
    assert done.returncode != 0, said
    assert "the node gpu2 is Ready, so gpu2 is not dead" in said
    assert writes(tmp_path) == []


def test_of_a_dead_node_only_its_own_parts_go_also_of_one_that_nobody_knows_any_more(tmp_path: Path) -> None:
    checked = run(tmp_path, "remove_dead_node", "gpu2,gone", "Unknown", "--check")
    assert (checked.returncode, writes(tmp_path)) == (0, []), checked.stdout + checked.stderr
    done = run(tmp_path, "remove_dead_node", "gpu2,gone")
    said = done.stdout + done.stderr
    assert done.returncode == 0, said
    assert writes(tmp_path) == ["delete --ignore-not-found -f -", "annotate node gpu2 gpushare/gpus-"], said
    for output in (checked.stdout, said):
        for part in ("gpushare-device-plugin-gpu2", "gpushare-device-plugin-gone", "annotation gpushare/gpus of node gpu2"):
            assert part in output, output
        assert "ServiceAccount kube-system/gpushare-device-plugin-gpu1" not in output
