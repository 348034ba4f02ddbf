# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Changes single values of a TOML text and leaves every other byte alone.

New lines have the form of their neighbours: indentation, quotes, blank lines, line ends. Every edit is read back: if the data is
not exactly the old data with that one change, TomlError, and nothing is returned. The lines that `set_value` or `append` added,
`remove` or `drop` takes away to the byte.
"""

from __future__ import annotations

import copy
import json
import re
from typing import Any, Dict, List, Optional, Tuple

from .toml import BOM, Header, Item, Parsed, Path, TomlError, parse

_BARE = re.compile(r"[A-Za-z0-9_-]+\Z")


def set_value(text: str, path: Path, value: Any) -> str:
    """`path` shall hold `value`: text, a number, a truth value, a list of those, or {} for a table without keys."""
    parsed = parse(text)
    wanted = copy.deepcopy(parsed.data)
    table = wanted
    for part in path[:-1]:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            raise TomlError(f"{shown(path)} cannot be set: {part} is not a table")
    if path[-1] in table and _same(table[path[-1]], value):
        return text
    table[path[-1]] = value
    return _checked(_Editor(text, parsed).put(path, value), wanted, path)


def append(text: str, path: Path, element: str) -> str:
    """The list at `path` shall have `element` as well, as its last."""
    parsed = parse(text)
    wanted = copy.deepcopy(parsed.data)
    places = parsed.arrays.get(path)
    if places is None:
        return set_value(text, path, [element])
    _table(wanted, path)[path[-1]].append(element)
    rendered = _render(element, _quote(text, parsed))
    if not places:
        opened = next(item.value[0] for item in parsed.items if item.path == path) + 1
        return _checked(text[:opened] + rendered + text[opened:], wanted, path)
    end = places[-1][1]
    before = text[places[-2][1] : places[-1][0]] if len(places) > 1 else ", "
    between = before if re.match(r",\s*\Z", before) else ", "
    return _checked(text[:end] + between + rendered + text[end:], wanted, path)


def remove(text: str, path: Path) -> str:
    """There shall be no `path`, neither as a key nor as a table with all that is in it."""
    parsed = parse(text)
    wanted = copy.deepcopy(parsed.data)
    if _lookup(wanted, path) is None:
        return text
    del _table(wanted, path)[path[-1]]
    return _checked(_Editor(text, parsed).take(path), wanted, path)


def drop(text: str, path: Path, element: str) -> str:
    """The list at `path` shall not have `element`."""
    parsed = parse(text)
    wanted = copy.deepcopy(parsed.data)
    values = _lookup(wanted, path)
    if not isinstance(values, list) or element not in values:
        return text
    places, index = parsed.arrays[path], values.index(element)
    del values[index]
    start, end = places[index]
    if index:
        start = places[index - 1][1]
    elif len(places) > 1:
        end = places[1][0]
    else:
        comma = re.compile(r"\s*,").match(text, end)
        end = comma.end() if comma else end
    return _checked(text[:start] + text[end:], wanted, path)


def remove_empty_header(text: str, path: Path) -> str:
    """The line `[path]` shall not be there if no key stands below it."""
    parsed = parse(text)
    for index, header in enumerate(parsed.headers):
        if header.path == path and not any(item.header == index for item in parsed.items):
            return _checked(_cut(text, [_with_blank_line(text, header.start, header.end)]), parsed.data, path + ("",))
    return text


def shown(path: Path) -> str:
    """The path as a TOML key."""
    return ".".join(_render_key(part, '"') for part in path)


class _Editor:
    """One text and where everything stands in it."""

    def __init__(self, text: str, parsed: Parsed) -> None:
        self.text = text
        self.parsed = parsed
        self.newline = "\r\n" if "\r\n" in text else "\n"
        self.quote = _quote(text, parsed)

    def put(self, path: Path, value: Any) -> str:
        item = next((item for item in self.parsed.items if item.path == path), None)
        if item is not None:
            start, end = item.value
            quote = self.text[start] if self.text[start] in "'\"" else self.quote
            return self.text[:start] + _render(value, quote) + self.text[end:]
        rendered = _render(value, self.quote)
        for size in range(len(path) - 1, 0, -1):
            if path[:size] in self.parsed.inline_tables:
                return self.put_inline(path[:size], path[size:], rendered)
        parent = path[:-1]
        headers = [header.path for header in self.parsed.headers]
        if value == {} and path not in headers and not self.dotted(parent):
            return self.new_section(path, None)
        if parent == () or parent in headers:
            index = headers.index(parent) if parent else -1
            return self.put_line(index, f"{self.key(path[-1:])} = {rendered}")
        dotted = self.dotted(parent)
        if dotted:
            section = self.section_path(dotted[-1])
            return self.insert(dotted[-1].end, [self.indent(dotted[-1].start) + f"{self.key(path[len(section) :])} = {rendered}"])
        return self.new_section(parent, f"{self.key(path[-1:])} = {rendered}")

    def put_inline(self, table: Path, rest: Path, rendered: str) -> str:
        opened, closed = self.parsed.inline_tables[table]
        line = f"{self.key(rest)} = {rendered}"
        ends = [item.end for item in self.parsed.items if item.inline and item.start > opened and item.end < closed]
        if ends:
            return self.text[: max(ends)] + ", " + line + self.text[max(ends) :]
        middle = opened + 1 + (closed - opened - 1) // 2
        return self.text[:middle] + line + self.text[middle:]

    def put_line(self, index: int, line: str) -> str:
        items = self.items(index)
        if items:
            return self.insert(items[-1].end, [self.indent(items[-1].start) + line])
        if index < 0:
            return self.insert(0, [line])
        header = self.parsed.headers[index]
        return self.insert(header.end, [self.indent(header.start) + self.key_step(header.path) + line])

    def new_section(self, path: Path, line: Optional[str]) -> str:
        indent = self.header_indent(path)
        lines = [f"{indent}[{self.header_key(path)}]"]
        if line is not None:
            lines.append(indent + self.key_step(path) + line)
        inner = [header for header in self.parsed.headers if header.path[: len(path)] == path]
        if inner:
            at = self.above_comments(inner[0].start)
            blank = _with_blank_line(self.text, at, at)[0]
            return self.insert(blank, [""] * (blank < at) + lines)
        at = self.end_of_family(path)
        return self.insert(at, [""] * (at > 0 and self.blank_above(path)) + lines)

    def take(self, path: Path) -> str:
        inline = [item for item in self.parsed.items if item.path == path and item.inline]
        if inline:
            return self.take_inline(inline[0])
        spans: List[Tuple[int, int]] = []
        for index, header in enumerate(self.parsed.headers):
            if header.path[: len(path)] == path:
                spans.append(_with_blank_line(self.text, header.start, self.section_end(index)))
        for item in self.parsed.items:
            if item.path[: len(path)] == path and not item.inline and not any(start <= item.start < end for start, end in spans):
                spans.append((item.start, item.end))
        return _cut(self.text, spans)

    def take_inline(self, item: Item) -> str:
        table = max((path for path in self.parsed.inline_tables if item.path[: len(path)] == path and path != item.path), key=len)
        opened, closed = self.parsed.inline_tables[table]
        siblings = [key for key in self.parsed.items if key.inline and opened < key.start and key.end < closed]
        outer = [key for key in siblings if not any(two.value[0] <= key.start and key.end <= two.value[1] for two in siblings)]
        index = outer.index(item)
        if index:
            return self.text[: outer[index - 1].end] + self.text[item.end :]
        if len(outer) > 1:
            return self.text[: item.start] + self.text[outer[1].start :]
        return self.text[: item.start] + self.text[item.end :]

    def items(self, index: int) -> List[Item]:
        """The keys below a header."""
        return [item for item in self.parsed.items if item.header == index and not item.inline]

    def section_path(self, item: Item) -> Path:
        return self.parsed.headers[item.header].path if item.header >= 0 else ()

    def dotted(self, table: Path) -> List[Item]:
        """The keys that define a table by dots."""
        size = len(table)
        inside = [item for item in self.parsed.items if item.path[:size] == table and len(item.path) > size and not item.inline]
        return [item for item in inside if len(self.section_path(item)) < size]

    def end_of_family(self, path: Path) -> int:
        """Behind the last line of the tables that are nearest to this one; at the end of all if there are none."""
        for size in range(len(path) - 1, 0, -1):
            near = [index for index, header in enumerate(self.parsed.headers) if header.path[:size] == path[:size]]
            if near:
                return self.section_end(near[-1])
        return self.section_end(len(self.parsed.headers) - 1)

    def section_end(self, index: int) -> int:
        """Behind the last line of a header's keys."""
        items = self.items(index)
        return items[-1].end if items else self.parsed.headers[index].end if index >= 0 else 0

    def above_comments(self, at: int) -> int:
        """The start of the comment lines directly above a line."""
        while at:
            previous = self.text.rfind("\n", 0, at - 1) + 1
            if not self.text[previous:at].lstrip().startswith("#"):
                break
            at = previous
        return at

    def relatives(self, path: Path) -> List[Header]:
        """Headers by likeness: siblings, then ancestors from the nearest, then any."""
        headers = self.parsed.headers
        siblings = [header for header in headers if header.path[:-1] == path[:-1]]
        ancestors = sorted((header for header in headers if path[: len(header.path)] == header.path), key=lambda header: -len(header.path))
        return siblings + ancestors + headers

    def header_indent(self, path: Path) -> str:
        nested = any(self.indent(header.start) for header in self.parsed.headers)
        for header in self.relatives(path):
            if header.path[:-1] == path[:-1]:
                return self.indent(header.start)
            if path[: len(header.path)] == header.path:
                return self.indent(header.start) + ("  " if nested else "")
        return ""

    def key_step(self, path: Path) -> str:
        """How much deeper keys stand than their header."""
        for header in self.relatives(path):
            items = self.items(self.parsed.headers.index(header))
            if items:
                outer, inner = self.indent(header.start), self.indent(items[0].start)
                return inner[len(outer) :] if inner.startswith(outer) else ""
        return ""

    def blank_above(self, path: Path) -> bool:
        """Whether headers such as this one have a blank line above them."""
        seen = [header for header in self.relatives(path) if header.start > 0]
        return not seen or _with_blank_line(self.text, seen[0].start, seen[0].end)[0] < seen[0].start

    def header_key(self, path: Path) -> str:
        known: Path = ()
        for header in self.parsed.headers:
            size = 0
            while size < min(len(path), len(header.path)) and path[size] == header.path[size]:
                size += 1
            if size > len(known):
                known = header.raw[:size]
        return ".".join(known + tuple(_render_key(part, self.quote) for part in path[len(known) :]))

    def key(self, path: Path) -> str:
        return ".".join(_render_key(part, self.quote) for part in path)

    def indent(self, start: int) -> str:
        match = re.compile(r"[ \t]*").match(self.text, start)
        return match.group() if match else ""

    def insert(self, at: int, lines: List[str]) -> str:
        block = self.newline.join(lines)
        at = at or int(self.text.startswith(BOM))
        if at > 1 and self.text[at - 1] != "\n":
            return self.text[:at] + self.newline + block + self.text[at:]
        return self.text[:at] + block + self.newline + self.text[at:]


