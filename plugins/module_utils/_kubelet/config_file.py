# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""featureGates in a KubeletConfiguration, as YAML or JSON, on hosts that have no YAML library. Comments and order stay.

Pure. An edit is compared with what the text says before and after: it is exactly the change, or an error.
"""

from __future__ import annotations

import re
from typing import Dict, List, Mapping, Optional, Tuple

from .._formats import json_edit
from .._formats.yaml_scalars import scalars

KIND, KEY = "KubeletConfiguration", "featureGates"
_LINE = re.compile(rf"^{KEY}:[ \t]*(?P<inline>[^#\n]*?)[ \t]*(?P<comment>#[^\n]*)?$", re.MULTILINE)
_MEMBER = re.compile(r"""^(?P<indent>[ \t]+)(?P<quote>["']?)(?P<name>\w+)(?P=quote):[ \t]+(?P<value>true|false)(?P<rest>[ \t]*(?:#.*)?)$""")
_TAB = re.compile(r"^ *\t[ \t]*[^\s#]", re.MULTILINE)
_FLOW = re.compile(r"\{(?P<members>[^{}]*)\}")


class ConfigError(ValueError):
    """A configuration that is not edited; says what was found."""


def gates_of(text: str) -> Dict[str, bool]:
    """The gates of a KubeletConfiguration. ConfigError if it is none, or its gates stand in a form that is not read."""
    values = scalars(text)
    if values.get("kind") != KIND:
        raise ConfigError(f"kind is {values.get('kind', 'missing')[:80]!r}; expected {KIND}")
    if text.lstrip().startswith("{"):
        return {key.partition(".")[2]: value == "true" for key, value in values.items() if key.startswith(f"{KEY}.")}
    found = _LINE.findall(text)
    if len(found) > 1 or re.search(rf"""^(?:["']{KEY}["']|{KEY}[ \t]+:)""", text, re.MULTILINE):
        raise ConfigError(f"{KEY} stands there twice, in quotes, or with a blank before its colon")
    return {} if not found else dict(_members(text)[2])


def with_gates(text: str, changes: Mapping[str, Optional[bool]]) -> str:
    """The configuration with these gates, or without them (None). A featureGates that becomes empty goes. ConfigError as for `gates_of`."""
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
    after = _json(text, wanted, before) if is_json else _yaml(text, wanted, before)
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
    if len(re.findall(r"^---", text, re.MULTILINE)) > 1 or re.search(r"^\.\.\.", text, re.MULTILINE):
        raise ConfigError("the file has several documents")
    match = _LINE.search(text)
    if match is None:
        end = "" if not text or text.endswith("\n") else "\n"
        return text + end + "\n".join([f"{KEY}:", *_block(wanted, "  ")]) + "\n"
    comment = f"  {match.group('comment')}" if match.group("comment") else ""
    if match.group("inline") in ("", "null", "~"):
        first, last, _found = _members(text)
        lines = text[first:last].splitlines()
        indent = next((member.group("indent") for member in map(_MEMBER.match, lines) if member), "  ")
        kept = [line for line in (_edited(line, wanted) for line in lines) if line is not None]
        kept += _block({name: value for name, value in wanted.items() if name not in before}, indent)
        inner = "".join(f"{line}\n" for line in kept)
        if not wanted:
            return text[: match.start()] + inner + text[last:]
        return f"{text[: match.start()]}{KEY}:{comment}\n{inner}{text[last:]}"
    rest = text[match.end() + 1 :]
    if not wanted:
        return text[: match.start()] + rest
    if before:
        members = ", ".join(f"{name}: {_word(value)}" for name, value in wanted.items())
        return f"{text[: match.start()]}{KEY}: {{{members}}}{comment}\n{rest}"
    return f"{text[: match.start()]}{KEY}:{comment}\n" + "".join(f"{line}\n" for line in _block(wanted, "  ")) + rest


def _members(text: str) -> Tuple[int, int, Dict[str, bool]]:
    """(start, end, gates) of the lines below the key; for gates on its own line, an empty span."""
    match = _LINE.search(text)
    if match is None:
        raise ConfigError(f"found no key {KEY}")
    inline, place = match.group("inline"), min(match.end() + 1, len(text))
    if inline not in ("", "null", "~"):
        flow = _FLOW.fullmatch(inline)
        if flow is None:
            raise ConfigError(f"{KEY} is {inline[:80]!r}; expected gates with true or false")
        return place, place, _flow_members(flow.group("members"))
    found: Dict[str, bool] = {}
    end = place
    for line in text[place:].splitlines(True):
        bare = line.strip()
        if bare and not bare.startswith("#"):
            if not line[0].isspace():
                break
            member = _MEMBER.match(line.rstrip("\n"))
            if member is None:
                raise ConfigError(f"{KEY} has the line {bare[:80]!r}; expected a gate with true or false")
            found[member.group("name")] = member.group("value") == "true"
            end = place + len(line)
        place += len(line)
    return match.end() + 1 if found else min(match.end() + 1, len(text)), end, found


def _flow_members(text: str) -> Dict[str, bool]:
    found = {}
    for member in (part.strip() for part in text.split(",") if part.strip()):
        name, _colon, value = (part.strip().strip("\"'") for part in member.partition(":"))
        if not name.isalnum() or value not in ("true", "false"):
            raise ConfigError(f"{KEY} has {member[:80]!r}; expected a gate with true or false")
        found[name] = value == "true"
    return found


def _edited(line: str, wanted: Mapping[str, bool]) -> Optional[str]:
    """A line with its gate as wanted; None if the gate goes."""
    match = _MEMBER.match(line)
    if match is None:
        return line
    name = match.group("name")
    if name not in wanted:
        return None
    quote = match.group("quote")
    return f"{match.group('indent')}{quote}{name}{quote}: {_word(wanted[name])}{match.group('rest')}"


def _block(members: Mapping[str, bool], indent: str) -> List[str]:
    return [f"{indent}{name}: {_word(value)}" for name, value in members.items()]


def _word(value: bool) -> str:
    return "true" if value else "false"
