# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The choices of roles and modules are those that the code knows."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gpushare.kubernetes.plugins.module_utils._kubelet.gates import WANTED

from gpushare_runtime.core.constraints import PLACEMENTS

ROOT = Path(__file__).parents[2]
# Name of a variable or of a module's option → what the code knows.
KNOWN: dict[str, Iterable[str]] = {
    **dict.fromkeys(("gpushare_placement", "gpushare_gpu_placement", "gpushare_node_placement"), PLACEMENTS),
    **dict.fromkeys(("gpushare_kubelet_gates", "kubelet_gates.gates"), WANTED),
}


def options() -> Iterable[tuple[str, dict[str, Any]]]:
    for path in ROOT.glob("roles/*/meta/argument_specs.yml"):
        for entry in yaml.safe_load(path.read_text())["argument_specs"].values():
            yield from entry.get("options", {}).items()
    for path in ROOT.glob("plugins/modules/*.py"):
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "DOCUMENTATION":
                for name, option in yaml.safe_load(ast.literal_eval(node.value)).get("options", {}).items():
                    yield f"{path.stem}.{name}", option


def test_the_comments_of_the_example_inventory_name_the_choices() -> None:
    """A comment with a list such as "binpack or spread" stands above its variable."""
    known = {
        name: {str(one) for one in option["choices"]} for name, option in options() if name.startswith("gpushare_") and "choices" in option
    }
    text = (ROOT / "inventory.example/group_vars/all.yml").read_text()
    compared = 0
    for comment, name in re.findall(r"^# [^\n]*: ([\w, ]+ or [\w]+)\.\n(?:# )?(gpushare_\w+):", text, re.M):
        assert set(re.split(r", | or ", comment)) == known[name], name
        compared += 1
    assert compared >= 2


@pytest.mark.parametrize("name", KNOWN)
def test_choices_are_what_the_code_knows(name: str) -> None:
    written = [set(option["choices"]) - {""} for known, option in options() if known == name and "choices" in option]
    assert written
    assert written == [set(KNOWN[name])] * len(written)
