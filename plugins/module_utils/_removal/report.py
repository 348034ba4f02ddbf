# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The changes of this collection on a host and their state since: the journal against the files as they are.

Read-only.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass
from typing import Any, Collection, Dict, List, Mapping, Optional, Sequence

from .._change.journal import FOLDER, Entry, Journal
from .._change.subjects import KUBECTL_PLUGINS, NAME, SETTINGS, is_ours, units
from .._change.undo import as_before, read_or_none
from .._daemon.virtual_environment import MARKER, Environments, is_environment
from .._formats.answers import ModuleAnswer
from .._host.command import Run
from .host import properties
from .plan import Layout, names

AS_LEFT, CHANGED, GONE = "as we left it", "changed by others since", "removed by others since"
AS_BEFORE, UNPROVEN = "as it was before us", "written by a run that did not end"


@dataclass(frozen=True)
class TracesReport(ModuleAnswer):
    """The answer of gpushare_traces that reports. words: the report for people."""

    report: Dict[str, Any]
    words: List[str]


def report(layout: Layout, run: Run) -> Dict[str, Any]:
    """Everything, as JSON."""
    journal = Journal(layout.root)
    entries = journal.entries()
    pending = [name[: -len(".pending")] for name in names(layout.real("/" + FOLDER)) if name.endswith(".pending")]
    links = (os.path.join(layout.kubectl_plugin_dir, program) for program in KUBECTL_PLUGINS)
    return {
        "runtime": _runtime(layout),
        "units": [unit for unit in (_unit(run, name) for name in units()) if unit],
        "files": [_file(layout, entry, pending) for entry in entries if entry.is_file],
        "settings": [{"what": entry.path, "owner": entry.owner} for entry in entries if not entry.is_file],
        "kubectl_plugins": [path for path in links if os.path.islink(layout.real(path))],
        "unproven": pending,
        "unrecorded": _unrecorded(layout, {entry.path for entry in entries}),
    }


def words(found: Mapping[str, Any]) -> List[str]:
    """The same for people: a table, line by line."""
    runtime = found["runtime"]
    used = f"{runtime['version']} in {runtime['environment']}, {runtime['state']}" if runtime else "none"
    lines = [f"runtime: {used}"]
    if runtime and runtime["older"]:
        lines.append(f"older runtimes: {', '.join(runtime['older'])}")
    lines.append(f"kubectl plugins: {', '.join(found['kubectl_plugins']) or 'none'}")
    if found["units"]:
        lines += table(("UNIT", "STATE", "AT BOOT"), [(unit["name"], unit["active"], unit["enabled"]) for unit in found["units"]])
    if found["files"]:
        rows = [(file["path"], file["owner"], file["before"], _now(file)) for file in found["files"]]
        lines += table(("FILE", "CHANGED FOR", "BEFORE US", "NOW"), rows)
    if found["settings"]:
        lines += table(("ELSEWHERE", "CHANGED FOR"), [(setting["what"], setting["owner"]) for setting in found["settings"]])
    if found["unrecorded"]:
        lines += [
            "",
            f"not in the journal, although they are ours: {', '.join(found['unrecorded'])}; the journal was lost: run site.yml again",
        ]
    lines += [
        f"{owner}: a run was stopped before it had verified its change; run site.yml or uninstall.yml again" for owner in found["unproven"]
    ]
    return lines


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> List[str]:
    """Lines with their columns below one another, after an empty one."""
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    return ["", *("  ".join(text.ljust(widths[column]) for column, text in enumerate(row)).rstrip() for row in [head, *rows])]


def _runtime(layout: Layout) -> Optional[Dict[str, Any]]:
    environments = Environments(layout.real(layout.install_dir))
    current = environments.current()
    built = [name for name in names(environments.root) if is_environment(name)]
    if current is None and not built:
        return None
    marker = _marker(environments.path(current or built[-1]))
    return {
        "environment": os.path.join(layout.install_dir, current) if current else "no environment in use",
        "state": "whole" if current and environments.is_whole(current) else "not whole: run site.yml again",
        "version": marker.get("version", "unknown"),
        "python": marker.get("python", "unknown"),
        "wheel_sha256": marker.get("wheel_sha256", "unknown"),
        "older": [name for name in built if name != current],
    }


def _marker(environment: str) -> Dict[str, str]:
    state, _why = read_or_none(os.path.join(environment, MARKER))
    try:
        found = json.loads(state.content) if state else {}
    except ValueError:
        found = {}
    return found if isinstance(found, dict) else {}


def _unit(run: Run, name: str) -> Optional[Dict[str, str]]:
    found = properties(run, name)
    if found.get("LoadState", "not-found") == "not-found":
        return None
    enabled = found.get("UnitFileState") or "no unit file"
    return {"name": name, "active": found.get("ActiveState", "unknown"), "enabled": enabled, "file": found.get("FragmentPath", "")}


def _file(layout: Layout, entry: Entry, pending: Sequence[str]) -> Dict[str, Any]:
    before = "not there" if entry.original is None else f"{len(entry.original.content)} bytes, mode {entry.original.mode:04o}"
    state, written = _state(layout, entry, pending), None
    if state == CHANGED:
        written = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(os.lstat(layout.real(entry.path)).st_mtime))
    return {"path": entry.path, "owner": entry.owner, "before": before, "state": state, "written": written}


def _now(file: Mapping[str, Any]) -> str:
    return f"{file['state']}, last at {file['written']}" if file["written"] else str(file["state"])


def _state(layout: Layout, entry: Entry, pending: Sequence[str]) -> str:
    state, odd = read_or_none(layout.real(entry.path))
    now = None if state is None else state.content
    if state is None and not odd:
        return GONE if entry.left[1] else AS_BEFORE if entry.original is None else AS_LEFT
    if odd or not (as_before(entry, now) or entry.untouched(now)):
        return CHANGED
    return AS_BEFORE if as_before(entry, now) else UNPROVEN if entry.owner in pending else AS_LEFT


def _unrecorded(layout: Layout, known: Collection[str]) -> List[str]:
    """Files of ours that the journal does not have; uninstall knows them by their first lines."""
    found = []
    folders = (layout.units, SETTINGS)
    for path in (os.path.join(folder, name) for folder in folders for name in names(layout.real(folder)) if NAME.fullmatch(name)):
        state = None if path in known else read_or_none(layout.real(path))[0]
        if state is not None and is_ours(path, state.content):
            found.append(path)
    return found
