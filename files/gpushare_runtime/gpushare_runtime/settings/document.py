# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The file with a daemon's settings: one versioned YAML document, read strictly.

Each error has the line, what was found and what was expected. A file with an error gives no settings at all.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import yaml

from gpushare_runtime.core.bounds import quote
from gpushare_runtime.errors import GpushareError
from gpushare_runtime.settings.schema import settings_of

API_VERSION: Final = "gpushare.kubernetes/v1"
_MOST_BYTES: Final = 64 * 1024
_MOST_ERRORS: Final = 5
_HEAD: Final = ("apiVersion", "kind")
T = TypeVar("T")


class SettingsError(GpushareError):
    """Settings that cannot be used."""


def load(path: Path, owner: type[T]) -> tuple[T, frozenset[str]]:
    """The settings of a file, and the names of the fields that it has. SettingsError with every line that is wrong."""
    try:
        with path.open("rb") as file:
            data = file.read(_MOST_BYTES + 1)
    except OSError as error:
        readable = " that this user may read, in folders that all may enter" if isinstance(error, PermissionError) else ""
        raise SettingsError(f"{path}: {error.strerror}; expected a file with the kind {kind_of(owner)}{readable}") from None
    if len(data) > _MOST_BYTES:
        raise SettingsError(f"{path}: found more than {_MOST_BYTES} bytes; expected a file with the kind {kind_of(owner)}")
    return parse(data, owner, str(path))


def parse(data: bytes, owner: type[T], name: str) -> tuple[T, frozenset[str]]:
    """As `load`, of the content of a file with this name."""
    values = dict(_entries(data, name))
    wrong = list(_wrong_head(values, kind_of(owner), name))
    known = {each.key: each for each in settings_of(owner)}
    found: dict[str, Any] = {}
    for key, (line, value) in values.items():
        if key not in (*_HEAD, *known):
            wrong.append(f"{name}:{line}: found the field {quote(key)}; expected one of {', '.join(known)}")
        elif key in known:
            try:
                found[known[key].name] = known[key].kind.read(value)
            except ValueError as error:
                wrong.append(f"{name}:{line}: {known[key].rejects(value, error)}")
    if wrong:
        more = len(wrong) - _MOST_ERRORS
        raise SettingsError("; ".join([*wrong[:_MOST_ERRORS], *([f"and {more} more"] if more > 0 else [])]))
    return owner(**found), frozenset(found)


def plain(data: bytes, name: str) -> dict[str, object]:
    """The fields of a file as they stand there, whatever they are. SettingsError for a file that cannot be read."""
    return {key: value for key, (_line, value) in _entries(data, name)}


def kind_of(owner: type) -> str:
    """The kind of the documents with the settings of a dataclass."""
    return owner.__name__


def explained(settings: Any, given: frozenset[str]) -> str:
    """Each setting with its value, where that comes from, and its effect."""
    return "\n".join(_lines(settings, given))


def _lines(settings: Any, given: frozenset[str]) -> Iterator[str]:
    for each in settings_of(type(settings)):
        value = getattr(settings, each.name)
        shown = "none" if value is None else each.kind.plain(value)
        yield f"{each.key}: {shown} ({'given' if each.name in given else 'default'}): {each.doc}"


def _wrong_head(values: Mapping[str, tuple[int, object]], kind: str, name: str) -> Iterator[str]:
    for key, expected in zip(_HEAD, (API_VERSION, kind), strict=True):
        line, value = values.get(key, (1, None))
        if value != expected:
            yield f"{name}:{line}: {key}: found {'nothing' if value is None else quote(value)}; expected {expected}"


def _entries(data: bytes, name: str) -> Iterator[tuple[str, tuple[int, object]]]:
    """(key, (its line, its value)) of a mapping without nested mappings, aliases and tags. SettingsError."""
    try:
        root = yaml.compose(data.decode(), Loader=yaml.SafeLoader)
    except UnicodeDecodeError as error:
        raise SettingsError(f"{name}: found bytes that are not UTF-8 at {error.start}; expected text") from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise SettingsError(f"{name}:{line}: found {error.problem or 'no YAML'}; expected YAML") from None
    except (yaml.YAMLError, RecursionError):
        raise SettingsError(f"{name}: found something that is not YAML; expected a document with fields") from None
    if not isinstance(root, yaml.MappingNode):
        raise SettingsError(f"{name}:1: found no fields; expected apiVersion: {API_VERSION}, a kind, and settings")
    lines: dict[str, int] = {}
    for node, value in root.value:
        key, line = _scalar(node, name), node.start_mark.line + 1
        if not isinstance(key, str):
            raise SettingsError(f"{name}:{line}: found {quote(key)}; expected the name of a field")
        if key in lines:
            raise SettingsError(f"{name}:{line}: found {quote(key)} again, after line {lines[key]}; expected it once")
        lines[key] = line
        found = [_scalar(each, name) for each in value.value] if isinstance(value, yaml.SequenceNode) else _scalar(value, name)
        yield key, (line, found)


def _scalar(node: Any, name: str) -> object:
    line = node.start_mark.line + 1
    if not isinstance(node, yaml.ScalarNode):
        raise SettingsError(f"{name}:{line}: found a list or fields inside a field; expected text, a number, or true or false")
    try:
        return yaml.constructor.SafeConstructor().construct_object(node)
    except (yaml.YAMLError, ValueError):
        raise SettingsError(f"{name}:{line}: found {quote(node.value)}; expected text, a number, or true or false") from None
