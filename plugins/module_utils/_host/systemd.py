# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The facts that systemd knows of a unit, and its rules for environment files and command lines: the one place for both.

The caller of `systemctl show` differs (a module, or with a time limit), its output does not. The rules are those of systemd 252 and 257:
src/basic/env-file.c, extract-word.c and env-util.c (read on 2026-11-29).
"""

from __future__ import annotations

import re
import time
from typing import Dict, List, Mapping, Optional, Sequence, Tuple

from .command import Run

#: Where an administrator's units are, and ours.
UNITS = "/etc/systemd/system"
# Of an environment file. A comment that ends with a backslash goes on, except from systemd 254 on: nobody may rely on it.
_GAP = re.compile(r"(?:[ \t\r\n]|[#;][^\r\n]*)*")
_KEY = re.compile(r"([^=\r\n]*)=")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LINE = re.compile(r"[^\r\n]*")
_BLANKS = re.compile(r"[ \t]*")
_QUOTED = re.compile(r"""'([^']*)(?:'|\Z)|"((?:[^"\\]|\\(?:.|\Z))*)(?:"|\Z)""", re.DOTALL)
_ESCAPED = re.compile(r"\\(.|\Z)", re.DOTALL)
_PLAIN = re.compile(r"(?:[^\\\r\n]|\\(?:\r\n|.|\Z))+", re.DOTALL)
_PIECE = re.compile(r"\\(\r\n|.|\Z)|([^\\]+)", re.DOTALL)
# Of a command line, or of a value in it.
_WORD = re.compile(r"""(?:[^\s"'\\]|\\(?:.|\Z)|"(?:[^"\\]|\\(?:.|\Z))*(?:"|\Z)|'(?:[^'\\]|\\(?:.|\Z))*(?:'|\Z))+""", re.DOTALL)
_PART = re.compile(r""""((?:[^"\\]|\\.)*)"?|'((?:[^'\\]|\\.)*)'?|\\.""", re.DOTALL)
_ALONE = re.compile(r"\$(\w+)")
_BRACED = re.compile(r"\$\{(\w+)\}")


def show_command(unit: str, *properties: str, program: str = "systemctl") -> List[str]:
    """The call that asks for these properties of a unit."""
    return [program, "show", unit, f"--property={','.join(properties)}"]


def parsed(printed: str) -> Dict[str, str]:
    """Property to its value."""
    lines = (line.partition("=") for line in printed.splitlines())
    return {key: value for key, equals, value in lines if equals}


def show(run: Run, unit: str, *properties: str) -> Dict[str, str]:
    """The facts that systemd knows of a unit, also of one that there is not; {} where there is no systemd."""
    _status, out, _err = run(show_command(unit, *properties))
    return parsed(out)


def unix_time(monotonic: Optional[str]) -> float:
    """The Unix time of a moment that systemd gives in microseconds since the host's start, as ExecMainStartTimestampMonotonic.

    A busy host may stop this process between two clocks, which would make the moment earlier: the latest of several counts.
    """
    return max(time.time() - time.monotonic() for attempt in range(5)) + int(monotonic or 0) / 1e6


def environment(text: str) -> Dict[str, str]:
    """An environment file, or os-release, which has the same form: KEY=VALUE lines.

    Quotes count at the beginning of a value only, where they may go over lines; within it they are part of it. A line that ends with a
    backslash goes on in the next one, without anything between. Names that are none, as "export KEY", are left out.
    """
    found = {}
    place = 0
    while place < len(text):
        start = _matched(_GAP, text, place)
        key = _KEY.match(text, start)
        if key is None:
            place = _matched(_LINE, text, start) + 1
            continue
        value, place = _value(text, key.end())
        name = key.group(1).rstrip(" \t")
        if _NAME.fullmatch(name):
            found[name] = value
    return found


def words(text: str) -> List[str]:
    """The words of a variable's value, or of a command line. Quotes may stand anywhere in a word; one that is not closed ends with it."""
    return [_PART.sub(_unquoted, word) for word in _WORD.findall(text)]


def expanded(command: Sequence[str], variables: Mapping[str, str]) -> List[Tuple[str, str]]:
    """(word, variable by which it comes) of a command line. $NAME that is a whole word becomes the words of its value, ${NAME} anywhere its
    value."""
    found: List[Tuple[str, str]] = []
    for word in command:
        alone = _ALONE.fullmatch(word)
        if alone:
            found += [(part, alone.group(1)) for part in words(variables.get(alone.group(1), ""))]
        else:
            found.append((_BRACED.sub(lambda match: variables.get(match.group(1), ""), word), ""))
    return found


def _value(text: str, place: int) -> Tuple[str, int]:
    """The value that begins here, and where the next line does."""
    parts: List[str] = []
    while True:
        place = _matched(_BLANKS, text, place)
        quoted = _QUOTED.match(text, place)
        if quoted is None:
            break
        single, double = quoted.groups()
        parts.append(single if double is None else _ESCAPED.sub(_shell, double))
        place = quoted.end()
    plain = _PLAIN.match(text, place)
    if plain is not None:
        pieces = [match.groups() for match in _PIECE.finditer(plain.group())]
        # Blanks at the end go, but not one that a backslash protects.
        last = pieces[-1][1]
        pieces[-1] = (pieces[-1][0], None if last is None else last.rstrip(" \t"))
        # An escaped end of line is nothing.
        parts += [escaped.strip("\r\n") if bare is None else bare for escaped, bare in pieces]
        place = plain.end()
    return "".join(parts), place + 1


def _shell(match: "re.Match[str]") -> str:
    """A backslash in double quotes, and what follows it."""
    letter = match.group(1)
    return letter if letter in '"\\`$' else "" if letter == "\n" else match.group()


def _unquoted(match: "re.Match[str]") -> str:
    quoted = match.group(1) if match.group(1) is not None else match.group(2)
    return re.sub(r"\\(.)", r"\1", quoted if quoted is not None else match.group(), flags=re.DOTALL)


def _matched(pattern: "re.Pattern[str]", text: str, place: int) -> int:
    match = pattern.match(text, place)
    return match.end() if match else place
