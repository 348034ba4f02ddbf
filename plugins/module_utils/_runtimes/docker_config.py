# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The settings that docker's daemon.json and command line must have so that pods get the nvidia runtime. No Ansible, no writing here.

dockerd accepts each option in one of both places only, with equal values, too; "runtimes" alone are taken together. It knows options by
their exact names, and the keys of a runtime in any case, of which the last one counts: moby 28.5.2, daemon/config, decodes the file into
a map for the former and into its structures for the latter, by Go's encoding/json (read on 2026-11-29).
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from .._change.undo import Rejected
from .._formats.json_edit import JsonError, Path, loads, remove, set_value
from .._host.host import flag
from .plan import RUNTIME, Runtimes

DEFAULT, TABLE = "default-runtime", "runtimes"
BUILTIN = "runc"
_EMPTY = "{}\n"
# Where dockerd finds a program that is named without a folder, also by NVIDIA's own tools.
_FOLDERS = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
# Low-level runtimes that run a container as runc does, with the same isolation.
_ALIKE = ("runc", "docker-runc", "crun", "nvidia-container-runtime")
_RUNC_TYPE = "io.containerd.runc."
_KEYS = ("path", "runtimeArgs", "runtimeType", "options")
_TOOLKIT = "/etc/nvidia-container-runtime/config.toml"
_SHOWN = 80
_SECRET = re.compile(r'("[^"\n]*(?:password|token|secret|credential)[^"\n]*"\s*:\s*)"(?:[^"\\\n]|\\.)*"', re.IGNORECASE)
_USER = re.compile(r"(\w://)[^/@\s\"]+@")


@dataclass(frozen=True)
class Source:
    """A file that the command line of the next start comes from, and its text."""

    path: str
    text: str


@dataclass(frozen=True)
class DockerdStart:
    """How dockerd will be started next. words: its arguments; sources: files of the unit and of its environment."""

    unit: str
    words: List[str]
    sources: List[Source]

    def value(self, name: str) -> Optional[str]:
        """Of the last --name."""
        return flag(self.words, name)

    @property
    def runtimes(self) -> Dict[str, str]:
        """Runtimes of the command line: name to program."""
        found = {}
        for place, word in enumerate(self.words):
            key, equals, rest = word.partition("=")
            if key == "--add-runtime":
                # --add-runtime name=path, or --add-runtime=name=path
                name, _equals, path = (rest if equals else next(iter(self.words[place + 1 : place + 2]), "")).partition("=")
                found[name] = path
        return found

    def where(self, option: str) -> str:
        """Where a file of the unit has this option, as "path:line"; the command line as a whole where none has it."""
        return self.line_of(option) or f"the command line of {self.unit}"

    def line_of(self, option: str) -> Optional[str]:
        """As "path:line", None for nowhere. A later file counts more."""
        pattern = re.compile(rf"^[^#;]*--{re.escape(option)}\b", re.MULTILINE)
        for source in reversed(self.sources):
            match = pattern.search(source.text)
            if match:
                return f"{source.path}:{source.text.count(chr(10), 0, match.end()) + 1}"
        return None


def parsed(path: str, text: str) -> Dict[str, Any]:
    """The configuration. It raises Rejected, with the line, if it is none that we edit."""
    if not text.strip():
        return {}
    try:
        data = loads(text)
    except JsonError as error:
        raise Rejected(
            f"{path}: {error}. dockerd needs plain JSON: correct the file, see that docker starts with it, and run again"
        ) from error
    runtimes = data.get(TABLE, {}) if isinstance(data, dict) else None
    if not isinstance(data, dict) or not isinstance(runtimes, dict) or not all(isinstance(runtime, dict) for runtime in runtimes.values()):
        raise Rejected(f"{path} is not an object whose {TABLE!r} is an object of objects, as dockerd requires: correct it, and run again")
    return data


def needed(
    data: Mapping[str, Any], path: str, start: DockerdStart, program: str, default: bool
) -> Tuple[List[Tuple[Path, Any]], List[str]]:
    """Changes of daemon.json so that there is nvidia with this program, by `default` as the default; and notes. It raises Rejected if it
    cannot be.

    A default runtime of the command line is adopted: with another one in the file, even an equal one, dockerd would not start.
    """
    changes: List[Tuple[Path, Any]] = []
    notes: List[str] = []
    now, flagged = data.get(DEFAULT), start.value(DEFAULT)
    if now is not None and flagged is not None:
        raise Rejected(
            f"{path} has {DEFAULT!r} and {start.where(DEFAULT)} has --{DEFAULT}={flagged}, so docker would not start again; nothing was "
            "changed: remove one of them, and run again"
        )
    if flagged == RUNTIME:
        notes.append(f"{start.where(DEFAULT)} has --{DEFAULT}={RUNTIME} already: it stays, and {path} gets no default runtime")
    elif default and flagged is not None:
        raise Rejected(
            f"{start.where(DEFAULT)} has --{DEFAULT}={flagged}, and dockerd accepts no other one from {path}; nothing was changed: remove "
            f"it there, call `systemctl daemon-reload`, restart {start.unit}, and run again"
        )
    elif default and now != RUNTIME:
        _check_isolation(data, start, str(now or BUILTIN))
        notes += _lost(data, path, start, str(now or BUILTIN))
        changes.append(((DEFAULT,), RUNTIME))
    entry, added = data.get(TABLE, {}).get(RUNTIME), start.runtimes.get(RUNTIME)
    if added is not None and not same_program(added, program):
        raise Rejected(
            f"{start.where('add-runtime')} has --add-runtime {RUNTIME}={added}, expected {program}; nothing was changed: remove it there, "
            "or set gpushare_container_runtime_program"
        )
    said = _normal(entry or {})
    if "runtimeType" in said:
        raise Rejected(f"{path}: the runtime {RUNTIME} has a runtimeType, expected a path ({program}); nothing was changed: remove it")
    # Also where the command line has it: dockerd searches for the default runtime of the file in the file, and reloads that alone.
    if entry is None:
        changes.append(((TABLE, RUNTIME), {"path": program, "runtimeArgs": []}))
    elif not same_program(str(said.get("path", "")), program):
        changes.append(((TABLE, RUNTIME, _spelled(entry, "path")), program))
    return changes, notes


