# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The description of a setting, at its field in the dataclass of a daemon.

A daemon's settings are a frozen dataclass whose fields are made by `setting`. Everything else derives from them: the file that the daemon
reads, its options, the variables of the roles, the values of the chart, and the tables of the docs.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar, Final, Protocol

from gpushare_runtime.core.bounds import quote

#: The hosts that must have the same value.
HOST, CONTROL_PLANES, GPU_NODES, GROUP, CLUSTER = "host", "control planes", "GPU nodes", "group", "cluster"
#: Forms that a pattern cannot express. The controller has the check of each.
ADDRESS, BATCHES, DURATION, HOST_PATH = "address", "batches", "duration", "host path"
LABELS, PUBLIC_URL, TOLERATIONS = "labels", "public URL", "tolerations"
#: In a clash: the field's own variable. Values of a variable that is left out. An address beyond loopback, and one that is all of a host.
OWN: Final = ""
NOTHING: Final[tuple[Any, ...]] = (None, "", [])
BEYOND_LOOPBACK, EVERYWHERE = "beyond loopback", "everywhere"
_METADATA: Final = "setting"
_LONGEST: Final = 4096
_MOST_ITEMS: Final = 1000


class ValueType(Protocol):
    """The values that a setting may have. expected: for a message. schema: as JSON schema. ansible: for an argument specification."""

    @property
    def expected(self) -> str: ...

    @property
    def schema(self) -> Mapping[str, Any]: ...

    @property
    def ansible(self) -> Mapping[str, Any]: ...

    def read(self, value: object) -> Any:
        """The value of a document as the daemon has it. ValueError for another."""

    def plain(self, value: Any) -> Any:
        """The value of the daemon as a document has it."""


def shown(value: object) -> str:
    """A value as an error quotes it, without the user and password of a URL: errors of daemons are in the journal."""
    if isinstance(value, list):
        return quote([_without_credentials(each) for each in value[:_MOST_ITEMS]])
    return quote(_without_credentials(value))


def _without_credentials(value: object) -> object:
    """Up to the last @: a password may hold one, too, and a slash."""
    if not isinstance(value, str):
        return value
    scheme, separator, rest = value.partition("://")
    _, at, place = rest.rpartition("@")
    return f"{scheme}{separator}…@{place}" if at else value


@dataclass(frozen=True)
class TextType:
    """A text that a pattern fits, `convert` makes something else of it. path: whether it names a file or folder of the host.

    charted: the pattern of the chart's value, which stands in texts of Kubernetes as it is. form: of the variable's value. secret: whether
    no page, log or error may have it.
    """

    expected: str = "a text"
    pattern: str = r"[^\0]*"
    convert: Callable[[str], Any] = str
    path: bool = False
    charted: str = ""
    form: str = ""
    secret: bool = False

    def read(self, value: object) -> Any:
        if not isinstance(value, str) or len(value) > _LONGEST or not re.fullmatch(self.pattern, value):
            raise ValueError(self.expected)
        return self.convert(value)

    def plain(self, value: Any) -> Any:
        return str(value)

    @property
    def schema(self) -> Mapping[str, Any]:
        return {"type": "string", "pattern": f"^{self.charted or self.pattern}$"}

    @property
    def ansible(self) -> Mapping[str, Any]:
        return {"type": "path" if self.path else "str", **({"no_log": True} if self.secret else {})}


#: Of those who may ask a daemon.
TOKEN: Final = TextType("16 to 1024 characters of ASCII without white space", "(?:[!-~]{16,1024})?", secret=True)


