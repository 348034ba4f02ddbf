# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Brings a host's kubelet to have the feature gates that device plugins need, or back to what it had."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Callable, Dict, List, NamedTuple, Optional, Sequence, Tuple

from .._change import engine
from .._change.engine import ChangePlan, Converged, LastWord, Recorded, Subject
from .._change.journal import Entry
from .._change.transaction import Transaction, nothing
from .._change.undo import Rejected, Texts, undone
from .._facts import kubernetes
from .._facts.kubernetes import from_argv
from .._formats.answers import DiffPart, ModuleAnswer
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


@dataclass(frozen=True)
class GatesAnswer(ModuleAnswer):
    """The answer of kubelet_gates. version: of kubelet. feature_gates: of its next start. restarted_at: Unix time, None without one."""

    version: str
    feature_gates: Dict[str, bool]
    files: List[str]
    restarted_at: Optional[float]
    notes: List[str]
    diff: List[DiffPart]


class KubeletOnHost(NamedTuple):
    """A host's kubelet and its unit. recorded: the journal's part."""

    unit: KubeletUnit
    state: KubeletState
    recorded: Recorded


class KubeletGates(Subject[KubeletOnHost]):
    """The feature gates of one host's kubelet."""

    owner = OWNER

    def __init__(self, wanted: WantedGates, host: Host, run: RunWithin) -> None:
        self.root = host.root
        self._wanted, self._host, self._run = wanted, host, run

    def look(self, recorded: Recorded) -> KubeletOnHost:
        unit, paths = find_unit(self._wanted.unit, self._run)
        return KubeletOnHost(unit, look(self._host, unit, paths, self._run), recorded)

    def present(self, found: KubeletOnHost) -> ChangePlan:
        texts, notes = plan_present(found.state, self._wanted.gates)
        if texts:
            _check_candidate(self._host, found.state, found.unit, self._wanted.gates, self._run)
        service = self._service(found, texts)
        return ChangePlan(texts, notes, service=service, check=partial(self._check, found, service))

    def absent(self, found: KubeletOnHost, entries: Sequence[Entry]) -> ChangePlan:
        service = self._service(found, {})
        return ChangePlan(back=undone(entries, without, self.root), service=service, check=partial(self._check, found, service))

    def _service(self, found: KubeletOnHost, texts: Texts) -> Optional[KubeletService]:
        """kubelet, which runs on these files and on those of the journal; None without any."""
        paths, wanted = [*texts, *(entry.path for entry in found.recorded.entries)], self._wanted
        if not paths:
            return None
        ready = _ready(self._host, found.state)
        return KubeletService(self._host, found.unit, self._run, ready, paths, wanted.timeout, wanted.allow_daemon_reload)

    def _check(self, found: KubeletOnHost, service: Optional[KubeletService], changes: Sequence[str], due: bool) -> LastWord:
        if service is not None and written(dict.fromkeys(changes)):
            service.check_reload()
        if due and self._wanted.state == "present" and found.unit.active != "active" and not found.recorded.entries:
            name = found.unit.name
            raise Rejected(
                f"{name} is {found.unit.active or 'unknown'}, expected active; nothing was changed: see `journalctl -u {name}`, start it, "
                "and run again"
            )
        return LastWord()


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
    prepared = engine.prepare(KubeletGates(wanted, host, run), wanted.state == "absent", point)
    if prepared is None:
        return GatesResult(notes=[engine.NOT_RECORDED])
    done, state, service = prepared.apply(check), prepared.found.state, prepared.plan.service
    now = look(host, *find_unit(wanted.unit, run), run) if done.files and not check else state
    restarted_at = service.restarted_at if isinstance(service, KubeletService) else None
    return GatesResult(**vars(done), release=_shown(state.release), given=now.given(), restarted_at=restarted_at)


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
