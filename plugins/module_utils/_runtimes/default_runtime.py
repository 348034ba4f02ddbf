# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Brings a host's container runtime to have, or not to have, nvidia as its default runtime. No Ansible here.

One way for all of them: find the service, plan the files, check them, and apply them as a transaction that the service proves.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Callable, Dict, List, Mapping, Optional, Sequence

from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.journal import Entry
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.transaction import Transaction
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host import command
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.command import RunWithin
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes.containerd_service import ContainerdService
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes.crio import CrioService
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes.docker import DockerService
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes.plan import Asked, Plan, Rejected, read_text
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes.service import (
    RuntimeService,
    Unit,
    arguments_of,
    check_program,
    find_unit,
)


@dataclass(frozen=True)
class Kind:
    """A kind of container runtime. owner: of its journal entries; unit: its usual service; program: what that starts.

    open: unit, configuration file (None: the usual one), how to run commands and the seconds to become healthy to the service.
    """

    owner: str
    unit: str
    program: str
    open: Callable[[Unit, Optional[str], RunWithin, float], RuntimeService]


#: By the names that the facts about a host use.
KINDS: Mapping[str, Kind] = {
    "containerd": Kind("container_runtime", "containerd.service", "containerd", ContainerdService.of),
    "docker": Kind("container_runtime.docker", "docker.service", "dockerd", DockerService.of),
    "cri-o": Kind("container_runtime.cri-o", "crio.service", "crio", CrioService.of),
}


@dataclass(frozen=True)
class Wanted:
    """The module's options. config None: the file that the unit's command line names; timeout in seconds.

    program_comes: whether packages bring the program that is only planned for now.
    runtime: of KINDS; unit and config are its own, "" and None for the usual ones. default_runtime: "auto", "nvidia" or "unchanged".
    cdi: whether containerd is to pass CDI devices on; then "auto" adds no runtime.
    """

    state: str
    program: str
    unit: str
    config: Optional[str]
    timeout: float
    allow_container_kill: bool
    runtime: str = "containerd"
    default_runtime: str = "auto"
    program_comes: bool = False
    cdi: bool = False

    def asked(self) -> Asked:
        """Of the container runtime."""
        needed = not (self.cdi and self.default_runtime == "auto")
        return Asked(self.program if needed else None, self.default_runtime != "unchanged", self.cdi)


@dataclass(frozen=True)
class Result:
    """What was done, or would be. why_restart: what the running process lacked, empty if nothing."""

    changed: bool
    why_restart: str
    files: List[str]
    notes: List[str]
    warnings: List[str]
    diff: List[Dict[str, str]]


def converge(wanted: Wanted, check: bool, run: RunWithin = command.run, point: Callable[[str], None] = lambda _point: None) -> Result:
    """Do it, or with `check` say what would be done. Rejected if nothing was changed; TransactionError if it was put back.

    `absent` is for every container runtime that has entries of ours, whichever one kubelet uses by now.
    """
    if wanted.state == "present":
        if wanted.cdi and wanted.runtime != "containerd":
            raise Rejected(f"found {wanted.runtime}, expected containerd: no other has a switch for CDI; nothing was changed")
        return _converge(wanted, wanted.runtime, check, run, point)
    done = [_converge(wanted, name, check, run, point) for name in KINDS if _entries(KINDS[name])]
    if not done:
        return Result(False, "", [], ["nothing of ours is recorded on this host"], [], [])
    return Result(
        any(one.changed for one in done),
        "; ".join(one.why_restart for one in done if one.why_restart),
        [path for one in done for path in one.files],
        [note for one in done for note in one.notes],
        [warning for one in done for warning in one.warnings],
        [diff for one in done for diff in one.diff],
    )


def _converge(wanted: Wanted, name: str, check: bool, run: RunWithin, point: Callable[[str], None]) -> Result:
    kind, asked = KINDS[name], name == wanted.runtime
    entries = _entries(kind)
    unit = find_unit((wanted.unit if asked else "") or kind.unit, run, arguments_of, kind.program)
    unit.check_running(bool(entries))
    service = kind.open(unit, wanted.config if asked else None, run, wanted.timeout)
    transaction = Transaction(kind.owner, point=point)
    if wanted.state == "present":
        runtimes = wanted.asked()
        problem = None if not runtimes.program or (wanted.program_comes and check) else check_program(runtimes.program, run)
        if problem:
            raise Rejected(problem)
        plan = service.present(runtimes)
        _fill(transaction, plan, [])
    else:
        plan = service.absent(entries)
        _fill(transaction, plan, entries)
    if service.silent and not entries:
        raise Rejected(f"{service.silent}; nothing was changed: see `journalctl -u {unit.name}`, cure it, and run again")
    why = service.lacks(plan.after) or ""
    service.check_restart(plan.after, wanted.allow_container_kill)
    warnings = _brought_along(service, entries) if why else []
    diff = [dict(one, before=service.shown(one["before"]), after=service.shown(one["after"])) for one in transaction.diff()]
    files = [change.path for change in transaction.changes]
    if not check:
        transaction.apply(service)
    if not check and wanted.state == "absent":
        for entry in entries:
            transaction.journal.forget(entry.path)
        service.tidy()
    return Result(bool(files or why), why, files, plan.notes, warnings, diff)


def _entries(kind: Kind) -> List[Entry]:
    return [entry for entry in Transaction(kind.owner).journal.entries() if entry.owner == kind.owner]


def _brought_along(service: RuntimeService, entries: Sequence[Entry]) -> List[str]:
    """What a restart brings besides our change: edits that others made and did not load."""
    ours = {entry.path for entry in entries if entry.untouched((read_text(entry.path) or "").encode())}
    name = service.unit.name.rpartition(".service")[0]
    return [
        f"{path} was changed after {name} was started, and not by us: its restart brings that change, too"
        for path in service.paths()
        if path not in ours and os.stat(path).st_mtime > service.unit.since
    ]


def _fill(transaction: Transaction, plan: Plan, entries: Sequence[Entry]) -> None:
    """Plan the files. entries: of those that go back to what they were, whose old mode goes back too."""
    modes = {entry.path: entry.original.mode for entry in entries if entry.original is not None}
    for path, text in plan.files.items():
        if text is None:
            transaction.remove(path)
        else:
            transaction.write(path, text.encode(), modes.get(path))
