# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""No result has a key that Ansible reads as its own: it would convert the value, or count the task as something that it was not."""

from __future__ import annotations

import ast
import json
from collections.abc import Iterator
from contextlib import nullcontext
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
import yaml

from playbooks.play import ROOT, play

PLUGINS = ROOT / "plugins"
# Ansible's keys that results of ours have, in Ansible's meaning: the types of RETURN, and of a value that stands in the code.
OWN_MEANING: dict[str, tuple[tuple[str, ...], tuple[type, ...]]] = {
    "changed": (("bool",), (bool,)),
    "failed": (("bool",), (bool,)),
    "msg": (("str",), (str,)),
    "diff": (("list", "dict"), ()),
}
# A module warns by AnsibleModule.warn(); in what an action plugin returns, they are a list of texts.
OF_ACTIONS = {"warnings": (("list",), ())}
# The task executor, the strategies and the callbacks of ansible-core 2.18 to 2.22 read or write these.
RESERVED = frozenset(
    {
        *("skipped", "unreachable", "exception", "rc", "deprecations", "invocation", "ignored", "censored", "parsed", "item"),
        *("skip_reason", "skipped_reason", "false_condition", "attempts", "retries", "results", "ansible_module_results"),
        *("changed_when_result", "failed_when_result", "break_when_result"),
        *("changed_when_suppressed_exception", "failed_when_suppressed_exception", "break_when_suppressed_exception"),
        *("stdout", "stdout_lines", "stderr", "stderr_lines", "module_stdout", "module_stderr"),
        *("started", "finished", "async_result", "results_file", "ansible_job_id"),
        *("ansible_parsed", "add_host", "add_group", "ansible_facts", "ansible_stats"),
        *("ansible_loop", "ansible_loop_var", "ansible_index_var"),
    }
)
# AnsibleModule adds owner, mode and size of the file beside one of these.
FILES = frozenset({"path", "dest"})
# Not in results but below one of their keys, where Ansible reads nothing.
BELOW = {("module_utils/_evidence/cluster.py", "started")}
# The answer of every module passes here, and with it what Ansible itself has found.
PASSES_ON = {("plugin_utils/_answers.py", "ansible_facts"), ("plugin_utils/_answers.py", "exception")}
# The table of what is believed of an answer, whatever Ansible itself has added to it.
PASSES_ON |= {("plugin_utils/_answers.py", key) for key in ("rc", "module_stdout", "module_stderr", "invocation")}

MODULE = """\
from ansible.module_utils.basic import AnsibleModule
module = AnsibleModule(argument_spec={"key": {"type": "str"}})
module.exit_json(**{"changed": False, module.params["key"]: ["x"]})
"""


def may_not(key: str) -> bool:
    return key in RESERVED or key.startswith("_ansible_")


def named(node: ast.AST) -> Iterator[tuple[int, str, ast.expr]]:
    """(line, key, value) of what may become part of a result: dictionaries, assignments to their keys, arguments, results as classes."""
    if isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant) and isinstance(key.value, str):
                yield key.lineno, key.value, value
    elif isinstance(node, ast.Assign) and isinstance(target := node.targets[0], ast.Subscript):
        if isinstance(target.slice, ast.Constant) and isinstance(target.slice.value, str):
            yield node.lineno, target.slice.value, node.value
    elif isinstance(node, ast.Call):
        function = node.func.id if isinstance(node.func, ast.Name) else node.func.attr if isinstance(node.func, ast.Attribute) else ""
        if function in ("exit_json", "fail_json", "dict", "update"):
            yield from ((node.lineno, one.arg, one.value) for one in node.keywords if one.arg)
    elif isinstance(node, ast.ClassDef):
        fields = [one for one in node.body if isinstance(one, ast.AnnAssign) and isinstance(one.target, ast.Name)]
        if any(one.target.id == "changed" for one in fields if isinstance(one.target, ast.Name)):
            yield from ((one.lineno, one.target.id, one.value or one.annotation) for one in fields if isinstance(one.target, ast.Name))