@dataclass(frozen=True)
class ChoiceType:
    """A word among some. chart: those that the chart has, all by default."""

    words: tuple[str, ...]
    convert: Callable[[str], Any] = str
    chart: tuple[str, ...] = ()

    @property
    def expected(self) -> str:
        return f"one of {', '.join(filter(None, self.words))}{' or nothing' if '' in self.words else ''}"

    def read(self, value: object) -> Any:
        if value not in self.words:
            raise ValueError(self.expected)
        return self.convert(str(value))

    def plain(self, value: Any) -> Any:
        return getattr(value, "name", value)

    @property
    def schema(self) -> Mapping[str, Any]:
        return {"enum": list(self.chart or self.words)}

    @property
    def ansible(self) -> Mapping[str, Any]:
        return {"type": "str", "choices": list(self.words)}


@dataclass(frozen=True)
class NumberType:
    """A whole number. unit: of what, such as seconds. zero: whether 0 is one as well, for none."""

    least: int
    most: int
    unit: str = ""
    zero: bool = False

    @property
    def expected(self) -> str:
        none = ", or 0 for none" if self.zero else ""
        return f"a number{f' of {self.unit}' if self.unit else ''} from {self.least} to {self.most}{none}"

    def read(self, value: object) -> Any:
        fits = isinstance(value, int) and not isinstance(value, bool) and (self.least <= value <= self.most or (self.zero and value == 0))
        if not fits:
            raise ValueError(self.expected)
        return value

    def plain(self, value: Any) -> Any:
        return value

    @property
    def schema(self) -> Mapping[str, Any]:
        bounds = {"type": "integer", "minimum": self.least, "maximum": self.most}
        return {"anyOf": [{"const": 0}, bounds]} if self.zero else bounds

    @property
    def ansible(self) -> Mapping[str, Any]:
        return {"type": "int"}


@dataclass(frozen=True)
class SwitchType:
    """Yes or no."""

    expected: ClassVar[str] = "true or false"
    schema: ClassVar[Mapping[str, Any]] = {"type": "boolean"}
    ansible: ClassVar[Mapping[str, Any]] = {"type": "bool"}

    def read(self, value: object) -> Any:
        if not isinstance(value, bool):
            raise ValueError(self.expected)
        return value

    def plain(self, value: Any) -> Any:
        return value


@dataclass(frozen=True)
class VariableType:
    """A value of a variable that no file of a daemon has. ansible: its type. longest: the seconds above which preflight warns: `longer`."""

    ansible: Mapping[str, Any]
    expected: str
    form: str
    longest: float = 0
    longer: str = ""
    schema: ClassVar[Mapping[str, Any]] = {}

    def read(self, value: object) -> Any:
        return value

    def plain(self, value: Any) -> Any:
        return value


@dataclass(frozen=True)
class ListType:
    """A list. An option is repeated for it."""

    each: TextType | NumberType | ChoiceType
    most: int = _MOST_ITEMS

    @property
    def expected(self) -> str:
        return f"a list of at most {self.most}, each {self.each.expected}"

    def read(self, value: object) -> Any:
        if not isinstance(value, list) or len(value) > self.most:
            raise ValueError(self.expected)
        return tuple(map(self.each.read, value))

    def plain(self, value: Any) -> Any:
        return [self.each.plain(each) for each in value]

    @property
    def schema(self) -> Mapping[str, Any]:
        return {"type": "array", "maxItems": self.most, "items": dict(self.each.schema)}

    @property
    def ansible(self) -> Mapping[str, Any]:
        inner = dict(self.each.ansible)
        return {"type": "list", "elements": inner.pop("type"), **inner}


def folder() -> TextType:
    """An absolute path, as a Path."""
    return TextType("an absolute path", r"/[^\0]*", Path, path=True, charted="(/[A-Za-z0-9_@.+:,=-]+)+")


@dataclass(frozen=True)
class Clash:
    """Values of several variables that preflight rejects together, or warns of.

    when: for each variable the values with which they clash, or a condition on an address. unless: for each those with which they do not.
    same: two numbers that are equal, or two different paths with the same file name. found: the words for it, with the variables in braces,
    by default the values of `when` and `unless`.
    """

    when: Mapping[str, tuple[Any, ...] | str]
    expected: str
    cure: str
    found: str = ""
    unless: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)
    same: tuple[str, str] | None = None
    warns: bool = False


