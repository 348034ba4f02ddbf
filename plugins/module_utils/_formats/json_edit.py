# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Changes single values in JSON text: every byte that is not part of the change stays. No Ansible, no I/O here.

Stricter than Python's own parser: a key that an object has twice, a comment and a trailing comma are errors with their line.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, List, Tuple

from .failure import Failure

Path = Tuple[str, ...]

#: Of digits. Python does not read an integer of some thousand.
LONGEST_NUMBER = 1000

_SPACE = re.compile(r"[ \t\r\n]*")
_SCALAR = re.compile(r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?(?![\w.+-])|true\b|false\b|null\b")
_BOM = "\ufeff"
_DECODER = json.JSONDecoder()
_DEPTH = 50
_INDENT = "    "


class JsonError(Failure, ValueError):
    """Text that is not JSON; says line and reason."""


@dataclass
class _Member:
    """A key and its value. start: where the key begins; between: the text from the key's end to the value."""

    start: int
    between: str
    node: "_Value"


@dataclass
class _Value:
    """A value and its place in the text."""

    value: Any
    start: int
    end: int
    members: Dict[str, _Member] = field(default_factory=dict)


def loads(text: str) -> Any:
    """The value. JsonError if the text is not strict JSON."""
    return _parse(text).value


def set_value(text: str, path: Path, value: Any) -> str:
    """The text with `value` at `path`; objects on the way are made. ValueError if something else than an object is on the way."""
    node, indent = _parse(text), ""
    for depth, key in enumerate(path):
        if not isinstance(node.value, dict):
            raise ValueError(f"{'.'.join(path[:depth])} is not an object")
        member = node.members.get(key)
        if member is None:
            for missing in reversed(path[depth + 1 :]):
                value = {missing: value}
            return _inserted(text, node, indent, key, value)
        indent = _indent_before(text, member.start)
        node = member.node
    return text[: node.start] + _dumped(value, indent, _unit(text), _newline(text)) + text[node.end :]


def remove(text: str, path: Path) -> str:
    """The text without the key at `path`, also if there is none."""
    node = _parse(text)
    for key in path[:-1]:
        if key not in node.members:
            return text
        node = node.members[key].node
    if path[-1] not in node.members:
        return text
    members = list(node.members.values())
    place = members.index(node.members[path[-1]])
    member = members[place]
    if len(members) == 1:
        return text[: node.start] + "{}" + text[node.end :]
    if place == len(members) - 1:  # with the comma before it
        return text[: members[place - 1].node.end] + text[member.node.end :]
    return text[: member.start] + text[members[place + 1].start :]


def _inserted(text: str, node: _Value, indent: str, key: str, value: Any) -> str:
    """The text with one more member at the end of this object. indent: of the line that the object begins on."""
    newline, unit = _newline(text), _unit(text)
    if not node.members:
        inner = indent + unit
        body = f"{json.dumps(key)}: {_dumped(value, inner, unit, newline)}"
        return f"{text[: node.start]}{{{newline}{inner}{body}{newline}{indent}}}{text[node.end :]}"
    last = list(node.members.values())[-1]
    first = next(iter(node.members.values()))
    before = text[node.start + 1 : first.start]
    between = last.between if "\n" not in last.between else ": "
    if "\n" in before:
        inner = _indent_before(text, first.start)
        separator = "," + newline + inner
        return f"{text[: last.node.end]}{separator}{json.dumps(key)}{between}{_dumped(value, inner, unit, newline)}{text[last.node.end :]}"
    # An object on one line stays on it.
    comma, colon = (", " if between.endswith(" ") else ","), between
    flat = json.dumps(value, ensure_ascii=False, separators=(comma, colon if colon.strip() == ":" else ": "))
    return f"{text[: last.node.end]}{comma}{json.dumps(key)}{colon}{flat}{text[last.node.end :]}"


def _dumped(value: Any, indent: str, unit: str, newline: str) -> str:
    lines = json.dumps(value, indent=unit, ensure_ascii=False).split("\n")
    return (newline + indent).join(lines)


def _indent_before(text: str, place: int) -> str:
    """The white space that the line of `place` begins with."""
    line = text[text.rfind("\n", 0, place) + 1 : place].lstrip(_BOM)
    return line[: len(line) - len(line.lstrip(" \t"))]


def _unit(text: str) -> str:
    """The indentation of the document: the first member's white space."""
    members = _parse(text).members.values()
    return next((found for found in (_indent_before(text, member.start) for member in members) if found), _INDENT)


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _parse(text: str) -> _Value:
    start = len(_BOM) if text.startswith(_BOM) else 0
    node = _value(text, _skip(text, start), 0)
    end = _skip(text, node.end)
    if end != len(text):
        raise _error(text, end, "the document has ended, but there is more text")
    return node


def _value(text: str, place: int, depth: int) -> _Value:
    if depth > _DEPTH:
        raise _error(text, place, f"more than {_DEPTH} levels")
    opening = text[place : place + 1]
    if opening == "{":
        return _object(text, place, depth)
    if opening == "[":
        return _array(text, place, depth)
    if opening == '"':
        value, end = _string(text, place)
        return _Value(value, place, end)
    match = _SCALAR.match(text, place)
    if match is None:
        raise _error(text, place, "expected a value")
    if match.end() - place > LONGEST_NUMBER:
        raise _error(text, place, f"a number of {match.end() - place} digits, expected at most {LONGEST_NUMBER}")
    return _Value(json.loads(match.group()), place, match.end())


def _object(text: str, start: int, depth: int) -> _Value:
    node = _Value({}, start, start)
    for place in _items(text, start, "}", node):
        if text[place : place + 1] != '"':
            raise _error(text, place, "expected a key in double quotes")
        key, end = _string(text, place)
        if key in node.members:
            first = _line(text, node.members[key].start)
            raise _error(text, place, f"key {key!r} for the second time; the first is in line {first}")
        colon = _skip(text, end)
        if text[colon : colon + 1] != ":":
            raise _error(text, colon, f"expected a colon after {key!r}")
        inner = _value(text, _skip(text, colon + 1), depth + 1)
        node.members[key] = _Member(place, text[end : inner.start], inner)
        node.value[key] = inner.value
        node.end = inner.end
    return node


def _array(text: str, start: int, depth: int) -> _Value:
    values: List[Any] = []
    node = _Value(values, start, start)
    for place in _items(text, start, "]", node):
        inner = _value(text, place, depth + 1)
        values.append(inner.value)
        node.end = inner.end
    return node


def _items(text: str, start: int, closing: str, node: _Value) -> Iterator[int]:
    """The place of each item; the user sets node.end behind it. At the end it is behind the closing bracket."""
    place = _skip(text, start + 1)
    if text[place : place + 1] == closing:
        node.end = place + 1
        return
    while True:
        yield place
        place = _skip(text, node.end)
        mark = text[place : place + 1]
        if mark == closing:
            node.end = place + 1
            return
        if mark != ",":
            raise _error(text, place, f"expected a comma or {closing}")
        place = _skip(text, place + 1)
        if text[place : place + 1] == closing:
            raise _error(text, place, "a comma before the closing bracket, which JSON does not have")


def _string(text: str, place: int) -> Tuple[str, int]:
    try:
        value, end = _DECODER.raw_decode(text, place)
        return str(value), end
    except ValueError as error:
        raise _error(text, place, f"a string that does not end on its line or has a wrong escape ({error})") from error


def _skip(text: str, place: int) -> int:
    """Behind the white space."""
    match = _SPACE.match(text, place)
    end = match.end() if match else place
    if text.startswith(("//", "/*", "#"), end):
        raise _error(text, end, "a comment, which JSON does not have")
    return end


def _line(text: str, place: int) -> int:
    return text.count("\n", 0, place) + 1


def _error(text: str, place: int, words: str) -> JsonError:
    if place >= len(text) and words.startswith("expected"):
        words += ", found the end"
    return JsonError(f"line {_line(text, place)}: {words}")
