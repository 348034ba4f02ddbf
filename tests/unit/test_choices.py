# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The choices of roles and modules are those that the code knows."""

from __future__ import annotations

import ast
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


@pytest.mark.parametrize("name", KNOWN)
def test_choices_are_what_the_code_knows(name: str) -> None:
    written = [set(option["choices"]) - {""} for known, option in options() if known == name and "choices" in option]
    assert written
    assert written == [set(KNOWN[name])] * len(written)
