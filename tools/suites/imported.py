# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What the test files of a suite say themselves: the modules of tests that they import, and by a mark the suite that runs them."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import PurePosixPath
from typing import Final

from reach import closure, imported, module_of
from tree import REPOSITORY, files

#: What all tests outside tests/unit stand on: a suite names it where a change of it is worth its time.
COMMON: Final = (
    "tests/conftest.py",
    "tests/labs.py",
    "tests/lab/",
    "tests/results.py",
    "tests/timeline.py",
    *(f"tests/e2e/{name}.py" for name in ("api", "checks", "cluster", "conftest", "manifests", "running", "samples")),
)
_MARK: Final = re.compile(r"^pytestmark = .*\bpytest\.mark\.suite\(\"([\w-]+)\"\)", re.MULTILINE)


@cache
def helpers(tests: tuple[str, ...]) -> frozenset[str]:
    """The files of tests that some test files, or those of a folder, import, over any number of modules, and the files themselves."""
    names = {test.partition("::")[0] for test in tests}
    own = [path for path in _modules().values() if path in names or any(path.startswith(f"{name}/") for name in names)]
    return frozenset(closure(own, _imports))


@cache
def marked() -> dict[str, tuple[str, ...]]:
    """Suite → the test files with `pytestmark = pytest.mark.suite("NAME")`, sorted."""
    found: dict[str, list[str]] = {}
    for path in _modules().values():
        if not path.startswith("tests/unit/"):
            for name in _MARK.findall((REPOSITORY / path).read_text()):
                found.setdefault(name, []).append(path)
    return {name: tuple(sorted(paths)) for name, paths in found.items()}


@cache
def _modules() -> dict[str, str]:
    """Each module of tests by its name."""
    return {module_of(path): path for path in files() if path.startswith("tests/") and path.endswith(".py")}


@cache
def _imports(path: str) -> set[str]:
    tree = ast.parse((REPOSITORY / path).read_text())
    found = {_modules()[other] for other in imported(module_of(path), tree, _modules(), path.endswith("/__init__.py"))}
    if PurePosixPath(path).name.startswith("test_"):
        # pytest imports these for every test below them.
        above = (str(folder / "conftest.py") for folder in PurePosixPath(path).parents)
        found |= {conftest for conftest in above if module_of(conftest) in _modules()}
    return {other for other in found if not other.startswith(COMMON)}
