# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Where the arguments of kubelet's next start come from: its unit, drop-ins and environment files, and edits of --feature-gates in them.

Pure: works on texts. Follows systemd: a later assignment wins, an environment file wins over Environment=. `_host/systemd.py` has its
rules for quotes and variables.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from .._formats.failure import Failure
from .._host.systemd import environment, expanded, words
from . import gates

FLAG = "--feature-gates"
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+)\Z)")
_IN_TEXT = re.compile(r"(?P<flag>--?feature-gates)(?P<between>=|[ \t]+)(?P<quote>[\"']?)(?P<value>[A-Za-z0-9=,]*)(?P=quote)")
#: Variables that are for the administrator's own arguments, by preference: kubeadm's packages, and distributions' own.
EXTRA = ("KUBELET_EXTRA_ARGS", "KUBELET_ARGS", "KUBELET_CUSTOM_FLAGS")


class ArgumentsError(Failure, ValueError):
    """A form of the unit that is not edited; says which."""


@dataclass(frozen=True)
class StartFile:
    """A file of kubelet's start."""

    path: str
    text: str


@dataclass(frozen=True)
class Word:
    """One argument. variable: by which it comes, "" for one that stands in ExecStart; path: of the file that says it."""

    text: str
    variable: str
    path: str


@dataclass(frozen=True)
class KubeletStart:
    """How systemd will start kubelet next. used: the variables in its command; defined: name to the file whose value counts."""

    words: Tuple[Word, ...]
    used: Tuple[str, ...]
    defined: Mapping[str, str]
    environment_files: Tuple[StartFile, ...]

    @property
    def argv(self) -> List[str]:
        return [word.text for word in self.words]

    def gate_words(self) -> List[Word]:
        """The arguments that set feature gates, in their order; the last one that names a gate counts."""
        return [word for word in self.words if word.text.partition("=")[0] in (FLAG, FLAG[1:])]


def environment_file_paths(units: Sequence[StartFile]) -> List[Tuple[str, bool]]:
    """(path, whether it may be missing) of each EnvironmentFile= of the unit's files, in order."""
    found: List[Tuple[str, bool]] = []
    for _source, key, value in _settings(units):
        if key == "EnvironmentFile":
            path = value.strip().strip("\"'")
            found = [*found, (path.lstrip("-"), path.startswith("-"))] if path else []
    return found


def start_of(units: Sequence[StartFile], environment_files: Sequence[StartFile]) -> KubeletStart:
    """The next start. units: the unit's own file and its drop-ins, in systemd's order. ArgumentsError if no ExecStart is there."""
    values: Dict[str, str] = {}
    defined: Dict[str, str] = {}
    command, command_path = "", ""
    for source, key, value in _settings(units):
        if key == "Environment":
            for assignment in words(value):
                name, equals, content = assignment.partition("=")
                if equals:
                    values[name], defined[name] = content, source.path
            if not value.strip():
                values, defined = {}, {}
        elif key == "ExecStart":
            # An empty one takes back those before it.
            command, command_path = value, source.path
    for source in environment_files:
        for name, content in environment(source.text).items():
            values[name], defined[name] = content, source.path
    if not command:
        raise ArgumentsError("kubelet's unit has no ExecStart")
    line = words(command)[1:]
    used = [match.group(1) or match.group(2) for word in line for match in _VARIABLE.finditer(word) if match.group(1) or not match.start()]
    given = tuple(Word(text, name, defined.get(name, "") if name else command_path) for text, name in expanded(line, values))
    return KubeletStart(given, tuple(used), defined, tuple(environment_files))


def with_gates(text: str, variable: str, changes: Mapping[str, Optional[bool]]) -> str:
    """The text of a unit or an environment file in which the last --feature-gates has these gates (None: not any more).

    variable: whose value has it, "" for one in ExecStart. A list that becomes empty goes with its flag. ArgumentsError if it is not found,
    GateError if it is not a list of gates.
    """
    spans = list(_assignments(text, variable)) if variable else _commands(text)
    for start, end in reversed(spans):
        found = [match for match in _IN_TEXT.finditer(text, start, end) if not text[: match.start()].endswith(("-", "\\"))]
        if not found:
            continue
        match = found[-1]
        value = gates.merged(match.group("value"), changes)
        if value:
            quote = match.group("quote")
            return text[: match.start()] + match.group("flag") + match.group("between") + quote + value + quote + text[match.end() :]
        first = match.start()
        while first > start and text[first - 1] in " \t":
            first -= 1
        return text[:first] + text[match.end() :]
    raise ArgumentsError(f"{FLAG} stands in a form that is not edited")


