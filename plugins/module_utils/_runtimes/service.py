# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A container runtime under systemd, as what a transaction restarts and verifies.

Whether a restart is due, and whether it worked, is asked of the running process. So a restart that was lost to a kill is made up
for, and files that were restored by hand need none.
"""

from __future__ import annotations

import os
import re
import time
from abc import abstractmethod
from dataclasses import dataclass
from typing import Callable, Dict, List, Optional, Sequence, Tuple

from .._change.journal import Entry
from .._change.transaction import Service
from .._change.undo import Rejected
from .._formats.failure import Failure
from .._host.command import RunWithin
from .._host.systemd import parsed, show_command, unix_time
from .plan import Asked, RuntimePlan, Runtimes, SilentError

POLL_SECONDS = 0.3
# So long a process must have lived when it is called healthy: one that systemd restarts again and again has not.
STEADY_SECONDS = 1.0
ASK_SECONDS = 10.0

# Arguments for a program of the host to (exit status, standard output, standard error).
Program = Callable[[Sequence[str]], Tuple[int, str, str]]


class RestartError(Failure):
    """systemctl rejected or did not end; the message has its words and the daemon's."""


@dataclass(frozen=True)
class RuntimeUnit:
    """A container runtime's systemd unit. program and arguments: what it starts.

    main_pid: of what runs, 0 if nothing does; since: when that was started, in Unix time.
    """

    name: str
    active: str
    kill_mode: str
    main_pid: int
    since: float
    program: str
    arguments: List[str]

    def program_call(self, run: RunWithin) -> Program:
        """Calls of the program that the next restart starts."""

        def call(arguments: Sequence[str]) -> Tuple[int, str, str]:
            outcome = run([self.program, *arguments], ASK_SECONDS)
            return (1 if outcome.status is None else outcome.status), outcome.out, outcome.err or "it did not end"

        return call

    def check_running(self, ours: bool) -> None:
        """Raise Rejected if it does not run, unless what it does not run with may be ours."""
        if self.active != "active" and not ours:
            raise Rejected(
                f"{self.name} is {self.active or 'unknown'}, expected active; nothing was changed: see `journalctl -u {self.name}`, "
                "start it, and run again"
            )


def find_unit(name: str, run: RunWithin, arguments_of: Callable[[int], List[str]], starts: str = "containerd") -> RuntimeUnit:
    """The unit as systemd knows it. It raises Rejected if there is none.

    arguments_of: the arguments of a process, [] if it is gone; starts: what it should start, for the message.
    """
    properties = _show(name, run)
    start = re.search(r"path=(\S+) ; argv\[\]=(.*?) ;", properties.get("ExecStart", ""))
    if properties.get("LoadState") != "loaded" or start is None:
        raise Rejected(
            f"systemd has no service {name} that starts {starts} (LoadState is {properties.get('LoadState', 'unknown')}): set "
            "gpushare_container_runtime_unit to the one that kubelet's container runtime runs as"
        )
    pid = int(properties.get("MainPID") or 0)
    # Of the process, if there is one: variables of the environment are filled in there.
    arguments = (arguments_of(pid) if pid else []) or start.group(2).split()
    since = unix_time(properties.get("ExecMainStartTimestampMonotonic"))
    return RuntimeUnit(name, properties.get("ActiveState", ""), properties.get("KillMode", ""), pid, since, start.group(1), arguments[1:])


def arguments_of(pid: int) -> List[str]:
    """The command line of a process of this host."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as stream:
            return [os.fsdecode(word) for word in stream.read().split(b"\0")[:-1]]
    except OSError:
        return []


def check_program(path: str, run: RunWithin) -> Optional[str]:
    """Why NVIDIA's container runtime cannot be used, None if it can. It is started, because a broken one would break every pod."""
    cure = "install NVIDIA's container toolkit (package nvidia-container-toolkit), or set gpushare_container_runtime_program"
    if not os.access(path, os.X_OK):
        return f"{path} does not exist or cannot be executed: {cure}"
    outcome = run([path, "--version"], ASK_SECONDS)
    if not outcome.ok:
        return f"{path} --version does not work ({outcome.words or 'it did not end'}): {cure}"
    return None


