# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Brings a host's container runtime to have, or not to have, nvidia as its default runtime.

One way for all of them: find the service, plan the files, check them, and apply them as a transaction that the service verifies.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Callable, List, Mapping, Optional, Sequence

from .._change import engine
from .._change.engine import Converged, Subject
from .._change.journal import Entry
from .._change.transaction import Transaction, nothing
from .._change.undo import Rejected, Texts, Undone, read_or_none
from .._host import command
from .._host.command import RunWithin
from .._host.container_runtimes import KINDS
from .containerd_service import ContainerdService
from .crio import CrioService
from .docker import DockerService
from .plan import Asked
from .service import RuntimeService, RuntimeUnit, arguments_of, check_program, find_unit

#: Makes a service of the unit, its configuration file (None: the usual one), how to run commands, and the seconds to become healthy.
Opens = Callable[[RuntimeUnit, Optional[str], RunWithin, float], RuntimeService]
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


class DefaultRuntime(Subject):
    """One kind of container runtime on this host."""

    def __init__(self, wanted: WantedRuntime, name: str, check: bool, run: RunWithin) -> None:
        super().__init__()
        self._kind, self._open, self._asked = KINDS[name], SERVICES[name], name == wanted.runtime
        self.owner = self._kind.owner
        self._wanted, self._predicted, self._run = wanted, check, run

    def look(self, entries: Sequence[Entry]) -> None:
        kind, asked, wanted = self._kind, self._asked, self._wanted
        self._entries = entries
        self._unit = find_unit((wanted.unit if asked else "") or kind.unit, self._run, arguments_of, kind.program)
        self._unit.check_running(bool(entries))
        self._service = self._open(self._unit, wanted.config if asked else None, self._run, wanted.timeout)

    def present(self) -> Texts:
        runtimes = self._wanted.asked()
        comes = self._wanted.program_comes and self._predicted
        problem = None if not runtimes.program or comes else check_program(runtimes.program, self._run)
        if problem:
            raise Rejected(problem)
        plan = self._service.present(runtimes)
        self._after = plan.after
        self.notes += plan.notes
        return plan.files

    def absent(self, entries: Sequence[Entry]) -> Undone:
        back, self._after = self._service.absent(entries)
        return back

    def service(self, paths: Sequence[str]) -> RuntimeService:
        return self._service

    def check(self, changes: Sequence[str], due: bool) -> str:
        if self._service.silent and not self._entries:
            raise Rejected(f"{self._service.silent}; nothing was changed: see `journalctl -u {self._unit.name}`, correct it, and run again")
        why = self._service.lacks(self._after) or ""
        self._service.check_restart(self._after, self._wanted.allow_container_kill)
        self.warnings += _brought_along(self._service, self._entries) if why else []
        return why

    def shown(self, text: str) -> str:
        return self._service.shown(text)

    def tidy(self) -> None:
        self._service.tidy()


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
