# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The plain values in a YAML or JSON file, on hosts that have no YAML library.

Pure. Understands block mappings of scalars, as Kubernetes' and k3s' own configuration files are written; lists and multi-line text are
passed over, never misread as something else. Both read the first document of a file, by go.yaml.in/yaml/v2 (see BOOLEANS).
"""

from __future__ import annotations

import json
import re
from typing import Any, Dict, List, Mapping, Optional, Tuple

_QUOTED = re.compile(r"'((?:[^']|'')*)'|(\"(?:[^\"\\]|\\.)*\")")
#: What is true and false without quotes (go.yaml.in/yaml/v2 2.4.2, resolve.go, read on 2026-11-29), of which a host may have any.
BOOLEANS: Mapping[str, bool] = {
    **dict.fromkeys(["y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"], True),
    **dict.fromkeys(["n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"], False),
}
# What begins a document, or ends one; and what may stand before the first one.
_MARKER = re.compile(r"^(?:---|\.\.\.)(?=[ \t\r\n]|\Z)", re.MULTILINE)
_NOTHING = re.compile(r"(?:\ufeff|[ \t]*(?:[#%][^\n]*)?(?:\n|\r\n?|\Z))*")
#: More than a configuration has: what is deeper is passed over, because each line costs as much as its path is long.
_DEEPEST = 32
_LINE = re.compile(r"( *)([A-Za-z0-9_.\-/]+|\"[^\"]+\"|'[^']+') *:(?: +(.*))?$")


def scalars(text: str) -> Dict[str, str]:
    """The dotted path to the value, both as text: {"kind": "KubeletConfiguration", "featureGates.DevicePlugins": "true"}."""
    if text.lstrip().startswith("{"):
        try:
            found: Dict[str, str] = {}
            _flatten("", json.loads(text), found)
            return found
        except (ValueError, RecursionError):
            return {}
    return _block(first_document(text)[0].splitlines())


def first_document(text: str) -> Tuple[str, str]:
    """The first YAML document of the text, with what stands before it; and the rest, which Kubernetes does not read."""
    place = 0
    for marker in _MARKER.finditer(text):
        before = _NOTHING.match(text, place)
        if place or marker.group() != "---" or before is None or before.end() != marker.start():
            return text[: marker.start()], text[marker.start() :]
        place = marker.end()
    return text, ""


def _flatten(path: str, value: Any, found: Dict[str, str]) -> None:
    if isinstance(value, dict):
        for key, inner in value.items():
            _flatten(f"{path}.{key}" if path else str(key), inner, found)
    elif isinstance(value, (str, int, float)):
        found[path] = str(value).lower() if isinstance(value, bool) else str(value)


def _block(lines: List[str]) -> Dict[str, str]:
    found: Dict[str, str] = {}
    parents: List[Tuple[int, str]] = []
    opaque = -1  # indentation of a list or a text block: what is deeper belongs to it
    last: Optional[Tuple[int, str]] = None  # indentation and path of the last value: a deeper line continues it
    for line in lines:
        bare = line.strip()
        indent = len(line) - len(line.lstrip(" "))
        if not bare or bare.startswith("#") or (0 <= opaque < indent):
            continue
        opaque = -1
        if last and indent > last[0]:
            found.pop(last[1], None)
            opaque = last[0]
            continue
        last = None
        match = _LINE.match(line.rstrip())
        if match is None or bare.startswith("- "):
            opaque = indent
            continue
        key, value = match.group(2).strip("\"'"), match.group(3) or ""
        while parents and parents[-1][0] >= indent:
            parents.pop()
        path = ".".join([*(name for dummy, name in parents), key])
        if value.startswith(("|", ">", "[", "{", "&", "*", "!")) or len(parents) >= _DEEPEST:
            opaque = indent
        elif not value or value.startswith("#"):
            parents.append((indent, key))
        else:
            told = _value(value)
            if told is not None:
                found[path] = told
            last = (indent, path)
    return found


def _value(text: str) -> Optional[str]:
    """None for a text in quotes that does not end here, or that only a YAML library can read."""
    if text[0] not in "\"'":
        word = re.split(r"\s#", text, maxsplit=1)[0].strip()
        return ("true" if BOOLEANS[word] else "false") if word in BOOLEANS else word
    match = _QUOTED.match(text)
    if match is None:
        return None
    if match.group(2) is None:
        return match.group(1).replace("''", "'")
    try:
        return str(json.loads(match.group(2)))
    except ValueError:
        return None
