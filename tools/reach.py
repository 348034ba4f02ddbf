# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The unit tests that a change can reach, one file a line: `python tools/reach.py [--since COMMIT]`. `make check` runs these, CI all.

A test is reached if it is changed itself, if it imports what has changed, over any number of modules, or if it or such a module names a
changed file or one of its folders in a text. Nothing is printed where every test is reached: pytest takes that for all of them.
"""

from __future__ import annotations

import argparse
import ast
import subprocess
import sys
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Final

from tree import REPOSITORY, files

TESTS: Final = "tests/unit/"
#: Folder to the name that its modules have in front.
ROOTS: Final = {
    "files/gpushare_runtime/": "",
    "plugins/": "ansible_collections.gpushare.kubernetes.plugins.",
    "tools/lab/": "",
    "tools/": "",
    "tests/": "",
}
#: What every test depends on.
ALL: Final = ("Makefile", "pyproject.toml", "requirements/", "tests/conftest.py", "tests/unit/conftest.py", "tools/reach.py")
#: Look at the repository as a whole.
ALWAYS: Final = ("tests/unit/test_house.py", "tests/unit/test_language.py", "tests/unit/test_references.py")
_SHORTEST: Final = 4


def module_of(path: str) -> str:
    """The dotted name of a Python file; "" for one that nobody imports."""
    for folder, prefix in ROOTS.items():
        if path.startswith(folder) and path.endswith(".py"):
            return prefix + path.removeprefix(folder).removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return ""


def imported(module: str, tree: ast.Module, known: Collection[str], package: bool = False) -> set[str]:
    """Modules of this repository that a module imports, or names as programs are named (`-m a.b`)."""
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            parts = module.split(".")
            # A package's own name is one more part of where it stands.
            base = parts[: len(parts) - node.level + package] if node.level else []
            origin = ".".join([*base, *filter(None, [node.module])])
            found |= {origin, *(f"{origin}.{alias.name}" for alias in node.names)}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and "." in node.value:
            found.add(node.value)
    packages = {name.rsplit(".", count)[0] for name in found for count in range(1, name.count(".") + 1)}
    return (found | packages) & set(known)


def named(tree: ast.Module) -> frozenset[str]:
    """The texts of a module by which it may name a file or a folder."""
    constants = (node.value for node in ast.walk(tree) if isinstance(node, ast.Constant))
    return frozenset(one.strip("/") for one in constants if isinstance(one, str) and _SHORTEST <= len(one) < 200 and "\n" not in one)


def names(texts: Collection[str], path: str, folders: bool) -> bool:
    """Whether one of the texts is the path, a part of its end, or, with folders, one of its folders or a pattern for it."""
    whole = PurePosixPath(path)
    ends = {"/".join(whole.parts[start:]) for start in range(len(whole.parts))}
    if not ends.isdisjoint(texts):
        return True
    above = {str(one) for one in whole.parents}
    return folders and (not above.isdisjoint(texts) or any("*" in one and whole.match(one) for one in texts))


def imports(trees: Mapping[str, ast.Module]) -> dict[str, set[str]]:
    """A Python file → those of this repository that it imports itself, and each conftest.py that pytest imports for it."""
    modules = {module: path for path in trees if (module := module_of(path))}
    found: dict[str, set[str]] = {path: set() for path in trees}
    for module, path in modules.items():
        found[path] = {modules[other] for other in imported(module, trees[path], modules, path.endswith("/__init__.py"))}
    for conftest in (path for path in trees if path.endswith("/conftest.py")):
        for path in trees:
            if path.startswith(conftest.removesuffix("conftest.py")):
                found[path].add(conftest)
    return found


def closure(start: Collection[str], arrows: Callable[[str], Collection[str]]) -> set[str]:
    """All that the arrows lead to from there, over any number of them, and the start."""
    found, waiting = set(start), list(start)
    while waiting:
        for path in set(arrows(waiting.pop())) - found:
            found.add(path)
            waiting.append(path)
    return found


def reached(sources: Mapping[str, str], changed: Collection[str]) -> list[str]:
    """Files of unit tests. sources: every Python file of the repository with its text; changed: files of any kind."""
    trees = {path: ast.parse(text) for path, text in sources.items()}
    importers: dict[str, set[str]] = defaultdict(set)
    for path, others in imports(trees).items():
        for other in others:
            importers[other].add(path)
    texts = {path: named(tree) for path, tree in trees.items()}
    found = set(changed)
    if any(not file.endswith(".py") for file in changed):
        # These read pages, roles and data in ways of their own.
        found |= {path for path in sources if is_test(path) and PurePosixPath(path).parent == PurePosixPath(TESTS)}
    for file in changed:
        found |= {path for path, own in texts.items() if names(own, file, is_test(path))}
    return sorted(path for path in {*closure(found, importers.__getitem__), *ALWAYS} if is_test(path) and path in sources)


def is_test(path: str) -> bool:
    return path.startswith(TESTS) and PurePosixPath(path).name.startswith("test_")


def git(*arguments: str) -> Iterator[str]:
    done = subprocess.run(["git", *arguments], cwd=REPOSITORY, capture_output=True, text=True, timeout=60)
    yield from done.stdout.splitlines() if done.returncode == 0 else ()


def base() -> str:
    """The commit where this branch left the main one; HEAD on the main branch itself."""
    return next((found for one in ("origin/HEAD", "origin/main", "main") for found in git("merge-base", "HEAD", one)), "HEAD")


def changes(since: str) -> set[str]:
    """Files that differ from a commit, and new ones."""
    return {*git("diff", "--name-only", since), *git("ls-files", "--others", "--exclude-standard")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--since", default=base(), help="compare with this commit; by default where the branch began")
    changed = changes(parser.parse_args().since)
    # Of a work tree as it was checked out nothing is known, and everything is to be tested.
    if not changed or any(path.startswith(one) for path in changed for one in ALL):
        print("every unit test", file=sys.stderr)
        return
    found = reached({path: Path(REPOSITORY, path).read_text() for path in files() if path.endswith(".py")}, changed)
    every = sum(is_test(path) for path in files())
    print(
        f"{len(found)} of {every} files of unit tests, which the change of {len(changed)} files can reach; all: make unit", file=sys.stderr
    )
    print("\n".join(found))


if __name__ == "__main__":
    main()
