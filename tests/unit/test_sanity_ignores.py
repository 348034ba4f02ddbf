# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The list of ignored findings of ansible-test sanity names the files that have them: found here in a second, there after minutes."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).parents[2]
REASON = "pylint:disallowed-name # Python's name for a value that is not used; gettext is nowhere here"


def has_unused_names(source: str) -> bool:
    """Whether `_` is assigned to, in a loop, an assignment or a parameter. pylint accepts `*_` and `**_`."""
    nodes = list(ast.walk(ast.parse(source)))
    stored = any(isinstance(node, ast.Name) and node.id == "_" and isinstance(node.ctx, ast.Store) for node in nodes)
    parameters = [node for node in nodes if isinstance(node, ast.arguments)]
    return stored or any(one.arg == "_" for each in parameters for one in (*each.posonlyargs, *each.args, *each.kwonlyargs))


def test_what_is_said_of_unused_names_is_said_of_the_files_that_have_them() -> None:
    runtime = sorted((ROOT / "files").rglob("*.py"))
    wanted = {f"{path.relative_to(ROOT)} {REASON}" for path in runtime if has_unused_names(path.read_text())}
    [ignores] = (ROOT / "tests/sanity").glob("ignore-*.txt")
    written = {line for line in ignores.read_text().splitlines() if "disallowed-name" in line}
    assert (wanted - written, written - wanted) == (set(), set()), "lines that the list lacks, and lines that it should not have"


def test_every_file_of_the_list_is_there() -> None:
    for ignores in (ROOT / "tests/sanity").glob("ignore-*.txt"):
        gone = [line.split()[0] for line in ignores.read_text().splitlines() if not (ROOT / line.split()[0]).exists()]
        assert gone == []
