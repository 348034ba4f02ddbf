# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The collection as a whole: what its files promise each other."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import tomllib
import yaml

ROOT = Path(__file__).resolve().parents[3]
ON_HOSTS = sorted(path for folder in ("modules", "module_utils") for path in (ROOT / "plugins" / folder).rglob("*.py"))


def load(*parts: str) -> Any:
    return yaml.safe_load((ROOT.joinpath(*parts)).read_text())


def test_the_collection_and_the_runtime_have_one_version() -> None:
    pyproject = tomllib.loads((ROOT / "files" / "gpushare_runtime" / "pyproject.toml").read_text())
    assert load("galaxy.yml")["version"] == pyproject["project"]["version"]


def test_a_checkout_is_the_collection() -> None:
    link = ROOT / ".collections" / "ansible_collections" / "gpushare" / "kubernetes"
    assert (os.readlink(link), link.resolve()) == ("../../..", ROOT)


@pytest.mark.parametrize("path", ON_HOSTS, ids=lambda path: "/".join(path.parts[-2:]))
def test_what_runs_on_hosts_is_python_3_8(path: Path) -> None:
    ast.parse(path.read_text(), feature_version=(3, 8))


CONDITIONS = ("when", "that", "until", "failed_when", "changed_when")
SWITCHES = sorted(
    {
        name
        for path in (ROOT / "roles").glob("*/meta/argument_specs.yml")
        for entry in yaml.safe_load(path.read_text())["argument_specs"].values()
        for name, option in (entry.get("options") or {}).items()
        if option.get("type") == "bool"
    }
)


def expressions(value: Any, is_condition: bool = False) -> Iterator[str]:
    """Those of Jinja in a file of tasks, plays or variables."""
    if isinstance(value, dict):
        for key, inner in value.items():
            yield from expressions(inner, key in CONDITIONS)
    elif isinstance(value, list):
        for inner in value:
            yield from expressions(inner, is_condition)
    elif isinstance(value, str):
        yield from [value] if is_condition else re.findall(r"{{(.*?)}}", value, re.DOTALL)


def bare_switches(expression: str) -> list[str]:
    """The public variables of type bool that the expression takes as they are. One alone is the value of an option, which converts it."""
    if expression.strip() in SWITCHES:
        return []
    code = re.sub(r"'[^']*'|\"[^\"]*\"", "''", expression)
    return [name for name in re.findall(r"\b(gpushare_\w+)\b(?!\s*(?:\|\s*default\(\w+\)\s*)?\|\s*bool)", code) if name in SWITCHES]


def test_switches_that_the_command_line_gives_as_text_are_converted() -> None:
    """-e x=false is the text "false", which is true."""
    assert bare_switches("gpushare_drain and x") == ["gpushare_drain"]
    files = [path for folder in ("roles", "playbooks") for path in sorted((ROOT / folder).rglob("*.yml")) if path.parent.name != "meta"]
    found = {path: [*expressions(yaml.safe_load(path.read_text()))] for path in files}
    found |= {path: re.findall(r"{[{%](.*?)[}%]}", path.read_text(), re.DOTALL) for path in sorted((ROOT / "roles").rglob("*.j2"))}
    bare = {str(path.relative_to(ROOT)): [name for one in texts for name in bare_switches(one)] for path, texts in found.items()}
    assert {path: names for path, names in bare.items() if names} == {}
