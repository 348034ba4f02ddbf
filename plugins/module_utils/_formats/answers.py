# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The form in which a module answers: frozen dataclasses, from whose fields the controller also knows what it may believe.

Their types say it (plugin_utils/_shape.py reads them), and the metadata of a field what no type says.
"""

from __future__ import annotations

from dataclasses import Field, dataclass, fields, is_dataclass
from types import MappingProxyType
from typing import Any, Mapping, Optional, Pattern, TypedDict

_TEXT, _ABSENT = "text", "absent"
#: The metadata of an optional field whose key is left out where it is None.
ABSENT: Mapping[str, Any] = MappingProxyType({_ABSENT: True})


@dataclass(frozen=True)
class ModuleAnswer:
    """The answer of a module: a subclass has its own keys, beside those of Ansible."""

    changed: bool


class _Texts(TypedDict):
    before: str
    after: str


class DiffPart(_Texts, total=False):
    """The change of one file or object, as Ansible shows it."""

    before_header: str
    after_header: str


class LeftThing(TypedDict):
    """A thing that stays on a host or in the cluster, and why."""

    what: str
    why: str


def like(pattern: "Pattern[str]") -> Mapping[str, Any]:
    """The metadata of a field whose texts are like this, whole."""
    return {_TEXT: pattern}


def pattern_of(field: "Field[Any]") -> "Optional[Pattern[str]]":
    """The pattern of its texts, None for any."""
    found: "Optional[Pattern[str]]" = field.metadata.get(_TEXT)
    return found


def may_lack(field: "Field[Any]") -> bool:
    """Whether an answer may lack its key."""
    return _ABSENT in field.metadata


def answer_of(part: Any) -> Any:
    """A dataclass as JSON, with all that is in it. One with a method `sent` is sent as what that returns."""
    if is_dataclass(part):
        if hasattr(part, "sent"):
            return answer_of(part.sent())
        values = [(field, getattr(part, field.name)) for field in fields(part)]
        return {field.name: answer_of(value) for field, value in values if value is not None or not may_lack(field)}
    if isinstance(part, Mapping):
        return {key: answer_of(value) for key, value in part.items()}
    if isinstance(part, tuple):
        return tuple(map(answer_of, part))
    return [answer_of(value) for value in part] if isinstance(part, list) else part