def faults(source: str, where: str) -> list[str]:
    """What is wrong in a file of that path below plugins/."""
    known = OWN_MEANING | (OF_ACTIONS if where.startswith(("action/", "plugin_utils/")) else {})
    found = []
    for node in ast.walk(ast.parse(source)):
        keys = list(named(node))
        is_result = isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("exit_json", "fail_json")
        is_result = is_result or any(key == "changed" for _line, key, _value in keys)
        for line, key, value in keys:
            types = known.get(key, ((), ()))[1]
            if may_not(key) and (where, key) not in BELOW | PASSES_ON:
                found.append(f"{where}:{line}: {key}")
            elif is_result and (key in FILES or (key in OF_ACTIONS and key not in known and not isinstance(node, ast.ClassDef))):
                found.append(f"{where}:{line}: {key} in a result")
            elif is_result and types and isinstance(value, ast.Constant) and not isinstance(value.value, types):
                found.append(f"{where}:{line}: {key} is {value.value!r}")
    return found


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('{"changed": True, "skipped": []}', ["skipped"]),
        ('result["skipped"] = []', ["skipped"]),
        ("module.exit_json(rc=1)", ["rc"]),
        ("dict(found, results=1)", ["results"]),
        ("found.update(finished=1)", ["finished"]),
        ("class Result:\n    changed: bool\n    exception: str", ["exception"]),
        ('{"_ansible_no_log": True}', ["_ansible_no_log"]),
        ("module.exit_json(changed=False, path='/etc')", ["path in a result"]),
        ("module.exit_json(changed=False, warnings=[])", ["warnings in a result"]),
        ("module.exit_json(changed='no')", ["changed is 'no'"]),
        ('{"failed": True, "changed": False, "msg": None}', ["msg is None"]),
        ("module.exit_json(changed=False, msg='', diff=[], kept=[])", []),
        ("class Command:\n    rc: int", []),
        ('{"path": "/etc"}', []),
    ],
)
def test_the_search_finds_reserved_keys(source: str, found: list[str]) -> None:
    assert faults(source, "modules/x.py") == [f"modules/x.py:{3 if 'exception' in source else 1}: {one}" for one in found]


def test_no_result_has_a_reserved_key() -> None:
    sources = sorted(PLUGINS.rglob("*.py"))
    assert len(sources) > 100
    assert [one for path in sources for one in faults(path.read_text(), str(path.relative_to(PLUGINS)))] == []


def test_what_is_excepted_is_there() -> None:
    for where, key in BELOW | PASSES_ON:
        nodes = ast.walk(ast.parse((PLUGINS / where).read_text()))
        assert key in {name for node in nodes for _line, name, _value in named(node)}, f"{where} has no {key}"


def test_no_documented_value_has_a_reserved_key() -> None:
    wrong: list[str] = []
    modules = sorted((PLUGINS / "modules").glob("*.py"))
    assert len(modules) > 15
    known = OWN_MEANING | OF_ACTIONS
    for path in modules:
        constants = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.Assign)]
        texts = {ast.unparse(one.targets[0]): one.value for one in constants}
        documented: dict[str, Any] = yaml.safe_load(ast.literal_eval(texts["RETURN"])) or {}
        for key, one in documented.items():
            if may_not(key) or key in FILES or (key in known and one["type"] not in known[key][0]):
                wrong.append(f"{path.name}: {key} is {one['type']}")
    assert wrong == []


@pytest.mark.parametrize(("key", "named"), [("skipped", True), ("kept", False)])
def test_ansible_names_a_reserved_key_wherever_a_test_runs_a_playbook(tmp_path: Path, key: str, named: bool) -> None:
    if tuple(map(int, version("ansible-core").split(".")[:2])) < (2, 21):
        pytest.skip("this ansible-core says nothing")
    (tmp_path / "library").mkdir()
    (tmp_path / "library/answers.py").write_text(MODULE)
    (tmp_path / "play.yml").write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": [{"answers": {"key": key}}]}]))
    with pytest.raises(AssertionError, match="'skipped'") if named else nullcontext():
        play(tmp_path, tmp_path / "play.yml", {"nodes": {"a": {}}})


def test_ansible_reserves_no_other_keys() -> None:
    """From 2.21 on, ansible-core says which it takes out of a result, and which it puts into one."""
    task = pytest.importorskip("ansible._internal._task", reason="this ansible-core has no list of them")
    if not hasattr(task, "UnifiedTaskResult"):
        pytest.skip("this ansible-core has no list of them")
    of_result = task.UnifiedTaskResult
    taken = {key for source in (True, False) for key in of_result.get_result_key_to_resolved_field_mapping(source_is_module=source)}
    put = set(of_result._get_field_name_to_result_key_mapping(for_callback=True, for_round_trip=True).values())
    assert "skipped" in taken & put
    # These two are the names of its fields; in a result they are called as the loop's variables.
    known = {*OWN_MEANING, *OF_ACTIONS, "loop_item", "loop_index"}
    assert sorted(key for key in taken | put if not may_not(key) and key not in known) == []
