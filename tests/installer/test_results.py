# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What the budget and the comparison of runs count, on a playbook of which it is known."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from installer.snapshot import Snapshot
from results import Results, environment

TASKS = [
    {"name": "one module", "ansible.builtin.command": "true", "changed_when": False},
    {"name": "two modules", "ansible.builtin.copy": {"content": "x", "dest": "{{ folder }}/{{ inventory_hostname }}"}},
    {"name": "none", "ansible.builtin.debug": {"msg": "x"}},
    {"name": "not done", "ansible.builtin.command": "true", "when": False},
    {"name": "for all of them", "ansible.builtin.command": "true", "delegate_to": "c", "run_once": True},
    {"name": "for each of them", "ansible.builtin.command": "true", "delegate_to": "c"},
]
HOSTS = {
    "all": {
        "vars": {"ansible_connection": "local", "ansible_python_interpreter": sys.executable},
        "children": {"nodes": {"hosts": {"a": {}, "b": {}}}, "plane": {"hosts": {"c": {}}}},
    }
}


def play(folder: Path, *arguments: str) -> Results:
    (folder / "hosts.yml").write_text(json.dumps(HOSTS))
    playbook = [{"name": "Play", "hosts": "nodes", "gather_facts": False, "tasks": TASKS, "vars": {"folder": str(folder)}}]
    (folder / "play.yml").write_text(json.dumps(playbook))
    program = Path(sys.executable).with_name("ansible-playbook")
    own = {**os.environ, **environment(folder / "results.jsonl")}
    command = [str(program), "-i", "hosts.yml", "play.yml", *arguments]
    subprocess.run(command, cwd=folder, env=own, check=True, capture_output=True, timeout=120)
    return Results.read(folder / "results.jsonl")


def test_modules_and_results_are_counted_for_the_host_that_pays(tmp_path: Path) -> None:
    results = play(tmp_path)
    copy = ["two modules: ansible.legacy.stat", "two modules: ansible.legacy.copy"]
    per_node = ["one module: ansible.legacy.command", *copy, "for each of them: ansible.legacy.command"]
    assert {host: results.modules(host) for host in "abc"} == {
        "a": per_node,
        "b": per_node,
        "c": ["for all of them: ansible.legacy.command"],
    }
    per_node = ["one module: ok", "two modules: ok", "none: ok", "not done: skipped", "for each of them: ok"]
    assert {host: results.tasks(host) for host in "abc"} == {"a": per_node, "b": per_node, "c": ["for all of them: ok"]}
    assert results.controller_seconds > 0


def test_changes_are_those_that_were_reported(tmp_path: Path) -> None:
    each = {(host, "Play", task): 1 for host in "ab" for task in ("two modules", "for each of them")}
    assert play(tmp_path).changes() == each | {("a", "Play", "for all of them"): 1}
    # What is there already is no change; what check mode does not run is none either.
    assert play(tmp_path, "--check").changes() == {}
    (tmp_path / "a").unlink()
    assert play(tmp_path, "--check").changes() == {("a", "Play", "two modules"): 1}


def test_a_run_that_was_broken_off_is_no_result(tmp_path: Path) -> None:
    (tmp_path / "results.jsonl").write_text('{"event": "result"}\n')
    with pytest.raises(ValueError, match="broken off"):
        Results.read(tmp_path / "results.jsonl")


def test_differences_of_snapshots() -> None:
    before = Snapshot({"cp1:/etc/a": [1, "x"], "cp1:/etc/b": [2, "y"], "Secret kube-system/s": "17"})
    assert before.differences(Snapshot(dict(before.things))) == []
    after = Snapshot({"cp1:/etc/a": [3, "x"], "Secret kube-system/s": "17", "cp1:/opt/new": [4, ""]})
    assert before.differences(after) == [
        "cp1:/etc/a: [1, 'x'] → [3, 'x']",
        "cp1:/etc/b: [2, 'y'] → absent",
        "cp1:/opt/new: absent → [4, '']",
    ]
