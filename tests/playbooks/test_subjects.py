# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A new subject is one folder and one row: the real playbooks plan, install, verify, report and remove it. Modules are stand-ins."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from playbooks.play import Hosts, play
from playbooks.stand_ins import Collection, Run

HOSTS: Hosts = {"kube_control_plane": {"cp1": {}}, "gpu_nodes": {"gpu1": {}, "gpu2": {}}}
TASK = """---
- name: Bring the new subject
  gpushare.kubernetes.gpushare_packages:
    owner: novelty
    state: {state}
  check_mode: "{{{{ __gpushare_plan_only | default(false) or ansible_check_mode }}}}"
  changed_when: __novelty is changed and not __gpushare_plan_only | default(false)
  register: __novelty
"""
ROW = """    "novelty": Owner("novelty:restore", "a word", order=9, group=GPU_NODES, plans=(Plan("main", "novelty"),), install="main"),
"""
NAME = "gpushare_packages novelty"
TABLE = "plugins/module_utils/_change/subjects.py"


def add_folder(collection: Collection) -> None:
    tasks = collection.root / "roles/novelty/tasks"
    tasks.mkdir(parents=True)
    for name, state in (("main", "present"), ("restore", "absent")):
        (tasks / f"{name}.yml").write_text(TASK.format(state=state))


def add_row(collection: Collection) -> None:
    table = collection.root / TABLE
    before = '    # The module takes back what any of its owners changed.\n    "packages": Owner('
    assert table.read_text().count(before) == 1
    table.write_text(table.read_text().replace(before, ROW + before))


def said(run: Run) -> list[tuple[bool, bool]]:
    """Of each call of the new subject on gpu1, whether it only planned, and whether it changed something or would."""
    return [(call.check, call.changed) for call in run.calls if call.host == "gpu1" and call.name == NAME]


def verified(run: Run) -> list[Any]:
    """Whether each first verdict of the run was to place probe pods."""
    return [call.arguments["probe"] for call in run.calls if call.name == "gpushare_judge verify" and "probe" in call.arguments]


@pytest.mark.timeout(1200)
def test_a_subject_is_one_folder_and_one_row(tmp_path: Path) -> None:
    collection = Collection(tmp_path)
    add_folder(collection)
    add_row(collection)
    first = collection.play("site", HOSTS)
    assert first.code == 0, first.output
    assert said(first) == [(True, True), (False, True)]
    assert not [call for call in first.calls if call.host == "cp1" and call.name == NAME]

    # With all others as they are: planned, installed, and proven by pods.
    (tmp_path / "hosts/gpu1-gpushare_packages-novelty").unlink()
    second = collection.play("site", HOSTS, "--limit", "gpu1")
    assert second.code == 0, second.output
    assert said(second) == [(True, True), (False, True)]
    assert verified(second) == [True]

    # Nothing changes, and its role is left out with the others: one more plan than the 16 results of docs/project/design.md, and the one
    # result that the first host of a batch has for all of them.
    third = collection.play("site", HOSTS)
    assert third.code == 0, third.output
    assert said(third) == [(True, False)]
    assert verified(third) == [False]
    assert third.results is not None
    assert third.results.changes() == {}
    assert len(third.results.tasks("gpu1")) == 18, third.results.tasks("gpu1")

    removed = collection.play("uninstall", HOSTS)
    assert removed.code == 0, removed.output
    assert said(removed) == [(False, True)]
    order = removed.of("gpu1")
    assert order.index("gpushare_toolkit") < order.index(NAME) < order.index("gpushare_packages")
    assert removed.output.count("restored by novelty") == 2, "in the report of each GPU node"


QUESTIONS = {
    "lookup('gpushare.kubernetes.subjects', 'answer', 'novelty')": "found the subject novelty; expected one of the table",
    "query('gpushare.kubernetes.subjects', 'novelties')": "found the terms ['novelties']; expected one of together",
    "query('gpushare.kubernetes.subjects', 'answer')": "found the terms ['answer']; expected one of together",
    "query('gpushare.kubernetes.subjects', 'plans', facts={'kubelet': {}})": "found no variable gpushare_prerequisites",
}


def test_a_question_about_what_has_no_row_is_an_error(tmp_path: Path) -> None:
    asked = [{"ansible.builtin.debug": {"msg": f"{{{{ {question} }}}}"}, "ignore_errors": True} for question in QUESTIONS]
    (tmp_path / "play.yml").write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": asked}]))
    done = play(tmp_path, tmp_path / "play.yml", {"gpus": {"a": {}}}, gpushare_gpu_group="gpus", gpushare_control_plane_group="planes")
    output = " ".join((done.stdout + done.stderr).split())
    assert [words for words in QUESTIONS.values() if words not in output] == [], output
    assert "ignored=4" in output
