# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The state of the files that run our daemons: against the journal, which has the hash of what the roles wrote last. Read-only.

Plain JSON, judged on the controller by _verdict/daemons.py.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass
from typing import Dict, List, Mapping, Sequence

from .._change.journal import Journal, JournalError
from .._change.subjects import CONFIG, NAME, SETTINGS, is_ours
from .._cluster.names import DASHBOARD, EXTENDER, PLUGIN
from .._host.files import digest
from .._host.host import Host
from .._host.systemd import UNITS, parsed, unix_time

#: Settings with which a unit starts another process, or the same with other words; the level of the log is none (docs/operate/failures.md).
_STARTS = re.compile(
    r"^\s*(?!Environment=LOG_LEVEL=[a-z]+$)(?:ExecStart\w*|Environment|EnvironmentFile|User|Group|RootDirectory)\s*=", re.MULTILINE
)
#: Settings that take from a daemon what it needs, or end it (systemd.exec(5), systemd.resource-control(5)). One that switches something off
#: takes nothing.
_STOPS = re.compile(
    r"^[ \t]*((?:Memory(?:Max|High|SwapMax|Limit)|TasksMax|Limit[A-Z]+|RuntimeMaxSec|Private\w+|Protect\w+|Restrict\w+|SocketBindDeny|"
    r"IPAddressDeny|IPIngressFilterPath|IPEgressFilterPath|CapabilityBoundingSet|SystemCall(?:Filter|Architectures)|Device(?:Allow|Policy)|"
    r"(?:Inaccessible|NoExec|ReadOnly|Exec)Paths|TemporaryFileSystem|RootImage|DynamicUser|NetworkNamespacePath|(?:Condition|Assert)\w+|"
    r"Conflicts|BindsTo|Requisite|RefuseManualStart)[ \t]*=[ \t]*(?!(?:no|false|off|0|infinity|any)[ \t]*$)\S[^\n]*)$",
    re.MULTILINE,
)
_SETTING = re.compile(r"^[ \t]*[A-Za-z]+[ \t]*=", re.MULTILINE)
_UNIT_PATH = ("show", "--property=UnitPath")
_PROPERTIES = ("Id", "DropInPaths", "NeedDaemonReload", "ActiveState", "Result", "ExecMainStartTimestampMonotonic")
_MOST_SETTINGS, _SHOWN = 5, 80
#: Units whose absence the doctor has named; it does not miss a timer, a socket, or what they start.
_NAMED = tuple(f"{name}.service" for name in (PLUGIN, EXTENDER, DASHBOARD))
_BYTES = 64 * 1024
_MOST = 50


@dataclass(frozen=True)
class DropIn:
    """A file that others add to units of ours. starts: whether it changes what is started. stops: its settings that may stop what is."""

    path: str
    starts: bool
    stops: List[str]


@dataclass(frozen=True)
class FilesEvidence:
    """problem: why the journal cannot be read, else "". changed: files that differ from what was written, or are gone. unrecorded:
    files of ours that the journal does not have.
    """

    problem: str
    changed: List[str]
    unrecorded: List[str]
    drop_ins: List[DropIn]


def files(host: Host) -> FilesEvidence:
    """The state of the files that run our daemons, at most _MOST of a kind."""
    paths = [posixpath.join(folder, name) for folder in (UNITS, SETTINGS) for name in host.names(folder) if NAME.fullmatch(name)]
    drop_ins = _drop_ins(host, paths)[:_MOST]
    try:
        entries = {entry.path: entry for entry in Journal(host.root).entries() if NAME.fullmatch(posixpath.basename(entry.path))}
    except (JournalError, OSError) as error:
        return FilesEvidence(str(error), [], [], drop_ins)
    changed = []
    for path, entry in entries.items():
        content = host.data(path)
        if digest(content) != entry.left[1] and (content is not None or posixpath.basename(path) not in _NAMED):
            changed.append(path)
    unrecorded = [path for path in paths if path not in entries and is_ours(path, host.data(path, _BYTES))]
    return FilesEvidence("", changed[:_MOST], unrecorded[:_MOST], drop_ins)


def _drop_ins(host: Host, paths: List[str]) -> List[DropIn]:
    """The drop-ins of others for our units, with those that systemd will read at the next daemon-reload only."""
    units = [posixpath.basename(path) for path in paths if not path.endswith((".env", CONFIG))]
    known = {unit: [] for unit in units}  # type: Dict[str, List[str]]
    states = _states(host, units)
    folders = parsed(_systemctl(host, _UNIT_PATH)).get("UnitPath", "").split()
    for unit in units:
        by_name: Dict[str, str] = {}
        # Of files of one name the first counts: the more special name, then the earlier folder.
        for folder in [f"{folder}/{name}.d" for name in _names(unit) for folder in folders]:
            for name in host.names(folder):
                if name.endswith(".conf"):
                    by_name.setdefault(name, f"{folder}/{name}")
        known[unit] = sorted({*by_name.values(), *states.get(unit, {}).get("DropInPaths", "").split()})
    found = []
    for path in sorted({path for several in known.values() for path in several}):
        text = (host.data(path, _BYTES) or b"").decode("utf-8", "replace")
        starts = _STARTS.search(text) is not None
        of_all = posixpath.basename(posixpath.dirname(path)).count(".") == 1
        affected = [unit for unit, several in known.items() if path in several]
        may = any(_may_stop(host, path, of_all, unit, states.get(unit, {})) for unit in affected)
        stops = [setting.strip()[:_SHOWN] for setting in _STOPS.findall(text)][:_MOST_SETTINGS] if may else []
        # A distribution's own for all units of a kind changes mostly nothing of ours.
        if _SETTING.search(text) and (starts or stops or not of_all):
            found.append(DropIn(path, starts, stops))
    return found


def _names(unit: str) -> List[str]:
    """The names by which systemd searches for drop-ins of a unit, the most special one first (systemd.unit(5))."""
    stem, _dot, kind = unit.rpartition(".")
    prefix, at, _instance = stem.partition("@")
    names = [unit, *([f"{prefix}@.{kind}"] if at else [])]
    while "-" in prefix.rstrip("-"):
        prefix = prefix.rstrip("-").rpartition("-")[0]
        names.append(f"{prefix}-.{kind}")
    return [*names, kind]


def _may_stop(host: Host, path: str, of_all: bool, unit: str, state: Mapping[str, str]) -> bool:
    """Whether the unit, with a drop-in that takes something, has ended badly, or is a daemon that has not yet run with it as it is."""
    well = state.get("ActiveState") in ("active", "inactive") and state.get("Result") == "success"
    if not well or of_all or unit not in _NAMED:
        return not well
    if path not in state.get("DropInPaths", "").split() or state.get("NeedDaemonReload") != "no":
        return True
    return unix_time(state.get("ExecMainStartTimestampMonotonic")) <= (host.changed_at(path) or 0.0)


def _states(host: Host, units: List[str]) -> Dict[str, Dict[str, str]]:
    blocks = _systemctl(host, ("show", *units, f"--property={','.join(_PROPERTIES)}")).split("\n\n") if units else []
    states = [parsed(block) for block in blocks]
    return {state["Id"]: state for state in states if "Id" in state}


def _systemctl(host: Host, words: Sequence[str]) -> str:
    return host.printed(host.program("systemctl"), words)