def with_argument(text: str, variable: str, argument: str) -> str:
    """The text of an environment file with this argument at the end of the variable's value; a new line where it has none.

    ArgumentsError for a value that is not one line in plain words or in one pair of quotes.
    """
    spans = list(_assignments(text, variable))
    if not spans:
        return text + ("" if not text or text.endswith("\n") else "\n") + f"{variable}={argument}\n"
    start, end = spans[-1]
    value = text[start:end].rstrip()
    if "\\\n" in value:
        raise ArgumentsError(f"{variable} goes over several lines")
    match = re.fullmatch(r"""(?P<quote>["']?)(?P<inner>[^"'\\]*)(?P=quote)""", value)
    if match is None:
        raise ArgumentsError(f"{variable} has a value with quotes inside")
    inner = f"{match.group('inner').strip()} {argument}".strip()
    quote = match.group("quote") or ('"' if match.group("inner").strip() else "")
    return text[:start] + quote + inner + quote + text[start + len(value) :]


def with_unit_argument(text: str, variable: str, argument: str) -> str:
    """The text of a unit's file, whose Environment= has the variable, with this argument at the end of its value."""
    spans = list(_assignments(text, variable))
    if not spans:
        raise ArgumentsError(f"{variable} stands in a form that is not edited")
    start, end = spans[-1]
    inner = text[start:end]
    if "\n" in inner or (not text[:start].endswith((f'"{variable}=', f"'{variable}=")) and inner.strip()):
        raise ArgumentsError(f"{variable} stands in a form that is not edited")
    return text[:start] + f"{inner.rstrip()} {argument}".strip() + text[end:]


def gates_in_text(text: str) -> Dict[str, bool]:
    """The gates of every --feature-gates in a unit's file or an environment file, in their order. GateError if one is not a list of
    gates."""
    found: Dict[str, bool] = {}
    for line in _joined(text):
        if not line.lstrip().startswith(("#", ";")):
            for match in _IN_TEXT.finditer(line):
                found.update(gates.parsed(match.group("value")))
    return found


def variables_in(text: str) -> List[str]:
    """The names that a unit's file or an environment file assigns to, each once."""
    names = re.findall(r"""^[ \t]*(?:Environment=)?["']?(\w+)=|["'](\w+)=""", text, re.MULTILINE)
    return list(dict.fromkeys(first or second for first, second in names))


def _settings(units: Sequence[StartFile]) -> Iterator[Tuple[StartFile, str, str]]:
    """(file, key, value) of the assignments in [Service]."""
    for source in units:
        section = ""
        for line in _joined(source.text):
            bare = line.strip()
            if bare.startswith("["):
                section = bare
            elif section == "[Service]" and not bare.startswith(("#", ";")) and "=" in bare:
                key, _equals, value = bare.partition("=")
                yield source, key.strip(), value.strip()


def _joined(text: str) -> List[str]:
    """The lines of a unit's file. A comment between a line and its continuation is none of it."""
    return re.sub(r"\\\r?\n(?:[ \t]*[#;][^\n]*\n)*", " ", text).splitlines()


def _assignments(text: str, variable: str) -> Iterator[Tuple[int, int]]:
    """Where the values of this variable are: in lines of an environment file, and within the quotes of Environment=."""
    name = re.escape(variable)
    for match in re.finditer(rf"""^[ \t]*{name}[ \t]*=[ \t]*((?:[^\n\\]|\\.|\\\n)*)$""", text, re.MULTILINE):
        yield match.span(1)
    for line in re.finditer(r"^[ \t]*Environment=(?:[^\n\\]|\\.|\\\n)*$", text, re.MULTILINE):
        for match in re.finditer(rf"""(?:"{name}=([^"]*)"|'{name}=([^']*)'|(?<=[\s=]){name}=(\S*))""", line.group()):
            group = match.lastindex or 0
            yield line.start() + match.start(group), line.start() + match.end(group)


def _commands(text: str) -> List[Tuple[int, int]]:
    return [match.span(1) for match in re.finditer(r"^[ \t]*ExecStart=((?:[^\n\\]|\\.|\\\n)*)$", text, re.MULTILINE)]
