# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What ansible-test sanity finds after minutes, found in a second: wrong lines of its list of ignored findings, assert, YAML's booleans."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
REASON = "pylint:disallowed-name # Python's name for a value that is not used; gettext is nowhere here"


def has_unused_names(source: str) -> bool:
    """Whether `_` is assigned to, in a loop, an assignment or a parameter. pylint accepts `*_`, `**_` and those of a lambda."""
    nodes = list(ast.walk(ast.parse(source)))
    stored = any(isinstance(node, ast.Name) and node.id == "_" and isinstance(node.ctx, ast.Store) for node in nodes)
    parameters = [node.args for node in nodes if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))]
    return stored or any(one.arg == "_" for each in parameters for one in (*each.posonlyargs, *each.args, *each.kwonlyargs))


def test_what_is_said_of_unused_names_is_said_of_the_files_that_have_them() -> None:
    python = [*(ROOT / "files").rglob("*.py"), *(ROOT / "plugins").rglob("*.py")]
    wanted = {f"{path.relative_to(ROOT)} {REASON}" for path in python if has_unused_names(path.read_text())}
    lists = sorted((ROOT / "tests/sanity").glob("ignore-*.txt"))
    assert lists
    for ignores in lists:
        written = {line for line in ignores.read_text().splitlines() if "disallowed-name" in line}
        assert (wanted - written, written - wanted) == (set(), set()), f"lines that {ignores.name} lacks, and lines that it should not have"


def test_every_file_of_the_list_is_there() -> None:
    for ignores in (ROOT / "tests/sanity").glob("ignore-*.txt"):
        gone = [line.split()[0] for line in ignores.read_text().splitlines() if not (ROOT / line.split()[0]).exists()]
        assert gone == []


def test_plugins_assert_nothing() -> None:
    sources = sorted((ROOT / "plugins").rglob("*.py"))
    assert len(sources) > 100
    assert [str(path) for path in sources if any(isinstance(node, ast.Assert) for node in ast.walk(ast.parse(path.read_text())))] == []


def test_names_in_the_documentation_of_modules_are_texts() -> None:
    def wrong(value: Any) -> list[Any]:
        if isinstance(value, dict):
            return [key for key in value if not isinstance(key, str)] + [one for each in value.values() for one in wrong(each)]
        return [one for each in value for one in wrong(each)] if isinstance(value, list) else []

    for path in sorted((ROOT / "plugins/modules").glob("*.py")):
        constants = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.Assign)]
        values = {node.targets[0].id: node.value for node in constants if isinstance(node.targets[0], ast.Name)}
        for part in ("DOCUMENTATION", "RETURN"):
            # `off` and `yes` are booleans in YAML.
            assert wrong(yaml.safe_load(ast.literal_eval(values[part]))) == [], f"{path.name}: {part}"
