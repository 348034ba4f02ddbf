# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Brings a host's container runtime to have, or not to have, nvidia as its default runtime.

One way for all of them: find the service, plan the files, check them, and apply them as a transaction that the service verifies.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import partial
from typing import Callable, List, Mapping, NamedTuple, Optional, Sequence

from .._change import engine
from .._change.engine import ChangePlan, Converged, LastWord, Recorded, Subject
from .._change.journal import Entry
from .._change.transaction import Transaction, nothing
from .._change.undo import Rejected, read_or_none
from .._host import command
from .._host.command import RunWithin
from .._host.container_runtimes import KINDS
from .containerd import ContainerdService
from .crio import CrioService
from .docker import DockerService
from .plan import Asked, RuntimePlan
from .service import RuntimeService, RuntimeUnit, arguments_of, check_program, find_unit

#: Makes a service of the unit, its configuration file (None: the usual one), how to run commands, the seconds to become healthy, and
#: whether a restart may end containers.
Opens = Callable[[RuntimeUnit, Optional[str], RunWithin, float, bool], RuntimeService]
#: By the names of KINDS.
SERVICES: Mapping[str, Opens] = {"containerd": ContainerdService.of, "docker": DockerService.of, "cri-o": CrioService.of}


@dataclass(frozen=True)
class WantedRuntime:
    """The module's options. config None: the file that the unit's command line names. timeout in seconds.

    program_comes: whether packages bring the program that is only planned for now.
    runtime: of KINDS. unit and config are its own, "" and None for the usual ones. default_runtime: "auto", "nvidia" or "unchanged".
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


class RuntimeOnHost(NamedTuple):
    """A container runtime. entries: the journal's, of its files."""

    service: RuntimeService
    entries: Sequence[Entry]


class DefaultRuntime(Subject[RuntimeOnHost]):
    """One kind of container runtime on this host."""

    def __init__(self, wanted: WantedRuntime, name: str, check: bool, run: RunWithin) -> None:
        self._kind, self._open, self._asked = KINDS[name], SERVICES[name], name == wanted.runtime
        self.owner = self._kind.owner
        self._wanted, self._predicted, self._run = wanted, check, run

    def look(self, recorded: Recorded) -> RuntimeOnHost:
        kind, asked, wanted = self._kind, self._asked, self._wanted
        unit = find_unit((wanted.unit if asked else "") or kind.unit, self._run, arguments_of, kind.program)
        unit.check_running(bool(recorded.entries))
        service = self._open(unit, wanted.config if asked else None, self._run, wanted.timeout, wanted.allow_container_kill)
        return RuntimeOnHost(service, recorded.entries)

    def present(self, found: RuntimeOnHost) -> ChangePlan:
        runtimes = self._wanted.asked()
        comes = self._wanted.program_comes and self._predicted
        problem = None if not runtimes.program or comes else check_program(runtimes.program, self._run)
        if problem:
            raise Rejected(problem)
        return self._plan(found, found.service.present(runtimes))

    def absent(self, found: RuntimeOnHost, entries: Sequence[Entry]) -> ChangePlan:
        return self._plan(found, found.service.absent(entries))

    def _plan(self, found: RuntimeOnHost, plan: RuntimePlan) -> ChangePlan:
        service = found.service.judged_by(plan)
        check = partial(_check, RuntimeOnHost(service, found.entries), plan)
        return ChangePlan(plan.files, plan.notes, back=plan.back, service=service, check=check, shown=service.shown, tidy=service.tidy)


def converge(wanted: WantedRuntime, check: bool, run: RunWithin = command.run, point: Callable[[str], None] = nothing) -> Converged:
    """Do it, or with `check` say what would be done. On Rejected nothing was changed; on TransactionError it was restored.

    `absent` is for every container runtime that has entries of ours, whichever one kubelet uses by now.
    """
    if wanted.state == "present":
        if wanted.cdi and wanted.runtime != "containerd":
            raise Rejected(f"found {wanted.runtime}, expected containerd: no other has a switch for CDI; nothing was changed")
        return engine.converge(DefaultRuntime(wanted, wanted.runtime, check, run), False, check, point)
    names = [name for name in KINDS if Transaction(KINDS[name].owner).entries()]
    done = Converged() if names else Converged(notes=[engine.NOT_RECORDED])
    for name in names:
        done.add(engine.converge(DefaultRuntime(wanted, name, check, run), True, check, point))
    return done


def _check(found: RuntimeOnHost, plan: RuntimePlan, changes: Sequence[str], due: bool) -> LastWord:
    service = found.service
    if service.silent and not found.entries:
        raise Rejected(f"{service.silent}; nothing was changed: see `journalctl -u {service.unit.name}`, correct it, and run again")
    why = service.lacks(plan.after) or ""
    service.check_restart(plan)
    return LastWord(why, _brought_along(service, found.entries) if why else ())


def _brought_along(service: RuntimeService, entries: Sequence[Entry]) -> List[str]:
    """The edits that others made and did not load: a restart brings them besides our change."""
    states = [(entry, read_or_none(entry.path)[0]) for entry in entries]
    ours = {entry.path for entry, state in states if state is not None and entry.untouched(state.content)}
    name = service.unit.name.rpartition(".service")[0]
    return [
        f"{path} was changed after {name} was started, and not by us: its restart brings that change, too"
        for path in service.paths()
        if path not in ours and os.stat(path).st_mtime > service.unit.since
    ]
