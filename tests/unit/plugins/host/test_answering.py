# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""One root of errors: what a module answers when it cannot do what it was asked for, and that no class of the plugins has another root."""

from __future__ import annotations

import ast
import importlib
import os
import stat
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.kubectl import KubectlError
from ansible_collections.gpushare.kubernetes.plugins.module_utils._formats.failure import Failure
from ansible_collections.gpushare.kubernetes.plugins.module_utils._formats.toml import TomlError
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.answering import answering, changing
from ansible_collections.gpushare.kubernetes.plugins.module_utils._scheduler.service import NotRunningError

PREFIX = "ansible_collections.gpushare.kubernetes.plugins."
PLUGINS = Path(__file__).resolve().parents[4] / "plugins"


class Answered(Exception):
    """What fail_json does in a real module: it ends."""


class Module:
    check_mode = True

    def __init__(self) -> None:
        self.answer: dict[str, Any] = {}

    def fail_json(self, **answer: Any) -> None:
        self.answer = answer
        raise Answered


def test_what_a_module_writes_is_for_its_owner_to_change_and_for_others_to_read(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        with changing(Module(), str(tmp_path)):
            (tmp_path / "file").touch(0o777)
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o755


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (KubectlError("no"), "kubectl"),
        (NotRunningError("no"), "not_running"),
        (TomlError("no"), "toml"),
        (PermissionError("no"), "file"),
        (UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no"), "file"),
    ],
)
def test_a_failure_is_the_answer_with_its_reason(error: Exception, reason: str) -> None:
    module, known = Module(), {"strategy": "cdi"}

    def work() -> None:
        with changing(module, always=known):
            # What is known by then, not what was known at the beginning.
            known["mps"] = "no"
            raise error

    with pytest.raises(Answered):
        work()
    assert module.answer == {"msg": str(error), "reason": reason, "strategy": "cdi", "mps": "no"}


def test_a_fault_of_this_collection_is_no_answer() -> None:
    module = Module()
    with pytest.raises(ZeroDivisionError), answering(module):
        raise ZeroDivisionError
    assert module.answer == {}


def exceptions(path: Path) -> list[str]:
    """Public classes of a file that begin a root of their own."""
    bases = {"Exception", "RuntimeError", "ValueError", "LookupError", "KeyError", "OSError", "TypeError"}
    classes = [node for node in ast.parse(path.read_text()).body if isinstance(node, ast.ClassDef) and not node.name.startswith("_")]
    return [node.name for node in classes if node.bases and {ast.unparse(base) for base in node.bases} <= bases]


def test_every_public_error_has_the_root() -> None:
    found = {name for path in PLUGINS.rglob("*.py") for name in exceptions(path)}
    assert found == {Failure.__name__}


def test_reasons_are_not_used_twice() -> None:
    for path in PLUGINS.glob("*_utils/_*/[a-z]*.py"):
        importlib.import_module(PREFIX + ".".join(path.relative_to(PLUGINS).with_suffix("").parts))
    reasons = [kind.reason for kind in Failure.__subclasses__()]
    assert len(reasons) > 30
    assert sorted(reasons) == sorted(set(reasons))
