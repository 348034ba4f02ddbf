# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What the controller believes of a host's answer, through Ansible: a host that lies changes its own result, and no other's."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleConnectionFailure, AnsibleError  # type: ignore[import-untyped]
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._answers import ask

from playbooks.play import play_with_liars
from unit.fakes.plugins.fake_root import FakeRoot, debian, kubelet

TASKS = """
- hosts: all
  gather_facts: false
  tasks:
    - gpushare.kubernetes.gpu_node_info:
        gather: []
        node_name: "{{ gpushare_node_name | default('') }}"
        root: "{{ root }}"
      register: node
    - ansible.builtin.debug:
        msg: "the node {{ node.node_name }} with {{ gpushare_kubectl }} and {{ facts_of | default('no facts') }}"
"""


def host(folder: Path, *arguments: str) -> dict[str, Any]:
    """A host of the inventory that is a folder."""
    return {"root": str(kubelet(debian(FakeRoot(folder)), *arguments))}


def run(folder: Path, hosts: dict[str, dict[str, Any]], **variables: Any) -> str:
    (folder / "play.yml").write_text(TASKS)
    done = play_with_liars(folder, folder / "play.yml", {"gpu_nodes": hosts}, **variables)
    return done.stdout + done.stderr


def test_a_host_that_says_it_is_another_node_is_rejected(tmp_path: Path) -> None:
    said = {"gpu1": host(tmp_path / "1", "--hostname-override=gpu1"), "gpu2": host(tmp_path / "2", "--hostname-override=gpu1")}
    said["gpu3"] = {**host(tmp_path / "3", "--hostname-override=Node-3"), "gpushare_node_name": "Node-3"}
    said["gpu4"] = host(tmp_path / "4", "--hostname-override=gpu4", "--root-dir=/x\nExecStartPre=+/x")
    output = run(tmp_path, said, gpushare_kubectl="kubectl")
    assert "the node gpu1 with kubectl" in output
    assert "the node node-3 with kubectl" in output
    assert "gpu2 is not believed: found a host that says it is the node 'gpu1'" in output
    assert "gpu4 is not believed: found kubelet's root folder" in output


def liar(folder: Path, name: str, answer: str) -> dict[str, Any]:
    """A host of that name whose Python edits every answer of a module, one line of JSON, by this command of sed."""
    folder.mkdir()
    python = folder / "python"
    python.write_text(f"#!/bin/sh\n{sys.executable} \"$@\" | sed '{answer}'\n")
    python.chmod(0o755)
    return {**host(folder / "root", f"--hostname-override={name}"), "ansible_python_interpreter": str(python)}


def with_liars(folder: Path, first: Sequence[dict[str, Any]], last: Sequence[dict[str, Any]] = ()) -> str:
    """A run of an honest host beside one for each of these additions to its answers, as first or last keys: of two equal ones the
    last counts."""
    commands = [f"s|^{{|{{{json.dumps(keys)[1:-1]}, |" for keys in first] + [f"s|}}$|, {json.dumps(keys)[1:-1]}}}|" for keys in last]
    hosts = {f"liar{number}": liar(folder / str(number), f"liar{number}", command) for number, command in enumerate(commands)}
    return run(folder, {**hosts, "honest": host(folder / "honest", "--hostname-override=honest")}, gpushare_kubectl="kubectl")


def test_an_answer_sets_no_variables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host whose Python adds facts to every answer: they would win over the inventory's variables."""
    # Ansible's default; this checkout's own configuration says otherwise.
    monkeypatch.setenv("ANSIBLE_INJECT_FACT_VARS", "true")
    output = with_liars(tmp_path, [{"ansible_facts": {"gpushare_kubectl": "/tmp/evil", "facts_of": "the host"}}])
    assert "the node liar0 with kubectl and no facts" in output


def test_a_host_changes_nothing_of_the_run_but_its_own_answer(tmp_path: Path) -> None:
    lies: list[dict[str, Any]] = [
        # Each makes Ansible's own loop over all hosts raise, or makes the result another one than the module's.
        {"ansible_stats": 5},
        {"ansible_stats": {"data": 5}},
        {"add_host": 5},
        {"add_group": 5},
        {"results": [{"skipped": True}]},
        {"skipped": True},
        {"unreachable": True},
        {"warnings": 5},
        {"deprecations": "x"},
        {"diff": 5},
    ]
    output = with_liars(tmp_path, lies)
    names = ["honest", *(f"liar{number}" for number in range(len(lies)))]
    assert [name for name in names if f"the node {name} with kubectl and no facts" not in output] == [], output


def test_a_host_that_answers_in_another_form_has_failed_with_its_name(tmp_path: Path) -> None:
    lies: list[dict[str, Any]] = [
        {"ansible_facts": 5},
        {"stdout": 5},
        {"changed": "x"},
        {"failed": "no"},
        {"warnings": [5]},
        {"kubelet_root": 5},
    ]
    output = with_liars(tmp_path, [], lies)
    assert "the node honest with kubectl and no facts" in output, output
    for name in (f"liar{number}" for number in range(len(lies))):
        # From 2.20 on Ansible itself takes the text for a truth.
        said = (f"{name} is not believed: its answer has another form", f"the node {name} with kubectl", f"fatal: [{name}]: FAILED!")
        assert any(one in output for one in said), output
    assert "Traceback" not in output


class Fails:
    """An action whose module cannot be run."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def _execute_module(self, **_arguments: Any) -> dict[str, Any]:
        raise self.error


def test_a_wrong_password_of_sudo_is_an_answer_and_a_lost_connection_is_none() -> None:
    assert ask(Fails(AnsibleError("Incorrect sudo password")), {}) == {"changed": False, "failed": True, "msg": "Incorrect sudo password"}
    with pytest.raises(AnsibleConnectionFailure):
        ask(Fails(AnsibleConnectionFailure("rejected")), {})
