# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Brings a host's kubelet to have the feature gates that device plugins need, or back to what it had. No Ansible here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Callable, Dict, List, Optional, Sequence, Tuple

from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.journal import Entry
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.transaction import Transaction
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts import kubernetes
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts.kubernetes import from_argv
from ansible_collections.gpushare.kubernetes.plugins.module_utils._formats.versions import numbers
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host import command
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.command import RunWithin
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.files import read_state
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.host import Host, flag
from ansible_collections.gpushare.kubernetes.plugins.module_utils._kubelet.api import node_api
from ansible_collections.gpushare.kubernetes.plugins.module_utils._kubelet.gates import TABLE, Gate, needed
from ansible_collections.gpushare.kubernetes.plugins.module_utils._kubelet.plan import Found, Plan, Rejected, plan_absent, plan_present
from ansible_collections.gpushare.kubernetes.plugins.module_utils._kubelet.service import (
    KubeletService,
    Ready,
    Unit,
    find_unit,
    look,
    settable,
    written,
)

OWNER = "kubelet"


@dataclass(frozen=True)
class Wanted:
    """The module's options. gates: names that must be on where the kubelet's release has them; timeout in seconds."""

    state: str
    gates: Sequence[str]
    unit: str
    timeout: float
    allow_daemon_reload: bool


@dataclass(frozen=True)
class Result:
    """What was done, or would be. given: the gates of the next start; restarted_at: Unix time, None without a restart."""

    changed: bool
    release: str
    given: Dict[str, bool]
    files: List[str]
    notes: List[str]
    diff: List[Dict[str, str]]
    restarted_at: Optional[float]


def converge(
    wanted: Wanted, check: bool, root: str = "/", run: RunWithin = command.run, point: Callable[[str], None] = lambda _point: None
) -> Result:
    """Do it, or with `check` say what would be done. Rejected if nothing was changed; TransactionError if it was put back."""
    host, transaction = Host(root), Transaction(OWNER, root, point)
    entries = [entry for entry in transaction.journal.entries() if entry.owner == OWNER]
    if wanted.state == "absent" and not entries and not transaction.unfinished:
        return Result(False, "", {}, [], ["nothing of ours is recorded on this host"], [], None)
    if wanted.state == "present" and not entries and not transaction.unfinished:
        # k3s and others have no such service, and need none from here on.
        facts = kubernetes.kubelet(host, kubernetes.distribution(host))
        version = numbers(facts.version)
        if version is not None and not any(_can_be_set(TABLE[name], version[:2]) for name in wanted.gates):
            return Result(False, ".".join(map(str, version[:2])), facts.feature_gates, [], [], [], None)
    unit, paths = find_unit(wanted.unit, run)
    found = look(host, unit, paths, run)
    plan = _plan(wanted, host, found, unit, entries, run)
    modes = {entry.path: entry.original.mode for entry in entries if entry.original is not None and wanted.state == "absent"}
    for path, text in plan.files.items():
        if text is None:
            transaction.remove(path)
        else:
            transaction.write(path, text.encode(), modes.get(path))
    ours = [*plan.files, *(entry.path for entry in entries)]
    service = KubeletService(host, unit, run, _ready(host, found), ours, wanted.timeout, wanted.allow_daemon_reload)
    changes = [change.path for change in transaction.changes]
    due = bool(changes) or transaction.unfinished or (bool(ours) and service.due())
    if changes and written(dict.fromkeys(changes)):
        service.check_reload()
    if due and wanted.state == "present":
        _check_healthy(unit, entries)
    diff = transaction.diff()
    if due and not check:
        transaction.apply(service)
    if wanted.state == "absent" and not check:
        for entry in entries:
            transaction.journal.forget(entry.path)
    given = found.given() if check or not changes else look(host, *find_unit(wanted.unit, run), run).given()
    release = ".".join(map(str, found.release))
    return Result(due or (wanted.state == "absent" and bool(entries)), release, given, changes, plan.notes, diff, service.restarted_at)


def _can_be_set(gate: Gate, release: Tuple[int, ...]) -> bool:
    return gate.is_known((release[0], release[1])) and not gate.is_locked((release[0], release[1]))


def _plan(wanted: Wanted, host: Host, found: Found, unit: Unit, entries: Sequence[Entry], run: RunWithin) -> Plan:
    if wanted.state == "absent":
        states = {entry.path: read_state(host.outside(entry.path)) for entry in entries}
        return plan_absent(found, entries, {path: None if state is None else state.content for path, state in states.items()})
    plan = plan_present(found, wanted.gates)
    if plan.files:
        _check_candidate(host, found, unit, wanted.gates, run)
    return plan


def _check_candidate(host: Host, found: Found, unit: Unit, wanted: Sequence[str], run: RunWithin) -> None:
    """Rejected if this kubelet itself does not list a gate that it is to be given: it would not start with it."""
    listed = settable(host.outside(unit.program), run)
    names = [name for name in needed(found.release, found.given(), wanted) if listed is not None and name not in listed]
    if names:
        raise Rejected(
            f"kubelet {'.'.join(map(str, found.release))} ({unit.program} --help) does not list the feature gate {', '.join(names)}, so it "
            "would not start with it; nothing was changed: take it out of gpushare_kubelet_gates"
        )


def _check_healthy(unit: Unit, entries: Sequence[Entry]) -> None:
    if unit.active != "active" and not entries:
        raise Rejected(
            f"{unit.name} is {unit.active or 'unknown'}, expected active; nothing was changed: see `journalctl -u {unit.name}`, start it, "
            "and run again"
        )


def _ready(host: Host, found: Found) -> Optional[Ready]:
    """How to ask whether the node is Ready, None where it is not Ready before us, or nobody can be asked."""
    argv = ["kubelet", *found.start.argv]
    api = node_api(host, flag(argv, "kubeconfig"), from_argv(None, argv, host.hostname).node_name)
    # Long before: whatever it said last counts.
    return api.not_ready if api is not None and api.not_ready(0.0) is None else None
