# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The files of others below tests/unit/plugins/real_files: each of them is a test, so that adding one needs no change of Python.

A folder there is a kind of file, and in it a folder is a verdict: `accepted`, `rejected`, or `rejected_N` by releases that begin with N.
A case is one file, which lies at the place that its kind has on a host; or a folder, which is the root of a host with these files alone.
Beside it there may be, with its full name and one of these ends:

.seen   where such a file is seen (`repository:path, date`), unless one of the case's files has a line with `seen:`
.says   of a rejected one: the words that our message must have, one line each; of an output of nvidia-smi also those of its problem
.fails  why the test cannot pass yet: it is expected to fail, and a test that passes is an error
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet

FOLDER = Path(__file__).parents[3] / "plugins/real_files"
BESIDE = (".seen", ".says", ".fails")


@dataclass(frozen=True)
class Case:
    """One case. place: its file or folder; says: what our message must have."""

    place: Path
    says: tuple[str, ...]

    @property
    def name(self) -> str:
        return self.place.name

    def is_rejected(self, release: str = "") -> bool:
        """Whether this release of its reader, such as "1.7.29", or any if its verdict names none, must be kept from it."""
        verdict, _underscore, by = self.place.parent.name.partition("_")
        return verdict == "rejected" and release.startswith(by)

    def files(self, alone: str) -> dict[str, bytes]:
        """Path on the host to content. alone: the path of a case that is one file."""
        if self.place.is_file():
            return {alone: self.place.read_bytes()}
        return {f"/{path.relative_to(self.place)}": path.read_bytes() for path in sorted(self.place.rglob("*")) if path.is_file()}

    def texts(self, alone: str) -> dict[str, str]:
        return {path: content.decode() for path, content in self.files(alone).items()}

    @property
    def seen(self) -> str:
        """Where such a file is seen, "" if nothing says it."""
        beside = self.place.with_name(f"{self.name}.seen")
        text = beside.read_text() if beside.exists() else ""
        texts = [text, *(content.decode(errors="replace") for content in self.files("/").values())]
        found = re.search(r"seen: *(\S.*)", "\n".join(texts))
        return found.group(1) if found else ""


def beside(place: Path, end: str) -> str:
    """The text of the file beside a case that has this end, "" without one."""
    path = place.with_name(place.name + end)
    return path.read_text() if path.exists() else ""


def cases(kind: str) -> list[Case]:
    """The cases of a kind, whatever their verdict, in the order of their paths."""
    places = [path for path in sorted((FOLDER / kind).glob("*/*")) if path.suffix not in BESIDE]
    return [Case(place, tuple(filter(None, map(str.strip, beside(place, ".says").splitlines())))) for place in places]


def parameters(kind: str) -> list[ParameterSet]:
    """The same as parameters of a test."""
    found = []
    for case in cases(kind):
        why = beside(case.place, ".fails").strip()
        marks = [pytest.mark.xfail(reason=why, strict=True)] if why else []
        found.append(pytest.param(case, id=f"{case.place.parent.name}/{case.name}", marks=marks))
    return found


def kept(before: str, after: str, *changeable: str) -> list[str]:
    """The lines of a text that are not in the other one, in their order, but for those with one of these words."""
    lines = iter(after.splitlines())
    wanted = [line for line in before.splitlines() if not any(word in line for word in changeable)]
    return [line for line in wanted if line not in lines]


def line_ends(text: str) -> set[str]:
    """Those that it has."""
    return set(re.findall(r"\r\n|\r|\n", text))
