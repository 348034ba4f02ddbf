# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads TOML 1.0 and remembers where everything stands.

Hosts may run Python 3.8, which has no tomllib. And toml_edit.py needs the places. Dates and times, which no container
runtime uses, are rejected; all else is read as tomllib reads it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Set, Tuple

from .failure import Failure

Path = Tuple[str, ...]

#: Of digits. Python neither reads nor prints an integer of some thousand.
LONGEST_NUMBER = 1000
BOM = "\ufeff"

_SPACE = re.compile(r"[ \t]*")
_FILL = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
_BARE = re.compile(r"[A-Za-z0-9_-]+")
_NEWLINE = re.compile(r"\r?\n|\Z")
_COMMENT = re.compile(r"#([^\r\n]*)")
_DATE = re.compile(r"\d{4}-\d\d-\d\d|\d\d:\d\d")
_NUMBER = re.compile(
    r"0x[0-9A-Fa-f](?:_?[0-9A-Fa-f])*|0o[0-7](?:_?[0-7])*|0b[01](?:_?[01])*"
    r"|[+-]?(?:0|[1-9](?:_?[0-9])*)((?:\.[0-9](?:_?[0-9])*)?(?:[eE][+-]?[0-9](?:_?[0-9])*)?)"
)
_WORD = re.compile(r"true|false|[+-]?(?:inf|nan)")
_STRINGS = (
    (re.compile(r'"""((?:[^"\\]|\\.|"{1,2}(?!"))*)("{3,5})', re.DOTALL), True, True),
    (re.compile(r"'''((?:[^']|'{1,2}(?!'))*)('{3,5})"), False, True),
    (re.compile(r'"((?:[^"\\\n]|\\[^\n])*)(")'), True, False),
    (re.compile(r"'([^'\n]*)(')"), False, False),
)
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|U([0-9A-Fa-f]{8})|([ \t]*\r?\n[ \t\r\n]*)|(.?))", re.DOTALL)
_ESCAPES = {"b": "\b", "t": "\t", "n": "\n", "f": "\f", "r": "\r", '"': '"', "\\": "\\"}
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
_CONTROL_BUT_NEWLINE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")


class TomlError(Failure, ValueError):
    """The text is not TOML that we read, or not the layout that we can edit; says which line."""


@dataclass(frozen=True)
class Header:
    """A line `[a.b]`. start and end: offsets of the whole line; raw: each part of the path as written."""

    path: Path
    start: int
    end: int
    raw: Path


@dataclass(frozen=True)
class Item:
    """A key with a value. start and end: offsets of the whole statement, which is lines, or in an inline table key to value.

    value: offsets of the value; header: index of the header that it stands below, -1 before the first.
    """

    path: Path
    start: int
    end: int
    value: Tuple[int, int]
    header: int
    inline: bool


@dataclass(frozen=True)
class Parsed:
    """data: as tomllib gives it. headers and items: in the order of the text, without those in arrays.

    inline_tables: path to the offsets of its braces. arrays: path to the offsets of each element.
    """

    data: Dict[str, Any]
    headers: List[Header]
    items: List[Item]
    inline_tables: Dict[Path, Tuple[int, int]]
    arrays: Dict[Path, List[Tuple[int, int]]]


def parse(text: str) -> Parsed:
    """Read it all. TomlError, with the line, for what is not TOML."""
    return _Parser(text).document()


def loads(text: str) -> Dict[str, Any]:
    """The data alone."""
    return parse(text).data


