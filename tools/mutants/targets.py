# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Whose mutants which tests must kill: derived from folders and imports.

A source is a target if a unit test of its own room imports it, or has its name. Its tests are all of that room that reach it by imports. A
room is a folder below the runtime, or one below `plugins/module_utils` and `plugins/plugin_utils`; its tests stand in the folder of its
name below `tests/unit`. Near are the tests that have its name, or, without one, those that import it: most mutants end there.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Final

from reach import closure, imports, is_test
from tree import files

ROOT: Final = Path(__file__).parents[2]
_RUNTIME: Final = "files/gpushare_runtime/gpushare_runtime"
_ROOMS: Final = {
    f"{_RUNTIME}/": "tests/unit/runtime/",
    "plugins/module_utils/_": "tests/unit/plugins/",
    "plugins/plugin_utils/_": "tests/unit/plugins/",
}
# What protoc wrote, what is only imported, and the arguments of programs, which tests give to processes of their own.
_NO_TARGETS: Final = ("*_pb2*.py", "__init__.py", "gpushare_runtime/*/main.py", "gpushare_runtime/*/options.py")
# Of whole programs, of many seeds, of real time: what they notice is not worth their minutes here.
TOO_SLOW: Final = frozenset(
    f"tests/unit/{name}.py"
    for name in (
        "runtime/device_plugin/test_main",
        "runtime/device_plugin/test_plugin",
        "runtime/device_plugin/test_storm",
        "runtime/device_plugin/test_whole_plugin",
        "runtime/extender/test_hostile",
        "runtime/extender/test_main",
        "runtime/mps/test_canary",
        "runtime/mps/test_endings",
    )
)
# Source → tests of other rooms, which notice what those of its own let live.
FURTHER: Final[Mapping[str, tuple[str, ...]]] = {
    source: tuple(f"tests/unit/{test}.py" for test in tests)
    for source, tests in {
        f"{_RUNTIME}/core/ledger.py": ("runtime/extender/test_cache", "runtime/extender/test_reservations"),
        f"{_RUNTIME}/core/mps.py": ("runtime/mps/test_shares",),
        f"{_RUNTIME}/core/node_ledger.py": ("runtime/extender/test_cache",),
        f"{_RUNTIME}/core/placement/explain.py": ("runtime/extender/test_diagnosis", "runtime/extender/test_verbs"),
        f"{_RUNTIME}/core/placement/preemption.py": ("runtime/extender/test_reservations",),
        f"{_RUNTIME}/core/placement/ranking.py": ("runtime/extender/test_verbs",),
        f"{_RUNTIME}/core/placement/view.py": ("runtime/extender/test_reservations", "runtime/extender/test_verbs"),
        f"{_RUNTIME}/device_plugin/kubelet/checkpoint.py": ("runtime/doctor/test_kubelet",),
        f"{_RUNTIME}/extender/cache.py": ("runtime/core/placement/test_budgets",),
        "plugins/module_utils/_change/engine.py": (
            "plugins/daemon/test_files",
            "plugins/driver/test_apply",
            "plugins/toolkit/test_toolkit",
        ),
        "plugins/module_utils/_cluster/objects.py": ("plugins/manifests/test_in_cluster",),
        "plugins/module_utils/_facts/diagnosis.py": ("plugins/verdict/test_hosts",),
        "plugins/module_utils/_host/files.py": ("plugins/change/test_transaction",),
        "plugins/plugin_utils/_verdict/daemons.py": ("plugins/evidence/test_files",),
    }.items()
}


@dataclass(frozen=True)
class NearAndFar:
    """The test files of a source, as paths in the repository. far: those that must notice what the near ones let live."""

    near: tuple[str, ...]
    far: tuple[str, ...] = ()

    @property
    def all(self) -> tuple[str, ...]:
        return self.near + self.far


@cache
def targets() -> Mapping[str, NearAndFar]:
    """Path of a source in the repository to its tests."""
    python = [path for path in files() if path.endswith(".py") and path.startswith((*_ROOMS, "tests/unit/"))]
    return derived({path: (ROOT / path).read_text() for path in python})


def derived(sources: Mapping[str, str]) -> dict[str, NearAndFar]:
    """The same of any files. sources: path to text."""
    arrows = imports({path: ast.parse(text) for path, text in sources.items()})
    reach = {path: closure([path], arrows.__getitem__) for path in sources if is_test(path) and path not in TOO_SLOW}
    found = {}
    for source in sorted(sources):
        room = room_of(source)
        tests = [test for test, reached in reach.items() if room and test.startswith(room) and source in reached]
        near = [test for test in tests if is_named_after(test, source)] or [test for test in tests if source in arrows[test]]
        if near:
            found[source] = NearAndFar(tuple(sorted(near)), tuple(sorted({*tests, *FURTHER.get(source, ())}.difference(near))))
    return found


def room_of(source: str) -> str:
    """The folder of the tests of a source's room; "" for a file that is no target."""
    if any(PurePosixPath(source).match(pattern) for pattern in _NO_TARGETS):
        return ""
    return next((f"{tests}{source.removeprefix(start).split('/')[0]}/" for start, tests in _ROOMS.items() if source.startswith(start)), "")


def is_named_after(test: str, source: str) -> bool:
    """Whether a test file has the name of a source, or that and more."""
    name = f"test_{PurePosixPath(source).stem}"
    return PurePosixPath(test).stem == name or PurePosixPath(test).stem.startswith(f"{name}_")


def code_of_ours() -> list[Path]:
    """All Python files whose functions the targets may call."""
    below = [path for folder in (_RUNTIME, "plugins") for path in (ROOT / folder).rglob("*.py")]
    return [path for path in below if "_pb2" not in path.name]
