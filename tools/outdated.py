# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Which programs of others the tests run, and which of them have a newer release today: `make outdated`.

The rows are those of tools/lab/versions.ini, and ansible-core as locked in requirements/dev.txt. The module proxy is asked by `go list`,
pip's index by pip. A mirror's list need not be whole, so the versions that would come next are asked for one by one, too. Where no
program can ask, a person has looked: `read` says when, and after READ_DAYS it has to be done again.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date, datetime, timezone
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tools/lab")]

import cores  # noqa: E402
import pythons  # noqa: E402
from gpushare_lab.golang import go_command, go_environment  # noqa: E402
from gpushare_lab.prepare import the_cache  # noqa: E402
from gpushare_lab.versions import PROGRAMS, Program  # noqa: E402

READ_DAYS: Final = 90
#: How far a mirror's list is looked past: the next patches, and the next minor releases.
PATCHES, MINORS = 3, 2
_SECONDS: Final = 120

#: A version's numbers, and its pre-release, which comes before the release: ((1, 38, 0), (0, "beta", 0)) and ((1, 38, 0), (1, "", 0)).
Order = tuple[tuple[int, ...], tuple[int, str, int]]


class Unknown(Exception):
    """Why nobody can say which is the newest."""


@dataclass(frozen=True)
class Row:
    """A program, the newest version of its line, and why it is not known; `wrong`: why no release can be made with it."""

    program: Program
    newest: str
    wrong: str = ""

    def __str__(self) -> str:
        one = self.program
        words = self.wrong or (f"{self.newest}: {one.reason}" if self.newest != one.version else "")
        return f"{one.name:26} {one.version:16} {words}".rstrip()


def order(version: str) -> Order | None:
    """None for what is no version of three numbers, with alpha, beta or rc."""
    found = re.fullmatch(r"(\d+)\.(\d+)\.(\d+)(?:(?:-|)(alpha|beta|rc|a|b)\.?(\d+))?", version)
    if not found:
        return None
    numbers = tuple(int(part) for part in found.groups()[:3])
    return numbers, ((0, found[4], int(found[5])) if found[4] else (1, "", 0))


def newest_of(program: Program, versions: Iterable[str]) -> str:
    """The newest that counts for this row. Unknown where there is none."""
    known = [(at, version) for version in versions if (at := order(version))]
    line = [
        (at, version)
        for at, version in known
        if (version.startswith(f"{program.line}.") if program.line else True) and (at[1][0] or program.pre)
    ]
    if not line:
        raise Unknown(f"{program.source} has no version {program.line or 'without a pre-release'}")
    return max(line)[1]


def following(program: Program, version: str) -> list[str]:
    """The versions that would come after this one: patches, and the first ones of the next minor releases."""
    major, minor, patch = (int(part) for part in version.partition("-")[0].split("."))
    patches = [f"{major}.{minor}.{patch + step}" for step in range(PATCHES + 1) if step or "-" in version]
    if program.line:
        return patches
    return patches + [f"{major}.{minor + step}.{number}" for step in range(1, MINORS + 1) for number in range(PATCHES)]


def judge(program: Program, newest: str, today: date) -> Row:
    """Whether a release can be made with it."""
    if program.read and (days := (today - program.read).days) > READ_DAYS:
        return Row(program, newest, f"{program.source} was read {days} days ago: read it again, and write the day and what is new there")
    if newest != program.version and not program.reason:
        return Row(program, newest, f"{newest} is there: run the suites with it, or write the reason why not")
    return Row(program, newest)


class Proxies:
    """The module proxy and pip's index of this machine."""

    def __init__(self) -> None:
        cache = the_cache()
        self._go, self._environment = str(go_command(cache)), go_environment(cache, cgo=False)

    def newest(self, program: Program) -> str:
        """The newest version of a row today. Unknown where it cannot be asked."""
        kind, _, name = program.source.partition(":")
        if kind == "pypi":
            return newest_of(program, [cores.offered(pythons.DEVELOPMENT[-1], name)])
        if kind != "go":
            return program.newest
        known = {program.version, *self._listed(name, program.version)}
        while True:
            newest = newest_of(program, known)
            known |= {version for version in following(program, newest) if self._has(name, version)}
            if newest_of(program, known) == newest:
                return newest

    def _listed(self, module: str, has: str) -> list[str]:
        try:
            listed = self._list("-versions", "-f", "{{range .Versions}}{{.}} {{end}}", module)
        except Unknown:
            # Not every mirror has a list of each module whose versions it has.
            if not self._has(module, has):
                raise
            return []
        return [version.removeprefix("v") for version in listed.split()]

    def _has(self, module: str, version: str) -> bool:
        try:
            return bool(self._list(f"{module}@v{version}"))
        except Unknown:
            return False

    def _list(self, *words: str) -> str:
        command = [self._go, "list", "-m", *words]
        done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, env=self._environment, cwd="/", check=False)
        if done.returncode:
            raise Unknown(f"go list: {done.stderr.strip()[-80:]}")
        return done.stdout


def rows(newest: Callable[[Program], str], today: date, programs: Sequence[Program]) -> list[Row]:
    """Every row, judged."""

    def one(program: Program) -> Row:
        try:
            return judge(program, newest(program), today)
        except (Unknown, OSError, subprocess.TimeoutExpired) as error:
            return Row(program, "", f"cannot be asked: {error}")

    with ThreadPoolExecutor(8) as pool:
        return list(pool.map(one, programs))


def ansible_core() -> Program:
    """That of the lock for the newest Python."""
    pinned = re.findall(r"^ansible-core==(\S+)", (ROOT / "requirements/dev.txt").read_text(), re.MULTILINE)
    return Program("ansible-core", max(pinned, key=lambda version: order(version) or ((), (0, "", 0))), "pypi:ansible-core")


def today() -> list[Row]:
    """Every row, judged by the proxies of this machine."""
    return rows(Proxies().newest, datetime.now(timezone.utc).date(), [*PROGRAMS.values(), ansible_core()])


def problems() -> list[str]:
    """A line for each row with which no release can be made."""
    return [str(row) for row in today() if row.wrong]


def main() -> int:
    judged = today()
    for row in judged:
        print(row)
    wrong = sum(bool(row.wrong) for row in judged)
    print(f"{len(judged)} programs, {wrong} without a reason" if wrong else f"{len(judged)} programs: each is the newest, or says why not")
    return bool(wrong)


if __name__ == "__main__":
    sys.exit(main())
