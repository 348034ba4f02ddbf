# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a value that a host has sent has the shape of what its reader takes it for.

Pure. A shape is a type, a dataclass, a TypedDict, a compiled pattern of a text, a list of one shape for lists of it, a tuple of shapes
for a list with exactly these, a dict of shapes for an object with exactly these keys (one that ends in `?` may be missing), Map, Maybe,
Either or Open.
"""

from __future__ import annotations

import math
import re
import types
from collections.abc import Mapping, Sequence
from dataclasses import Field, dataclass, fields, is_dataclass
from functools import lru_cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

from ..module_utils._formats.answers import may_lack, pattern_of
from ..module_utils._formats.failure import Failure

#: Of one text: more than a file that a module returns (_host/host.py reads 4 MiB of one).
LONGEST_TEXT = 8 * 1024 * 1024
#: Of a whole answer. A node with many containers has some thousand, the pods of a large cluster some hundred thousand.
MOST_VALUES = 4_000_000
#: Of a part whose shape no reader needs.
_DEEPEST = 32
_WORD = 512
_QUOTED = 80
_LARGEST = 2**63


@dataclass(frozen=True)
class Map:
    """An object with any keys, whose values have one shape."""

    values: Any


@dataclass(frozen=True)
class Maybe:
    """The shape, or null."""

    shape: Any


@dataclass(frozen=True)
class Either:
    """A choice of two shapes."""

    first: Any
    second: Any


@dataclass(frozen=True)
class Open:
    """An object with these keys, and others that are not read."""

    fields: Mapping[str, Any]


class _Other(Failure):
    """A value of another shape: where, and what was expected."""

    def __init__(self, value: Any, expected: str) -> None:
        super().__init__(expected)
        self.value, self.expected, self.where = value, expected, ""

    def at(self, step: str) -> _Other:
        self.where = f"{step}{self.where}"
        return self


def other_shape(shape: Any, value: Any) -> str | None:
    """A message about what is wrong with the value; None where it has the shape."""
    try:
        _check(shape, value, [MOST_VALUES])
    except _Other as other:
        where = other.where.lstrip(".")
        shown = where if len(where) <= _QUOTED else f"{where[:_QUOTED]}…"
        return f"found {quoted(other.value)} in {shown or 'it'}, expected {other.expected}"
    return None


def quoted(value: Any) -> str:
    """A value of anybody's in a message: short, on one line, and at the cost of a short one."""
    if isinstance(value, str):
        return repr(value[:_QUOTED] + "…" if len(value) > _QUOTED else value[:])
    if value is None or isinstance(value, (bool, float)):
        return repr(value)
    if isinstance(value, int):
        return repr(int(value)) if abs(value) < _LARGEST else "an integer of more than 64 bits"
    if isinstance(value, Mapping):
        return f"an object of {len(value)} fields"
    if isinstance(value, Sequence):
        return f"a list of {len(value)}"
    return f"a value of the type {type(value).__name__[:_QUOTED]}"


def _check(shape: Any, value: Any, left: list[int], depth: int = 0) -> None:
    left[0] -= 1
    if left[0] < 0:
        raise _Other(None, f"at most {MOST_VALUES} values")
    if shape is None or (isinstance(shape, type) and issubclass(shape, type(None))):
        _must(value is None, value, "null")
    elif isinstance(shape, Maybe):
        if value is not None:
            _check(shape.shape, value, left)
    elif isinstance(shape, Either):
        try:
            _check(shape.first, value, left)
        except _Other:
            _check(shape.second, value, left)
    elif isinstance(shape, re.Pattern):
        fits = isinstance(value, str) and len(value) <= _WORD and shape.fullmatch(value)
        _must(bool(fits), value, f"a text like {shape.pattern[:_QUOTED]}")
    elif isinstance(shape, Mapping):
        _check_object(shape, value, left, is_open=False)
    elif isinstance(shape, Open):
        _check_object(shape.fields, value, left, is_open=True)
    elif isinstance(shape, list):
        _check_list(shape[0], value, left)
    elif isinstance(shape, tuple):
        _check_several(shape, value, left)
    elif isinstance(shape, Map):
        _check_map(shape.values, value, left)
    elif shape is Any:
        _check_any(value, left, depth)
    elif _has_fields(shape):
        _check_object(of_class(shape), value, left, is_open=False)
    elif isinstance(shape, type) and get_origin(shape) is None:
        _check_scalar(shape, value)
    else:
        _check_generic(shape, value, left)


def _must(holds: bool, value: Any, expected: str) -> None:
    if not holds:
        raise _Other(value, expected)


def _check_scalar(shape: type, value: Any) -> None:
    if shape is bool:
        _must(isinstance(value, bool), value, "true or false")
    elif shape is str:
        _must(isinstance(value, str) and len(value) <= LONGEST_TEXT, value, f"a text of at most {LONGEST_TEXT} characters")
    elif shape is int:
        _must(isinstance(value, int) and not isinstance(value, bool) and abs(value) < _LARGEST, value, "an integer")
    elif shape is float:
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        _must(number and abs(value) < _LARGEST and math.isfinite(value), value, "a number")
    else:
        raise AssertionError(f"no shape: {shape}")