def edited(text: str, changes: Sequence[Tuple[Path, Any]]) -> str:
    text = text if text.strip() else _EMPTY
    for path, value in changes:
        text = set_value(text, path, value)
    return text


def reverted(text: str, original: str) -> Optional[str]:
    """daemon.json without our part, None if then nothing is left in it. original: as it was before us, "" if it was not there."""
    data, old = loads(text if text.strip() else _EMPTY), loads(original if original.strip() else _EMPTY)
    if data.get(DEFAULT) == RUNTIME and old.get(DEFAULT) != RUNTIME:
        text = set_value(text, (DEFAULT,), old[DEFAULT]) if DEFAULT in old else remove(text, (DEFAULT,))
    before = old.get(TABLE, {}).get(RUNTIME)
    if before is None:
        text = remove(text, (TABLE, RUNTIME))
        if TABLE not in old and loads(text if text.strip() else _EMPTY).get(TABLE) == {}:
            text = remove(text, (TABLE,))
    elif RUNTIME in data.get(TABLE, {}) and "path" in _normal(before):
        text = set_value(text, (TABLE, RUNTIME, _spelled(data[TABLE][RUNTIME], "path")), _normal(before)["path"])
    return None if not original and not loads(text) else text


def effective(data: Mapping[str, Any], start: DockerdStart) -> Runtimes:
    """The runtimes that pods get from a docker that is started with this configuration."""
    entries = {name: {"path": path} for name, path in start.runtimes.items()}
    entries.update({name: _normal(entry) for name, entry in data.get(TABLE, {}).items()})
    return Runtimes(start.value(DEFAULT) or data.get(DEFAULT) or BUILTIN, entries)


def not_running(wanted: Runtimes, running: Runtimes) -> Optional[str]:
    """The settings that the process lacks of the configuration on the disk, as far as it concerns us; None if nothing.

    A runtime that it has beyond that does no harm as long as it is not the default.
    """
    if running.default != wanted.default:
        return f"its default runtime is {running.default!r}, expected {wanted.default!r}"
    should, has = wanted.entries.get(RUNTIME), running.entries.get(RUNTIME)
    if should is not None and (has is None or not same_program(str(has.get("path", "")), str(should.get("path", "")))):
        return f"its runtime {RUNTIME} is {(has or {}).get('path')!r}, expected {should.get('path')!r}"
    return None


def same_program(program: str, other: str) -> bool:
    """Whether dockerd would start the same program."""
    return program == other or os.path.realpath(_found(program)) == os.path.realpath(_found(other))


def masked(text: str) -> str:
    """A configuration to be shown: passwords of proxies and tokens of log drivers are hidden."""
    return _USER.sub(r"\1(hidden)@", _SECRET.sub(r'\1"(hidden)"', text))


def _spelled(entry: Mapping[str, Any], name: str) -> str:
    """The key of a runtime that dockerd takes for the one of this name; the name where there is none."""
    return next((key for key in reversed(list(entry)) if key.casefold() == name.casefold()), name)


def _normal(entry: Mapping[str, Any]) -> Dict[str, Any]:
    """A runtime with its keys spelled as dockerd's documentation does."""
    names = {name.casefold(): name for name in _KEYS}
    return {names.get(key.casefold(), key): value for key, value in entry.items()}


def _lost(data: Mapping[str, Any], path: str, start: DockerdStart, name: str) -> List[str]:
    """A note on what pods have by this default runtime and do not get from nvidia."""
    entry = effective(data, start).entries.get(name, {})
    lost = {key: entry[key] for key in ("runtimeArgs", "options") if entry.get(key)}
    if entry.get("path") and not same_program(str(entry["path"]), BUILTIN):
        lost["path"] = entry["path"]
    if not lost:
        return []
    shown = ", ".join(f"{key} {str(value)[:_SHOWN]}" for key, value in lost.items())
    return [
        f"{path}: pods have had {shown} by the default runtime {name}, and do not get that from {RUNTIME}: add arguments that they need to "
        f"{TABLE}.{RUNTIME}, and put another program than {BUILTIN} first in the list `runtimes` of {_TOOLKIT}"
    ]


def _found(program: str) -> str:
    paths = [program] if "/" in program else [os.path.join(folder, program) for folder in _FOLDERS]
    return next((path for path in paths if os.access(path, os.X_OK)), program)


def _check_isolation(data: Mapping[str, Any], start: DockerdStart, name: str) -> None:
    entry = effective(data, start).entries.get(name, {})
    kind = str(entry.get("runtimeType", "") or ("" if entry else name))
    alike = os.path.basename(str(entry.get("path", ""))) in _ALIKE or kind in _ALIKE or kind.startswith(_RUNC_TYPE)
    if not alike:
        raise Rejected(
            f"the default runtime is {name} ({entry.get('path') or kind}), which is not run by runc or crun: making {RUNTIME} the default "
            "would take its isolation from every pod; nothing was changed: make runc the default first, or set gpushare_default_runtime: "
            "unchanged"
        )