class RuntimeService(Service):
    """One container runtime of this host: what is written for it, and how the process is brought to it.

    timeout: seconds that it has to become healthy. allowed: whether a restart may end containers. silent: why it does not answer, None if
    it does. stop_seconds: so long it may take besides to end before a restart.
    """

    stop_seconds = 0.0

    def __init__(self, unit: RuntimeUnit, run: RunWithin, timeout: float, allowed: bool) -> None:
        self.unit, self.allowed = unit, allowed
        self._run = run
        self._timeout = timeout
        self._restarted_at = time.time()
        self.silent: Optional[str] = None
        #: The runtimes that ran before us, which may be others than the files mean: we do not know all of a reader's rules.
        self._ran: Optional[Runtimes] = None
        self._are_restored = False
        self._held = self._conditions()

    @abstractmethod
    def present(self, asked: Asked) -> RuntimePlan:
        """The files to write so that pods get what is asked. It raises Rejected if that cannot be."""

    @abstractmethod
    def absent(self, entries: Sequence[Entry]) -> RuntimePlan:
        """The files of these journal entries without anything of ours. It raises Rejected if that cannot be."""

    @abstractmethod
    def paths(self) -> List[str]:
        """The files that it reads."""

    @abstractmethod
    def shown(self, text: str) -> str:
        """A configuration as it may be shown: without secrets."""

    def tidy(self) -> None:
        """Remove what we may have made besides files, after they are gone."""

    @abstractmethod
    def wanted(self) -> Runtimes:
        """The settings that the files on the disk say."""

    @abstractmethod
    def running(self) -> Tuple[Dict[str, Tuple[bool, str]], Runtimes]:
        """The state that the process reports: conditions to (holds, reason), and its runtimes. SilentError if it does not answer."""

    @abstractmethod
    def differs(self, wanted: Runtimes, running: Runtimes) -> Optional[str]:
        """A message about what a process with `running` lacks of `wanted`, as far as it concerns us; None if nothing."""

    @abstractmethod
    def check_restart(self, plan: RuntimePlan) -> None:
        """Raise Rejected if the way to this plan is a restart that would end containers, unless it may."""

    def judged_by(self, plan: RuntimePlan) -> "RuntimeService":
        """The same service, which compares what this plan is about."""
        return self

    def restored(self) -> None:
        self._are_restored = True

    def due(self) -> bool:
        """Whether the process does not run what the files on the disk say, as far as it concerns us."""
        return self.lacks(self.wanted()) is not None

    def lacks(self, wanted: Runtimes) -> Optional[str]:
        """A message about what the process lacks of `wanted`; None if nothing."""
        try:
            return self._lacking(wanted, self.running()[1])
        except SilentError as error:
            return str(error)

    def _lacking(self, wanted: Runtimes, running: Runtimes) -> Optional[str]:
        as_before = self._are_restored and self._ran is not None and self.differs(self._ran, running) is None
        return None if as_before else self.differs(wanted, running)

    def restart(self) -> None:
        """Restart it; RestartError if systemd says no or does not end within the timeout."""
        self._restarted_at = time.time()
        # A daemon that failed a few times in a row would not be started again otherwise.
        self._run(["systemctl", "reset-failed", self.unit.name], ASK_SECONDS)
        outcome = self._run(["systemctl", "restart", self.unit.name], self._timeout + self.stop_seconds)
        if not outcome.ok:
            why = f"did not end within {outcome.timed_out:g} s" if outcome.timed_out else f"failed: {outcome.words}"
            raise RestartError(f"systemctl restart {self.unit.name} {why}. It said:\n{self.journal()}")

    def problem(self) -> Optional[str]:
        """None once it runs with the files on the disk and is as ready as it was; what is wrong when the time is over."""
        deadline = time.monotonic() + self._timeout
        wanted, steady, since = self.wanted(), 0, 0.0
        while True:
            unit = find_unit(self.unit.name, self._run, arguments_of)
            reason = self._reason(unit, wanted)
            if reason is not None or unit.main_pid != steady:
                steady, since = (unit.main_pid if reason is None else 0), time.monotonic()
            elif time.monotonic() - since >= STEADY_SECONDS:
                return None
            if time.monotonic() > deadline:
                reason = reason or "it restarts again and again"
                return f"{self.unit.name} is not healthy after {self._timeout:g} s: {reason}. It said:\n{self.journal()}"
            time.sleep(POLL_SECONDS)

    def journal(self) -> str:
        """Its last words since the restart: those that complain, if any do."""
        since = f"--since=@{int(self._restarted_at)}"
        outcome = self._run(["journalctl", "--unit", self.unit.name, since, "--no-pager", "--output=cat"], ASK_SECONDS)
        lines = outcome.out.splitlines()
        complaints = [line for line in lines if re.search(r"level=(warn|error|fatal|panic)|^containerd: |panic:", line)]
        return "\n".join((complaints or lines)[-12:]) or "(its journal is empty)"

    def _reason(self, unit: RuntimeUnit, wanted: Runtimes) -> Optional[str]:
        if unit.active != "active":
            return f"systemd says that it is {unit.active or 'unknown'}"
        try:
            conditions, running = self.running()
        except SilentError as error:
            return str(error)
        for name in ("RuntimeReady", "NetworkReady"):
            holds, words = conditions.get(name, (False, "it does not say"))
            if not holds and self._held.get(name, name == "RuntimeReady"):
                return f"{name} is false: {words}"
        return self._lacking(wanted, running)

    def _conditions(self) -> Dict[str, bool]:
        """The conditions before we do anything: a node without a network yet need not have one after us."""
        try:
            conditions, self._ran = self.running()
            return {name: holds for name, (holds, _dummy) in conditions.items()}
        except SilentError as error:
            self.silent = str(error)
            return {}


def _show(name: str, run: RunWithin) -> Dict[str, str]:
    properties = ("LoadState", "ActiveState", "KillMode", "MainPID", "ExecStart", "ExecMainStartTimestampMonotonic")
    outcome = run(show_command(name, *properties), ASK_SECONDS)
    if not outcome.ok:
        raise Rejected(f"systemctl show {name} failed: {outcome.words}; a host with systemd was expected")
    return parsed(outcome.out)