def _check_generic(shape: Any, value: Any, left: list[int]) -> None:
    """The types that `typing` writes in the dataclasses of module_utils."""
    origin, parts = get_origin(shape), get_args(shape)
    if origin in (Union, types.UnionType):
        _check(Maybe(_without_none(shape)), value, left)
    elif origin is Literal:
        _must(isinstance(value, str) and value in parts, value, f"one of {', '.join(parts)}"[:_QUOTED])
    elif origin is tuple and parts[-1] is not Ellipsis:
        _check_several(parts, value, left)
    elif origin in (list, tuple):
        _check_list(parts[0], value, left)
    elif origin is not None and issubclass(origin, Mapping):
        _check_map(parts[1], value, left)
    else:
        raise AssertionError(f"no shape: {shape}")


def _check_object(shapes: Mapping[str, Any], value: Any, left: list[int], *, is_open: bool) -> None:
    _must(isinstance(value, Mapping), value, "an object")
    known = set()
    for key, shape in shapes.items():
        name = key.removesuffix("?")
        known.add(name)
        if name in value:
            try:
                _check(shape, value[name], left)
            except _Other as other:
                raise other.at(f".{name}") from None
        elif name == key:
            raise _Other(value, f"the field {name}")
    more = [] if is_open else [key for key in value if key not in known]
    if more:
        raise _Other(more[0], "no further field")


def _check_list(shape: Any, value: Any, left: list[int]) -> None:
    _must(isinstance(value, (list, tuple)), value, "a list")
    for index, member in enumerate(value):
        try:
            _check(shape, member, left)
        except _Other as other:
            raise other.at(f"[{index}]") from None


def _check_several(shapes: Sequence[Any], value: Any, left: list[int]) -> None:
    _must(isinstance(value, (list, tuple)) and len(value) == len(shapes), value, f"a list of {len(shapes)}")
    for shape, part in zip(shapes, value, strict=True):
        _check(shape, part, left)


def _check_map(shape: Any, value: Any, left: list[int]) -> None:
    _must(isinstance(value, Mapping), value, "an object")
    for key, member in value.items():
        _check(str, key, left)
        try:
            _check(shape, member, left)
        except _Other as other:
            raise other.at(f".{key[:_QUOTED]}") from None


def _check_any(value: Any, left: list[int], depth: int) -> None:
    _must(depth < _DEEPEST, value, f"at most {_DEEPEST} levels")
    if isinstance(value, Mapping):
        for key, member in value.items():
            _check(str, key, left)
            _check(Any, member, left, depth + 1)
    elif isinstance(value, (list, tuple)):
        for member in value:
            _check(Any, member, left, depth + 1)
    elif value is not None:
        kind = next((kind for kind in (bool, int, float, str) if isinstance(value, kind)), None)
        _must(kind is not None, value, "a value of JSON")
        if kind is not None:
            _check_scalar(kind, value)


def learn(shape: Any) -> None:
    """Read the types of all dataclasses in the shape. Ansible's processes of hosts are copies of one: what it knows, they know."""
    if _has_fields(shape):
        learn(of_class(shape))
    elif isinstance(shape, (Map, Maybe, Either, Open)):
        learn([getattr(shape, field.name) for field in fields(shape)])
    elif isinstance(shape, Mapping):
        learn(list(shape.values()))
    elif isinstance(shape, (list, tuple)) or get_args(shape):
        for part in shape if isinstance(shape, (list, tuple)) else get_args(shape):
            learn(part)


@lru_cache(maxsize=None)
def of_class(shape: Any) -> Mapping[str, Any]:
    """The object that `answer_of` makes of a dataclass, or that a TypedDict is."""
    if hasattr(shape, "sent"):
        return of_class(get_type_hints(shape.sent)["return"])
    hints = get_type_hints(shape)
    if is_typeddict(shape):
        return {key if key in shape.__required_keys__ else f"{key}?": hint for key, hint in hints.items()}
    return dict(_of_field(field, hints[field.name]) for field in fields(shape))


def _of_field(field: Field[Any], hint: Any) -> tuple[str, Any]:
    """Its key, and the shape of its value."""
    pattern = pattern_of(field)
    shape = hint if pattern is None else _with_pattern(hint, pattern)
    if not may_lack(field):
        return field.name, shape
    # The value of a key that is there is not null.
    return f"{field.name}?", shape.shape if isinstance(shape, Maybe) else _without_none(shape)


def _with_pattern(hint: Any, pattern: re.Pattern[str]) -> Any:
    """The shape of the type, with the pattern in the place of its texts."""
    if hint is str:
        return pattern
    if types.NoneType in get_args(hint):
        return Maybe(_with_pattern(_without_none(hint), pattern))
    if get_origin(hint) in (list, tuple):
        return [_with_pattern(get_args(hint)[0], pattern)]
    raise AssertionError(f"no texts: {hint}")


def _without_none(hint: Any) -> Any:
    """The type of an optional value that is there."""
    some = [part for part in get_args(hint) if part is not types.NoneType]
    if get_origin(hint) not in (Union, types.UnionType) or len(some) != 1 or len(some) == len(get_args(hint)):
        raise AssertionError(f"not optional: {hint}")
    return some[0]


def _has_fields(shape: Any) -> bool:
    return isinstance(shape, type) and (is_dataclass(shape) or is_typeddict(shape))
