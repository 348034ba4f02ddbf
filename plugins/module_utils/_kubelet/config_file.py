# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""featureGates in a KubeletConfiguration, as YAML or JSON, on hosts that have no YAML library. Comments and order stay.

Pure. An edit is compared with what the text says before and after: it is exactly the change, or an error. kubelet reads a file that begins
with { as JSON, and of any other the first YAML document: k8s.io/apimachinery, runtime/serializer (0.36.3, read on 2026-11-29).
"""

from __future__ import annotations

import re
from typing import Dict, List, Mapping, NamedTuple, Optional, Tuple

from .._formats import json_edit, line_ends
from .._formats.failure import Failure
from .._formats.yaml_scalars import BOOLEANS, first_document, scalars
from .gates import MOST_GATES

KIND, KEY = "KubeletConfiguration", "featureGates"
_LINE = re.compile(rf"^{KEY}:[ \t]*(?P<inline>[^#\r\n]*?)[ \t]*(?P<comment>#[^\r\n]*)?\r?$", re.MULTILINE)
_NAME = r"""(?P<quote>["']?)(?P<name>\w+)(?P=quote)"""
_VALUE = f"(?P<value>{'|'.join(sorted(BOOLEANS, key=len, reverse=True))})"
_MEMBER = re.compile(rf"""^(?P<indent>[ \t]+){_NAME}[ \t]*:[ \t]+{_VALUE}(?P<rest>[ \t]*(?:\s#.*)?)$""")
# In braces, which may go over several lines with comments.
_FLOW_MEMBER = re.compile(rf"""{_NAME}[ \t]*:[ \t\r\n]*{_VALUE}(?=[\s,}}])""")
_FLOW_SPACE = re.compile(r"(?:[ \t\r\n]|(?<=[\s{,])#[^\n]*)*")
_TAB = re.compile(r"^ *\t[ \t]*[^\s#]", re.MULTILINE)
_ROOT = re.compile(r"^(?!---|[ \t]*(?:[#%]|\r?$))(?P<indent>[ \t]*)", re.MULTILINE)


class ConfigError(Failure, ValueError):
    """A configuration that is not edited; says what was found."""


def gates_of(text: str) -> Dict[str, bool]:
    """The gates of a KubeletConfiguration. ConfigError if it is none, or its gates stand in a form that is not read."""
    values = scalars(text)
    if values.get("kind") != KIND:
        raise ConfigError(f"kind is {values.get('kind', 'missing')[:80]!r}; expected {KIND}")
    if text.lstrip().startswith("{"):
        return {key.partition(".")[2]: value == "true" for key, value in values.items() if key.startswith(f"{KEY}.")}
    text = first_document(text)[0]
    root = _ROOT.search(text)
    if root is not None and root.group("indent"):
        raise ConfigError("the whole of it is indented; expected keys at the beginning of their lines")
    if re.search(r"^<<[ \t]*:", text, re.MULTILINE):
        raise ConfigError("it takes keys from elsewhere (<<)")
    found = _LINE.findall(text)
    if len(found) > 1 or re.search(rf"""^(?:["']{KEY}["']|{KEY}[ \t]+:)""", text, re.MULTILINE):
        raise ConfigError(f"{KEY} stands there twice, in quotes, or with a blank before its colon")
    return {} if not found else dict(_members(text).gates)


def with_gates(text: str, changes: Mapping[str, Optional[bool]]) -> str:
    """The configuration with these gates, or without them (None). A featureGates that becomes empty goes. ConfigError as for `gates_of`."""
    return line_ends.kept(text, lambda lines: _with_gates(lines, changes))


def _with_gates(text: str, changes: Mapping[str, Optional[bool]]) -> str:
    before = gates_of(text)
    wanted = {**before, **{name: value for name, value in changes.items() if value is not None}}
    wanted = {name: value for name, value in wanted.items() if changes.get(name, value) is not None}
    if wanted == before:
        return text
    is_json = text.lstrip().startswith("{")
    tab = None if is_json else _TAB.search(text)
    if tab is not None:
        # kubelet does not read such a file, and the next line might be anything.
        raise ConfigError(f"line {text.count(chr(10), 0, tab.start()) + 1} is indented by a tab, which YAML does not permit")
    first, rest = first_document(text)
    after = _json(text, wanted, before) if is_json else _yaml(first, wanted, before) + rest
    others = [{key: value for key, value in scalars(content).items() if not key.startswith(KEY)} for content in (text, after)]
    if gates_of(after) != wanted or others[0] != others[1]:
        raise ConfigError(f"{KEY} stands in a form that is not edited")
    return after


def _json(text: str, wanted: Mapping[str, bool], before: Mapping[str, bool]) -> str:
    try:
        for name in before:
            if name not in wanted:
                text = json_edit.remove(text, (KEY, name))
        for name, value in wanted.items():
            if before.get(name) is not value:
                text = json_edit.set_value(text, (KEY, name), value)
        return text if wanted else json_edit.remove(text, (KEY,))
    except ValueError as error:
        # Of a text that is not JSON, or of a featureGates that is not an object.
        raise ConfigError(str(error)) from error


def _yaml(text: str, wanted: Mapping[str, bool], before: Mapping[str, bool]) -> str:
    match = _LINE.search(text)
    if match is None:
        end = "" if not text or text.endswith("\n") else "\n"
        return text + end + "\n".join([f"{KEY}:", *_block(wanted, "  ")]) + "\n"
    comment = f"  {match.group('comment')}" if match.group("comment") else ""
    found = _members(text)
    new = {name: value for name, value in wanted.items() if name not in before}
    if match.group("inline") in ("", "null", "~"):
        lines = text[found.start : found.end].splitlines()
        indent = next((member.group("indent") for member in map(_MEMBER.match, lines) if member), "  ")
        kept = [line for line in (_edited(line, wanted) for line in lines) if line is not None]
        kept += _block(new, indent)
        inner = "".join(f"{line}\n" for line in kept)
        if not wanted:
            return text[: match.start()] + inner + text[found.end :]
        return f"{text[: match.start()]}{KEY}:{comment}\n{inner}{text[found.end :]}"
    if not wanted:
        return text[: match.start()] + text[text.find("\n", found.end) + 1 :]
    if before:
        return text[: found.start] + _flow(text[found.start : found.end], wanted, new) + text[found.end :]
    rest = text[found.end :].partition("\n")
    return f"{text[: match.start()]}{KEY}:{rest[0] or comment}\n" + "".join(f"{line}\n" for line in _block(wanted, "  ")) + rest[2]


class _Members(NamedTuple):
    """start, end: of the lines below the key, or of the braces; in a text without gates there, an empty span."""

    start: int
    end: int
    gates: Dict[str, bool]


def _members(text: str) -> _Members:
    match = _LINE.search(text)
    if match is None:
        raise ConfigError(f"found no key {KEY}")
    inline, place = match.group("inline"), min(match.end() + 1, len(text))
    if inline not in ("", "null", "~"):
        start = match.start("inline")
        if not inline.startswith("{"):
            raise ConfigError(f"{KEY} is {inline[:80]!r}; expected gates with true or false")
        members, end = _flow_members(text, start)
        if not re.compile(r"[ \t]*(?:[ \t]#[^\n]*|\r)?(?:\n|\Z)").match(text, end):
            raise ConfigError(f"{KEY} is {inline[:80]!r}, and something follows; expected nothing behind the brace")
        return _Members(start, end, {member.group("name"): BOOLEANS[member.group("value")] for member in members})
    found: Dict[str, bool] = {}
    end = place
    for line in text[place:].splitlines(True):
        bare = line.strip()
        if bare and not bare.startswith("#"):
            if not line[0].isspace():
                break
            member = _MEMBER.match(line.rstrip("\r\n"))
            if member is None:
                raise ConfigError(f"{KEY} has the line {bare[:80]!r}; expected a gate with true or false")
            found[member.group("name")] = BOOLEANS[member.group("value")]
            end = place + len(line)
        place += len(line)
    return _Members(match.end() + 1 if found else min(match.end() + 1, len(text)), end, found)


def _flow_members(text: str, start: int) -> Tuple[List["re.Match[str]"], int]:
    """The gates in braces that begin here, and where the braces end."""
    found: List["re.Match[str]"] = []
    place = _after_space(text, start + 1)
    while not text.startswith("}", place):
        member = _FLOW_MEMBER.match(text, place)
        if member is None or len(found) > MOST_GATES:
            raise ConfigError(f"{KEY} has {text[place : place + 80]!r}; expected a gate with true or false")
        found.append(member)
        place = _after_space(text, member.end())
        if text.startswith(",", place):
            place = _after_space(text, place + 1)
        elif not text.startswith("}", place):
            raise ConfigError(f"{KEY} has {text[place : place + 80]!r}; expected a comma or a closing brace")
    return found, place + 1


def _after_space(text: str, place: int) -> int:
    match = _FLOW_SPACE.match(text, place)
    return match.end() if match else place


def _flow(text: str, wanted: Mapping[str, bool], new: Mapping[str, bool]) -> str:
    """Braces with the gates as wanted: what stays keeps its place, lines and comments."""
    members = _flow_members(text, 0)[0]
    kept = [member for member in members if member.group("name") in wanted]
    added = ", ".join(f"{name}: {_word(value)}" for name, value in new.items())
    if not kept:
        return f"{{{added}}}"
    for place in reversed(range(len(members))):
        member, name = members[place], members[place].group("name")
        if name not in wanted:
            follows = any(later in kept for later in members[place + 1 :])
            start, end = (member.start(), members[place + 1].start()) if follows else (members[place - 1].end(), member.end())
            text = text[:start] + text[end:]
            continue
        if member is kept[-1] and added:
            text = f"{text[: member.end()]}, {added}{text[member.end() :]}"
        if BOOLEANS[member.group("value")] is not wanted[name]:
            text = text[: member.start("value")] + _word(wanted[name]) + text[member.end("value") :]
    return text


def _edited(line: str, wanted: Mapping[str, bool]) -> Optional[str]:
    """A line with its gate as wanted; None if the gate goes."""
    match = _MEMBER.match(line)
    if match is None:
        return line
    name = match.group("name")
    if name not in wanted:
        return None
    if BOOLEANS[match.group("value")] is wanted[name]:
        return line
    return line[: match.start("value")] + _word(wanted[name]) + line[match.end("value") :]


def _block(members: Mapping[str, bool], indent: str) -> List[str]:
    return [f"{indent}{name}: {_word(value)}" for name, value in members.items()]


def _word(value: bool) -> str:
    return "true" if value else "false"
