# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Brings a host's containerd to have, or not to have, nvidia as its default runtime. No Ansible here."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Callable, Dict, List, Optional, Sequence

from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.journal import Entry
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.transaction import Transaction
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host import command
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.command import RunWithin
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes.containerd_config import Refused, masked
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes.containerd_files import Installation, Plan, read_text
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes.containerd_service import (
    ContainerdService,
    arguments_of,
    check_program,
    find_unit,
)

OWNER = "container_runtime"


@dataclass(frozen=True)
class Wanted:
    """The module's options. config None: the file that the unit's command line names; timeout in seconds."""

    state: str
    program: str
    unit: str
    config: Optional[str]
    timeout: float
    allow_container_kill: bool


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
    """Do it, or with `check` say what would be done. Refused if nothing was changed; TransactionError if it was put back."""
    entries = [entry for entry in Transaction(OWNER).journal.entries() if entry.owner == OWNER]
    if wanted.state == "absent" and not entries:
        return Result(False, "", [], ["nothing of ours is recorded on this host"], [], [])
    unit = find_unit(wanted.unit, run, arguments_of)
    unit.check_running(bool(entries))
    installation = Installation(unit.containerd(run), wanted.config or unit.config)
    warnings: List[str] = []
    if wanted.state == "present":
        problem = check_program(wanted.program, run)
        if problem:
            raise Refused(problem)
        plan, transaction = installation.present(wanted.program), Transaction(OWNER, point=point)
        _fill(transaction, plan, [])
    else:
        plan, transaction = installation.absent(entries), Transaction(OWNER, point=point)
        _fill(transaction, plan, entries)
    service = ContainerdService(unit, installation, run, wanted.timeout)
    if service.silent and not entries:
        raise Refused(f"{service.silent}; nothing was changed: see `journalctl -u {unit.name}`, cure it, and run again")
    why = service.lacks(plan.after) or ""
    unit.check_restart(bool(why), wanted.allow_container_kill)
    if why:
        warnings += _brought_along(installation, unit.since, entries)
    diff = [dict(one, before=masked(one["before"]), after=masked(one["after"])) for one in transaction.diff()]
    files = [change.path for change in transaction.changes]
    if not check:
        transaction.apply(service)
    if not check and wanted.state == "absent":
        for entry in entries:
            transaction.journal.forget(entry.path)
        installation.tidy()
    return Result(bool(files or why), why, files, plan.notes, warnings, diff)


def _brought_along(installation: Installation, since: float, entries: Sequence[Entry]) -> List[str]:
    """What a restart brings besides our change: edits that others made and did not load."""
    ours = {entry.path for entry in entries if entry.untouched((read_text(entry.path) or "").encode())}
    return [
        f"{path} was changed after containerd was started, and not by us: its restart brings that change, too"
        for path in installation.read({})
        if path not in ours and os.stat(path).st_mtime > since
    ]


def _fill(transaction: Transaction, plan: Plan, entries: Sequence[Entry]) -> None:
    """Plan the files. entries: of those that go back to what they were, whose old mode goes back too."""
    modes = {entry.path: entry.original.mode for entry in entries if entry.original is not None}
    for path, text in plan.files.items():
        if text is None:
            transaction.remove(path)
        else:
            transaction.write(path, text.encode(), modes.get(path))
