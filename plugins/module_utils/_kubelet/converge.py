# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Brings a host's kubelet to have the feature gates that device plugins need, or back to what it had."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Callable, Dict, Optional, Sequence, Tuple

from .._change import engine
from .._change.engine import Converged, Subject
from .._change.journal import Entry
from .._change.transaction import Transaction, nothing
from .._change.undo import Rejected, Texts, Undone, undone
from .._facts import kubernetes
from .._facts.kubernetes import from_argv
from .._formats.versions import numbers
from .._host import command
from .._host.command import RunWithin
from .._host.host import Host, flag
from .api import node_api
from .gates import TABLE, Gate, needed
from .plan import KubeletState, plan_present, without
from .service import KubeletService, KubeletUnit, Ready, find_unit, look, settable, written

OWNER = "kubelet"


@dataclass(frozen=True)
class WantedGates:
    """The module's options. gates: names that must be on where the kubelet's release has them; timeout in seconds."""

    state: str
    gates: Sequence[str]
    unit: str
    timeout: float
    allow_daemon_reload: bool


@dataclass
class GatesResult(Converged):
    """given: the gates of the next start; restarted_at: Unix time, None without a restart."""

    release: str = ""
    given: Dict[str, bool] = field(default_factory=dict)
    restarted_at: Optional[float] = None


class KubeletGates(Subject):
    """The feature gates of one host's kubelet."""

    owner = OWNER

    def __init__(self, wanted: WantedGates, host: Host, run: RunWithin) -> None:
        super().__init__()
        self.root = host.root
        self._wanted, self._host, self._run = wanted, host, run

    def look(self, entries: Sequence[Entry]) -> None:
        self._recorded = bool(entries)
        self._unit, paths = find_unit(self._wanted.unit, self._run)
        self.found = look(self._host, self._unit, paths, self._run)

    def present(self) -> Texts:
        texts, notes = plan_present(self.found, self._wanted.gates)
        if texts:
            _check_candidate(self._host, self.found, self._unit, self._wanted.gates, self._run)
        self.notes += notes
        return texts

    def absent(self, entries: Sequence[Entry]) -> Undone:
        return undone(entries, without, self.root)

    def service(self, paths: Sequence[str]) -> Optional[KubeletService]:
        ready, wanted = _ready(self._host, self.found), self._wanted
        self._service = KubeletService(self._host, self._unit, self._run, ready, paths, wanted.timeout, wanted.allow_daemon_reload)
        return self._service if paths else None

    def check(self, changes: Sequence[str], due: bool) -> str:
        if changes and written(dict.fromkeys(changes)):
            self._service.check_reload()
        if due and self._wanted.state == "present" and self._unit.active != "active" and not self._recorded:
            name = self._unit.name
            raise Rejected(
                f"{name} is {self._unit.active or 'unknown'}, expected active; nothing was changed: see `journalctl -u {name}`, start it, "
                "and run again"
            )
        return ""

    def result(self, done: Converged, is_new: bool) -> GatesResult:
        """With what kubelet has then. is_new: whether its files have changed since `look`."""
        found = look(self._host, *find_unit(self._wanted.unit, self._run), self._run) if is_new else self.found
        return GatesResult(**vars(done), release=_shown(self.found.release), given=found.given(), restarted_at=self._service.restarted_at)


def converge(
    wanted: WantedGates, check: bool, root: str = "/", run: RunWithin = command.run, point: Callable[[str], None] = nothing
) -> GatesResult:
    """Do it, or with `check` say what would be done. On Rejected nothing was changed; on TransactionError it was restored."""
    host, transaction = Host(root), Transaction(OWNER, root)
    if wanted.state == "present" and not transaction.entries() and not transaction.unfinished:
        # k3s and others have no such service, and need none from here on.
        facts = kubernetes.kubelet(host, kubernetes.distribution(host))
        version = numbers(facts.version)
        if version is not None and not any(_can_be_set(TABLE[name], version[:2]) for name in wanted.gates):
            return GatesResult(release=_shown(version[:2]), given=facts.feature_gates)
    subject = KubeletGates(wanted, host, run)
    done = engine.converge(subject, wanted.state == "absent", check, point)
    if done.notes == [engine.NOT_RECORDED]:
        return GatesResult(**vars(done))
    return subject.result(done, bool(done.files) and not check)


def _shown(release: Tuple[int, ...]) -> str:
    return ".".join(map(str, release))


def _can_be_set(gate: Gate, release: Tuple[int, ...]) -> bool:
    return gate.is_known((release[0], release[1])) and not gate.is_locked((release[0], release[1]))


def _check_candidate(host: Host, found: KubeletState, unit: KubeletUnit, wanted: Sequence[str], run: RunWithin) -> None:
    """It raises Rejected if this kubelet itself does not list a gate that it is to be given: it would not start with it."""
    listed = settable(host.outside(unit.program), run)
    names = [name for name in needed(found.release, found.given(), wanted) if listed is not None and name not in listed]
    if names:
        raise Rejected(
            f"kubelet {'.'.join(map(str, found.release))} ({unit.program} --help) does not list the feature gate {', '.join(names)}, so it "
            "would not start with it; nothing was changed: take it out of gpushare_kubelet_gates"
        )


def _ready(host: Host, found: KubeletState) -> Optional[Ready]:
    """How to ask whether the node is Ready, None where it is not Ready before us, or no API server can be asked."""
    argv = ["kubelet", *found.start.argv]
    api = node_api(host, flag(argv, "kubeconfig"), from_argv(None, argv, host.hostname).node_name)
    # Long before: whatever it said last counts.
    return api.not_ready if api is not None and api.not_ready(0.0) is None else None
