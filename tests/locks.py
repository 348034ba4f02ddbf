# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The locked requirements name everything that their inputs ask for, every pin has hashes, and the locks agree."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RUNTIME = ROOT / "files/gpushare_runtime/requirements"
KUBECTL = ROOT / "files/gpushare_runtime/requirements-kubectl"
DEV = ROOT / "requirements/dev"
DOCS = ROOT / "requirements/docs"
LOCK = ROOT / "requirements/lock"


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def wanted(path: Path) -> set[str]:
    lines = (line.split("#")[0].strip() for line in path.read_text().splitlines())
    return {normal(re.split(r"[<>=!~ \[;]", line)[0]) for line in lines if line and not line.startswith("-")}


def pins(path: Path) -> dict[str, set[str]]:
    """Name → the pins of it; SystemExit if one has no hash."""
    found: dict[str, set[str]] = {}
    for block in re.split(r"\n(?=[A-Za-z0-9])", path.read_text()):
        name, _, rest = block.partition("==")
        if "--hash=sha256:" not in rest:
            sys.exit(f"{path}: {block.splitlines()[0]!r} has no hash; run `make lock`")
        found.setdefault(normal(name), set()).add(rest.split("\\")[0].split(";")[0].strip())
    return found


def main() -> None:
    problems = []
    locks = {}
    for base in (RUNTIME, KUBECTL, DEV, DOCS, LOCK):
        lock = base.with_suffix(".txt")
        locks[base] = pins(lock)
        problems += [f"{lock}: {name} is wanted but not locked" for name in wanted(base.with_suffix(".in")) - set(locks[base])]
    if not set(locks[RUNTIME]) < set(locks[KUBECTL]):
        problems.append(f"{KUBECTL}.txt is not {RUNTIME}.txt and more")
    for one, other in ((RUNTIME, KUBECTL), (KUBECTL, DEV), (DEV, DOCS)):
        for name, versions in locks[one].items():
            if name in locks[other] and not locks[other][name] <= versions:
                problems.append(f"{name} is locked to {versions} in {one.name}.txt and to {locks[other][name]} in {other.name}.txt")
    if problems:
        sys.exit("\n".join([*problems, "run `make lock`"]))
    print("; ".join(f"{len(found)} pins in {base.name}.txt" for base, found in locks.items()))


if __name__ == "__main__":
    main()
