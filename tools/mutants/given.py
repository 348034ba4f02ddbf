# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A list of mutations by hand: `| file.py:12 | was | became |`, where ⏎ is a line break and space does not count.

A line may have more cells between the first and the last two. It means the generated mutant with these words, or else a change of the text.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import CodeType

from mutants.generate import REMOVED, Mutant, Source, plain

_NEAR = 40  # lines that the source may have moved since


@dataclass(frozen=True)
class Given:
    mutant: Mutant
    path: Path
    code: Callable[[], CodeType]
    dump: str


def read_given(table: str, sources: Iterable[Source]) -> tuple[list[Given], list[str]]:
    """What of the table could be placed in the sources, and the lines that could not."""
    sources, found, lost = list(sources), list[Given](), list[str]()
    for line in table.splitlines():
        row = cells(line)
        where = re.fullmatch(r"`?([\w/.-]+\.py):(\d+)`?", row[0])
        if len(row) < 3 or where is None:
            continue
        was, became = map(code, row[-2:])
        meant = [source for source in sources if f"/{source.file}".endswith(f"/{where[1]}")]
        one = _generated(meant, int(where[2]), was, became) or _text(meant, int(where[2]), was, became)
        if one is not None:
            found.append(one)
        elif meant:
            lost.append(line)
    return found, lost


def cells(line: str) -> list[str]:
    """The cells of a row."""
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]


def code(text: str) -> str:
    """The code in a cell."""
    text = text.replace("\\|", "|")
    return text if text == REMOVED else text.strip("`").strip()


def _generated(sources: Iterable[Source], line: int, was: str, became: str) -> Given | None:
    words = plain(was), plain(became)
    places = [
        (abs(mutant.line - line), source, mutant)
        for source in sources
        for mutant in source.mutants
        if mutant.key[2:] == words and abs(mutant.line - line) <= _NEAR
    ]
    if not places:
        return None
    _, source, mutant = min(places, key=lambda place: place[0])
    return Given(mutant, source.path, lambda: source.mutated(mutant), source.dump(mutant))


def _text(sources: Iterable[Source], line: int, was: str, became: str) -> Given | None:
    parts = [re.escape(part) for part in re.split(r"[\s⏎]+", was) if part]
    places = []
    for source in sources:
        for one in re.finditer(r"\s+".join(parts), source.text):
            place = source.text.count("\n", 0, one.start()) + 1
            if abs(place - line) <= _NEAR:
                places.append((abs(place - line), source, one.span()))
    if not places:
        return None
    _, source, span = min(places, key=lambda place: place[0])
    return _changed(source, span, was, became)


def _changed(source: Source, span: tuple[int, int], was: str, became: str) -> Given | None:
    start, end = span
    old = source.text[start:end].split("\n")
    indents = [line[: len(line) - len(line.lstrip())] for line in old]
    new = [part.strip() for part in became.split("⏎")]
    lines = [line if index == 0 else indents[min(index, len(indents) - 1)] + line for index, line in enumerate(new)]
    first = source.text.count("\n", 0, start) + 1
    mutant = Mutant(source.file, first, first + len(old) - 1, source.function_at(first), "given", was, became)
    for instead in ("", "pass") if became == REMOVED else ("\n".join(lines), " ".join(new)):
        text = source.text[:start] + instead + source.text[end:]
        try:
            dump = ast.dump(ast.parse(text))
        except SyntaxError:
            continue
        return Given(mutant, source.path, partial(compile, text, str(source.path), "exec"), dump)
    return None