def _with_blank_line(text: str, start: int, end: int) -> Tuple[int, int]:
    """The span, and the blank line above it."""
    match = re.search(r"(?:\A|\n)(\r?\n)\Z", text[:start])
    return (match.start(1) if match else start), end


def _cut(text: str, spans: List[Tuple[int, int]]) -> str:
    for start, end in sorted(spans, reverse=True):
        if end >= len(text) and not text.endswith("\n"):
            start = len(re.sub(r"\r?\n\Z", "", text[:start]))
        text = text[:start] + text[end:]
    return text


def _quote(text: str, parsed: Parsed) -> str:
    """The quotes that the text prefers."""
    literal = sum(text[item.value[0]] == "'" for item in parsed.items)
    return "'" if literal > sum(text[item.value[0]] == '"' for item in parsed.items) else '"'


def _render(value: Any, quote: str) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, (int, float)):
        return repr(value)
    if isinstance(value, list):
        return f"[{', '.join(_render(element, quote) for element in value)}]"
    if value == {}:
        return "{}"
    if not isinstance(value, str):
        raise TomlError(f"{value!r} cannot be written as a TOML value")
    if quote == "'" and "'" not in value and not re.search(r"[\x00-\x08\x0a-\x1f\x7f]", value):
        return f"'{value}'"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def _render_key(part: str, quote: str) -> str:
    return part if _BARE.match(part) else _render(part, quote)


def _table(data: Dict[str, Any], path: Path) -> Dict[str, Any]:
    for part in path[:-1]:
        data = data[part]
    return data


def _lookup(data: Any, path: Path) -> Any:
    for part in path:
        if not isinstance(data, dict) or part not in data:
            return None
        data = data[part]
    return data


def _same(left: Any, right: Any) -> bool:
    """Equal, and of equal types: 1 is not true, and 1 is not 1.0."""
    return repr(left) == repr(right)


def _pruned(data: Any, path: Path) -> Any:
    """The data in a form that compares types as well, without the tables along `path` that are empty."""
    if not isinstance(data, dict):
        return repr(data)
    kept = {}
    for key, value in data.items():
        along = bool(path) and key == path[0]
        inner = _pruned(value, path[1:] if along else ())
        if not (along and inner == {}):
            kept[key] = inner
    return kept


def _checked(edited: str, wanted: Dict[str, Any], path: Path) -> str:
    """The edited text, if it says what it should."""
    # A table that had nothing else goes or stays with the line that named it.
    if _pruned(parse(edited).data, path[:-1]) != _pruned(wanted, path[:-1]):
        raise TomlError(f"the layout around {shown(path)} is not one that can be edited safely; change it by hand")
    return edited
