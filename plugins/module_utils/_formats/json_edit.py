# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Changes single values in JSON text. No Ansible, no I/O here.

The text is written again: in the order of its keys, with its indentation, its line ends, and what stands around it. Arrays and objects on
one line do not stay there, unless the whole text does, and 1e3 becomes 1000.0.

Stricter than Python's own parser: a key that an object has twice, NaN and numbers without bounds are errors.
"""

from __future__ import annotations

import json
import math
import re
from typing import Any, Dict, List, Tuple

from .failure import Failure

Path = Tuple[str, ...]

#: Of digits. Python does not read an integer of some thousand.
LONGEST_NUMBER = 1000

_AROUND = "\ufeff \t\r\n"
_INDENT = "    "
_EMPTY = re.compile(r"[{\[]\s*[}\]]")
_FIRST_INDENT = re.compile(r"\n([ \t]*)\S")
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


class JsonError(Failure, ValueError):
    """Text that is not JSON; says line and reason."""


def loads(text: str) -> Any:
    """The value. JsonError if the text is not strict JSON."""
    try:
        return json.loads(
            text.lstrip("\ufeff"), object_pairs_hook=_object, parse_int=_integer, parse_float=_real, parse_constant=_no_constant
        )
    except json.JSONDecodeError as error:
        raise JsonError(f"line {error.lineno}: {error.msg}") from error
    except RecursionError as error:
        raise JsonError("more levels of arrays and objects than can be read") from error


def dumps(value: Any, like: str) -> str:
    """The value as JSON in the form of `like`, which may be no JSON: its indentation, its line ends, and the white space around it."""
    body = like.strip(_AROUND)
    start = like.index(body) if body else len(like)
    first = _FIRST_INDENT.search(body)
    indent = _INDENT if _EMPTY.fullmatch(body) else first.group(1) if first else None
    separators = (",", ":") if indent is None and not re.search(r"[,:]\s", body) else (", " if indent is None else ",", ": ")
    written = json.dumps(value, indent=indent, separators=separators, ensure_ascii=body.isascii())
    if _LONE_SURROGATE.search(written):
        # It was an escape, and cannot be anything else in UTF-8.
        written = json.dumps(value, indent=indent, separators=separators)
    return like[:start] + written.replace("\n", "\r\n" if "\r\n" in like else "\n") + like[start + len(body) :]


def set_value(text: str, path: Path, value: Any) -> str:
    """The text with `value` at `path`; objects on the way are made. ValueError if something else than an object is on the way."""
    whole = node = loads(text)
    for depth, key in enumerate(path):
        if not isinstance(node, dict):
            raise ValueError(f"{'.'.join(path[:depth])} is not an object")
        node = node.setdefault(key, {}) if depth < len(path) - 1 else node
    node[path[-1]] = value
    return dumps(whole, text)


def remove(text: str, path: Path) -> str:
    """The text without the key at `path`; the same text if there is none."""
    whole = node = loads(text)
    for key in path[:-1]:
        node = node.get(key) if isinstance(node, dict) else None
    if not isinstance(node, dict) or path[-1] not in node:
        return text
    del node[path[-1]]
    return dumps(whole, text)


def _object(pairs: List[Tuple[str, Any]]) -> Dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _value in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise JsonError(f"the key {twice[:80]!r} stands twice in one object")
    return found


def _integer(digits: str) -> int:
    if len(digits) > LONGEST_NUMBER:
        raise JsonError(f"a number of {len(digits)} digits, expected at most {LONGEST_NUMBER}")
    return int(digits)


def _real(digits: str) -> float:
    if math.isinf(float(digits)):
        raise JsonError(f"the number {digits[:80]}, expected one that 64 bits can hold")
    return float(digits)


def _no_constant(name: str) -> None:
    raise JsonError(f"{name}, which JSON does not have")
