# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The locked requirements name everything that their inputs ask for, every pin has hashes, and the locks agree.

`python tools/locks.py --within LOCK` prints what `make lock` keeps of a lock: each pin may move to a later patch release, which mends
faults and changes nothing else. Another minor release is chosen by hand, in the lock's input. ansible-core moves to the newest.
"""

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
# The newest for each Python, whatever was locked.
MOVES = ("ansible-core",)
FIRST_YEAR = 2000


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


def within(lock: str) -> list[str]:
    """The constraints under which each pin of a lock may move: up to the next minor release, up to any where the first number is a year."""
    made = []
    for name, version, marker in re.findall(r"^([A-Za-z0-9._-]+)==([0-9][^ \\;]*)(?: ; ([^\\\n]*[^\\\n ]))?", lock, re.MULTILINE):
        if normal(name) in MOVES:
            continue
        numbers = [int(one) for one in re.findall(r"[0-9]+", version.split("+")[0])[:2]]
        upto = "" if numbers[0] >= FIRST_YEAR else f",<{numbers[0]}.{[*numbers, 0][1] + 1}"
        made.append(f"{name}>={version}{upto}{' ; ' * bool(marker)}{marker}")
    return made


def main() -> None:
    if sys.argv[1:2] == ["--within"]:
        print("\n".join(within(Path(sys.argv[2]).read_text())))
        return
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
