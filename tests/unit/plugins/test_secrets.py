# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What Ansible is told to hide. From 2.22 on it hides each item of such a value, of any length, in all output of the run."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
# The contents of files, each of which is one secret; its keys are not hidden.
WHOLE = {("plugins/modules/gpushare_daemon.py", "secrets")}


def of_roles(options: Mapping[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    for name, option in options.items():
        yield name, option
        yield from of_roles(option.get("options") or {})


def of_code(source: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """The options of an argument specification in code, by name."""
    for node in ast.walk(ast.parse(source)):
        pairs: list[tuple[str, ast.expr]] = []
        if isinstance(node, ast.Dict):
            pairs = [(key.value, value) for key, value in zip(node.keys, node.values, strict=True) if isinstance(key, ast.Constant)]
        elif isinstance(node, ast.Call):
            pairs = [(one.arg, one.value) for one in node.keywords if one.arg]
        for name, value in pairs:
            if isinstance(value, ast.Dict) and "no_log" in [key.value for key in value.keys if isinstance(key, ast.Constant)]:
                yield str(name), ast.literal_eval(value)


def hidden() -> list[tuple[str, str, dict[str, Any]]]:
    """(file, name, specification) of each option that is hidden."""
    found = []
    for path in sorted((ROOT / "roles").glob("*/meta/argument_specs.yml")):
        entries = yaml.safe_load(path.read_text())["argument_specs"].values()
        found += [(path, *one) for entry in entries for one in of_roles(entry.get("options") or {})]
    for path in sorted((ROOT / "plugins").rglob("*.py")):
        found += [(path, *one) for one in of_code(path.read_text())]
    return [(str(path.relative_to(ROOT)), name, spec) for path, name, spec in found if spec.get("no_log")]


def faults(where: str, name: str, spec: Mapping[str, Any]) -> list[str]:
    """Why hiding its value would hide other words, too."""
    found = []
    if spec.get("type", "str") != "str" and (where, name) not in WHOLE:
        found.append(f"{where}: {name} is a {spec['type']}: each of its items would be hidden everywhere")
    if spec.get("default"):
        found.append(f"{where}: {name} has the default {spec['default']!r}, which would be hidden everywhere")
    return found


def test_nothing_is_hidden_but_single_secrets() -> None:
    found = hidden()
    assert {name for _where, name, _spec in found} >= {"gpushare_metrics_token", "gpushare_proxy", "seed_content", "pip_extra_args"}
    assert {(where, name) for where, name, _spec in found} >= WHOLE
    assert [fault for one in found for fault in faults(*one)] == []


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ('{"type": "list", "elements": "str", "no_log": True}', "x is a list"),
        ('{"type": "str", "no_log": True, "default": "[]"}', "x has the default '[]'"),
        ('{"type": "str", "no_log": True, "default": ""}', ""),
        ('{"type": "list", "no_log": False}', ""),
    ],
)
@pytest.mark.parametrize("form", ['A = {{"x": {}}}', "f(x={})", 'A = {{"y": {{"type": "dict", "options": {{"x": {}}}}}}}'])
def test_the_search_finds_lists_and_defaults(form: str, spec: str, words: str) -> None:
    ((name, read),) = of_code(form.format(spec))
    found = faults("a", name, read) if read["no_log"] else []
    assert (words in found[0]) if words else (found == [])
