# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The core knows nothing of the outside: no clock, socket, file, environment or client library."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import gpushare_runtime

PURE = (
    "protocol", "bounds", "quantity", "reuse", "rules", "request", "inventory", "allocation", "held", "holding", "node_ledger", "ledger",
    "fragmentation", "ranking", "placement", "reasons",
)  # fmt: skip
ALLOWED = {
    "abc", "bisect", "heapq", "operator",
    "__future__", "collections", "dataclasses", "enum", "fractions", "functools", "hashlib", "itertools", "json", "math", "re", "typing",
    *(f"gpushare_runtime.{name}" for name in PURE), "gpushare_runtime",
}  # fmt: skip


def imports(source: str) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return {name if name.startswith("gpushare_runtime") else name.split(".")[0] for name in found}


@pytest.mark.parametrize("name", PURE)
def test_imports_and_calls(name: str) -> None:
    source = (Path(gpushare_runtime.__file__).parent / f"{name}.py").read_text()
    # What reads times that others have written must not look at the clock itself.
    allowed = ALLOWED | {"datetime"} if name == "held" else ALLOWED
    assert imports(source) <= allowed
    assert ".now(" not in source
    calls = {node.func.id for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    assert not calls & {"open", "print", "input", "exec", "eval", "__import__"}


def test_the_check_sees_what_it_forbids() -> None:
    assert "socket" in imports("import socket")
    assert "time" in imports("from time import time")
    assert "gpushare_runtime.kube.client" in imports("from gpushare_runtime.kube.client import KubeClient")