def not_by_claims(*values: object) -> Clash:
    """Values of a variable that the back end dra does not have."""
    cure = "leave it out, or set gpushare_backend: extender"
    return Clash({"gpushare_backend": ("dra",), OWN: values}, "what this back end has (docs/use/dra.md)", cure)


def not_with_a_bundle(variable: str, *values: object) -> Clash:
    """A source of packages, which a bundle replaces. values: those that are none."""
    return Clash(
        {},
        "one source of packages",
        f"remove one of the two: with a bundle {variable} has no effect",
        f"gpushare_bundle and {variable}",
        unless={"gpushare_bundle": NOTHING, OWN: (*NOTHING, *values)},
    )


@dataclass(frozen=True)
class Setting:
    """The description of a setting.

    name: the field. key: in a file. default: as a file has it, None for none. preset: the default of variable and chart, where that is
    another one. doc: its effect, as a phrase of an option's help.
    environment: the variable of the process that stands for one that is not given. agrees: with which others it must fit, and how.
    together: the field that is given with this one or not at all; without: what neither means. misfit: what is wrong with it beside the
    others, "" for nothing, by the settings and the name of each field as a person has written it.
    variable: Ansible's, "" for one that the roles decide. description: of the variable, with Ansible's markup, by default the doc. role:
    the one that describes the variable, where it is not the daemon's. entry: the entry point of that role, "" for the first with a part
    that is made. hosts: whether the role of the daemon on hosts has it. scope: where its value must be the same. apart: whether hosts may
    differ in it although the daemons are pods. compared: whether preflight compares it, which the playbooks do before with the groups.
    clashes: with the values of other variables. secret: whether it may have a password among other words. With `no_log` Ansible would hide
    each of these words everywhere. chart: the value of the chart, "" for none. The role `in_cluster` has the variable of each. meaning:
    of the value, where the description is about Ansible. option: without dashes. metavar: of the option's value.
    """

    name: str
    key: str
    default: Any
    doc: str
    kind: ValueType
    environment: str = ""
    agrees: str = ""
    together: str = ""
    without: str = ""
    misfit: Callable[[Any, Callable[[str], str]], str] | None = None
    variable: str = ""
    description: str = ""
    role: str = ""
    entry: str = ""
    hosts: bool = True
    scope: str = HOST
    apart: bool = False
    compared: bool = True
    clashes: tuple[Clash, ...] = ()
    secret: bool = False
    chart: str = ""
    meaning: str = ""
    option: str = ""
    metavar: str = ""
    preset: Any = None

    def rejects(self, value: object, error: ValueError) -> str:
        """The message about a value of a file."""
        return f"{self.key}: found {shown(value)}; expected {error}"


def setting(default: Any, doc: str, kind: ValueType, **further: Any) -> Any:
    """A field of a daemon's settings. default: as the daemon has it. further: of `Setting`."""
    return field(default=default, metadata={_METADATA: {"doc": doc, "kind": kind, **further}})


def variable_alone(default: Any, description: str, kind: ValueType, **further: Any) -> Any:
    """A variable that no daemon reads. Its description is for people, with Ansible's markup."""
    return setting(default, "", kind, description=description, **further)


def settings_of(owner: type[Any]) -> tuple[Setting, ...]:
    """The settings of a dataclass, in the order of its fields; fields that `setting` has not made are none."""
    return tuple(_setting(each.name, each.default, each.metadata[_METADATA]) for each in fields(owner) if _METADATA in each.metadata)


def _setting(name: str, default: Any, further: Mapping[str, Any]) -> Setting:
    kind: ValueType = further["kind"]
    plain = None if default is None or default is MISSING else kind.plain(default)
    derived = {"key": _key(name), "option": name.replace("_", "-")}
    if further.get("together"):
        derived["agrees"] = f"goes together with `{_key(further['together'])}`"
    return Setting(**{"name": name, "default": plain, **derived, **further})


def _key(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.title, others))