class _Parser:
    def __init__(self, text: str) -> None:
        self.text = text
        self.headers: List[Header] = []
        self.items: List[Item] = []
        self.inline_tables: Dict[Path, Tuple[int, int]] = {}
        self.arrays: Dict[Path, List[Tuple[int, int]]] = {}
        self.data: Dict[str, Any] = {}
        # The kind of each path that is not a plain implicit table: header, array (of tables), value, or the section that dotted it.
        self.kinds: Dict[Path, str] = {}
        self.in_arrays = False
        bare_return = re.search(r"\r(?!\n)", text)
        if bare_return:
            raise self.error(bare_return.start(), "found a carriage return without a newline")

    def error(self, at: int, message: str) -> TomlError:
        line = self.text.count("\n", 0, at) + 1
        there = self.text[at : at + 20].partition("\n")[0]
        return TomlError(f"line {line}: {message}: {there!r}")

    def document(self) -> Parsed:
        # Editors on Windows put a byte order mark first, and the readers of these files pass over it.
        at, section = int(self.text.startswith(BOM)), 0
        table = self.data
        path: Path = ()
        while at < len(self.text):
            start, at = at, self.space(at)
            if self.text.startswith("[", at):
                section += 1
                path, table, at = self.header(start, at)
            elif at < len(self.text) and self.text[at] not in "#\r\n":
                at = self.statement(start, at, table, path, f"dotted {section}")
                continue
            at = self.end_of_line(at)
        return Parsed(self.data, self.headers, self.items, self.inline_tables, self.arrays)

    def header(self, start: int, at: int) -> Tuple[Path, Dict[str, Any], int]:
        array = self.text.startswith("[[", at)
        opened = at
        path, raw, at = self.key(self.space(at + (2 if array else 1)))
        at = self.expect("]]" if array else "]", at)
        parent, name = self.descend(path[:-1], opened), path[-1]
        kind = self.kinds.get(path)
        if array:
            if kind not in (None, "array") or (kind is None and name in parent):
                raise self.error(opened, "the table is defined already")
            for known in [known for known in self.kinds if known[: len(path)] == path]:
                del self.kinds[known]
            self.kinds[path] = "array"
            table: Dict[str, Any] = {}
            parent.setdefault(name, []).append(table)
        else:
            if kind is not None or not isinstance(parent.get(name, {}), dict):
                raise self.error(opened, "the table is defined already")
            self.kinds[path] = "header"
            table = parent.setdefault(name, {})
        self.in_arrays = any(self.kinds.get(path[:size]) == "array" for size in range(1, len(path) + 1))
        if not self.in_arrays:
            self.headers.append(Header(path, start, self.end_of_line(at), raw))
        return path, table, at

    def descend(self, path: Path, at: int) -> Dict[str, Any]:
        """The table at `path`, made where it is missing; the last element of an array of tables."""
        table = self.data
        for size, part in enumerate(path, 1):
            if self.kinds.get(path[:size]) == "value":
                raise self.error(at, f"{'.'.join(path[:size])} is a value, not a table")
            inner = table.setdefault(part, {})
            table = inner[-1] if isinstance(inner, list) else inner
        return table

    def statement(self, start: int, at: int, table: Dict[str, Any], section: Path, dotted: str) -> int:
        opened = at
        key, _dummy, at = self.key(at)
        at = self.space(self.expect("=", at))
        for size in range(1, len(key)):
            path = section + key[:size]
            if self.kinds.get(path, dotted) != dotted:
                raise self.error(opened, f"{'.'.join(path)} is defined elsewhere")
            self.kinds[path] = dotted
            table = table.setdefault(key[size - 1], {})
        if key[-1] in table:
            raise self.error(opened, "the key is there twice")
        path = section + key
        place = len(self.items)
        value, end = self.value(at, None if self.in_arrays else path)
        self.kinds[path] = "value"
        table[key[-1]] = value
        after = self.end_of_line(end)
        if not self.in_arrays:
            self.items.insert(place, Item(path, start, after, (at, end), len(self.headers) - 1, False))
        return after

    def key(self, at: int) -> Tuple[Path, Path, int]:
        """A dotted key: its parts, each as written, and where it ends (with the space behind)."""
        parts: List[str] = []
        raw: List[str] = []
        while True:
            match = _BARE.match(self.text, at)
            if match:
                part, end = match.group(), match.end()
            elif self.text.startswith(("'", '"'), at) and not self.text.startswith(("'''", '"""'), at):
                part, end = self.string(at)
            else:
                raise self.error(at, "expected a key")
            parts.append(part)
            raw.append(self.text[at:end])
            at = self.space(end)
            if not self.text.startswith(".", at):
                return tuple(parts), tuple(raw), at
            at = self.space(at + 1)

    def value(self, at: int, path: Optional[Path]) -> Tuple[Any, int]:
        """A value and its end. path: where it is, None if what is in it is not to be remembered."""
        first = self.text[at : at + 1]
        if first in ("'", '"') and first:
            return self.string(at)
        if first == "[":
            return self.array(at, path)
        if first == "{":
            return self.inline_table(at, path)
        if _DATE.match(self.text, at):
            raise self.error(at, "dates and times are not supported")
        match = _WORD.match(self.text, at)
        if match:
            word = match.group()
            return {"true": True, "false": False}[word] if word in ("true", "false") else float(word), match.end()
        match = _NUMBER.match(self.text, at)
        if not match:
            raise self.error(at, "expected a value")
        digits = match.group().replace("_", "")
        if len(digits) > LONGEST_NUMBER:
            raise self.error(at, f"a number of {len(digits)} digits, expected at most {LONGEST_NUMBER}")
        return float(digits) if match.group(1) else int(digits, 0 if digits[1:2] in ("x", "o", "b") else 10), match.end()

    def string(self, at: int) -> Tuple[str, int]:
        for pattern, escapes, many_lines in _STRINGS:
            match = pattern.match(self.text, at)
            if not match:
                continue
            text = match.group(1) + (match.group(2)[3:] if many_lines else "")
            text = text.replace("\r\n", "\n")
            control = (_CONTROL_BUT_NEWLINE if many_lines else _CONTROL).search(text)
            if control:
                raise self.error(at, f"found the control character {control.group()!r} in a string")
            if many_lines and text.startswith("\n"):
                text = text[1:]
            return (self.unescaped(text, at, many_lines) if escapes else text), match.end()
        raise self.error(at, "the string does not end")

    def unescaped(self, text: str, at: int, many_lines: bool) -> str:
        def character(match: "re.Match[str]") -> str:
            short, long, line_end, letter = match.groups()
            if short or long:
                number = int(short or long, 16)
                if number > 0x10FFFF or 0xD800 <= number <= 0xDFFF:
                    raise self.error(at, f"{match.group()} is not a character")
                return chr(number)
            if line_end is not None and many_lines:
                return ""
            if letter in _ESCAPES:
                return _ESCAPES[letter]
            raise self.error(at, f"unknown escape {match.group()} in a string")

        return _ESCAPE.sub(character, text)

    def array(self, at: int, path: Optional[Path]) -> Tuple[List[Any], int]:
        values: List[Any] = []
        places: List[Tuple[int, int]] = []
        at = self.fill(at + 1)
        while not self.text.startswith("]", at):
            value, end = self.value(at, None)
            values.append(value)
            places.append((at, end))
            at = self.fill(end)
            if self.text.startswith(",", at):
                at = self.fill(at + 1)
            elif not self.text.startswith("]", at):
                raise self.error(at, "expected a comma or the end of the array")
        if path is not None:
            self.arrays[path] = places
        return values, at + 1

    def inline_table(self, at: int, path: Optional[Path]) -> Tuple[Dict[str, Any], int]:
        opened = at
        table: Dict[str, Any] = {}
        values: Set[Path] = set()
        at = self.space(at + 1)
        while not (self.text.startswith("}", at) and not table):
            start = at
            key, _dummy, at = self.key(at)
            inner = table
            for size in range(1, len(key)):
                if key[:size] in values:
                    raise self.error(start, f"{'.'.join(key[:size])} is a value already")
                inner = inner.setdefault(key[size - 1], {})
            if key[-1] in inner:
                raise self.error(start, "the key is there twice")
            at = self.space(self.expect("=", at))
            below = None if path is None else path + key
            place = len(self.items)
            value, end = self.value(at, below)
            inner[key[-1]] = value
            values.add(key)
            if below is not None:
                self.items.insert(place, Item(below, start, end, (at, end), len(self.headers) - 1, True))
            at = self.space(end)
            if self.text.startswith("}", at):
                break
            at = self.space(self.expect(",", at))
        if path is not None:
            self.inline_tables[path] = (opened, at + 1)
        return table, at + 1

    def space(self, at: int) -> int:
        match = _SPACE.match(self.text, at)
        return match.end() if match else at

    def fill(self, at: int) -> int:
        """Past spaces, newlines and comments."""
        match = _FILL.match(self.text, at)
        end = match.end() if match else at
        for comment in _COMMENT.finditer(self.text, at, end):
            self.no_control(comment)
        return end

    def expect(self, what: str, at: int) -> int:
        if not self.text.startswith(what, at):
            raise self.error(at, f"expected {what!r}")
        return at + len(what)

    def end_of_line(self, at: int) -> int:
        """Past the space, the comment and the newline that may follow."""
        at = self.space(at)
        comment = _COMMENT.match(self.text, at)
        if comment:
            self.no_control(comment)
            at = comment.end()
        match = _NEWLINE.match(self.text, at)
        if not match:
            raise self.error(at, "expected the end of the line")
        return match.end()

    def no_control(self, comment: "re.Match[str]") -> None:
        control = _CONTROL.search(comment.group())
        if control:
            raise self.error(comment.start(), f"found the control character {control.group()!r} in a comment")
