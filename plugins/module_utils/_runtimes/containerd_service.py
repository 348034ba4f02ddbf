# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""containerd under systemd, as what a transaction restarts and proves. No Ansible here.

Whether a restart is due, and whether it worked, is asked of the running process: its CRI status tells the configuration that
it really has. So a restart that was lost to a kill is made up for, and files that were put back by hand need none.
"""

from __future__ import annotations

import os
import re
import time
from dataclasses import dataclass
from typing import Callable, Dict, List, Optional, Sequence, Tuple

from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.transaction import Service
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.command import RunWithin
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.host import flag
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.systemd import parsed, show_command
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes import cri
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes.containerd_config import (
    Refused,
    Runtimes,
    dump_section,
    not_running,
    running_runtimes,
    socket_address,
)
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes.containerd_files import Containerd, Installation

CONFIG = "/etc/containerd/config.toml"
POLL_SECONDS = 0.3
# So long a process must have lived when it is called healthy: one that systemd restarts again and again has not.
STEADY_SECONDS = 1.0
ASK_SECONDS = 10.0


class RestartError(RuntimeError):
    """systemctl refused or did not end; the message has its words and the daemon's."""


@dataclass(frozen=True)
class Unit:
    """containerd's systemd unit. program and arguments: what it starts.

    main_pid: of what runs, 0 if nothing does; since: when that was started, in Unix time.
    """

    name: str
    active: str
    kill_mode: str
    main_pid: int
    since: float
    program: str
    arguments: List[str]

    @property
    def config(self) -> str:
        """The configuration file that its command line names, or containerd's own default."""
        return flag(self.arguments, "config") or flag(self.arguments, "c") or CONFIG

    @property
    def address(self) -> Optional[str]:
        """The socket that its command line names."""
        return flag(self.arguments, "address") or flag(self.arguments, "a")

    def containerd(self, run: RunWithin) -> Containerd:
        """Calls of the program that the next restart starts."""

        def call(arguments: Sequence[str]) -> Tuple[int, str, str]:
            outcome = run([self.program, *arguments], ASK_SECONDS)
            return (1 if outcome.status is None else outcome.status), outcome.out, outcome.err or "it did not end"

        return call

    def check_running(self, ours: bool) -> None:
        """Refused if it does not run, unless what it does not run with may be ours."""
        if self.active != "active" and not ours:
            raise Refused(
                f"{self.name} is {self.active or 'unknown'}, expected active; nothing was changed: see `journalctl -u {self.name}`, "
                "start it, and run again"
            )

    def check_restart(self, due: bool, allowed: bool) -> None:
        """Refused if it would have to be restarted and took containers with it."""
        if due and not allowed and self.kill_mode not in ("process", "none"):
            raise Refused(
                f"{self.name} has KillMode={self.kill_mode}, so restarting containerd would end the shims of all containers on this host; "
                "nothing was changed: give it KillMode=process, as containerd's own unit has, or drain the node and set "
                "gpushare_container_runtime_allow_container_kill"
            )


def find_unit(name: str, run: RunWithin, arguments_of: Callable[[int], List[str]]) -> Unit:
    """The unit as systemd knows it. Refused if there is none. arguments_of: the arguments of a process, [] if it is gone."""
    properties = _show(name, run)
    start = re.search(r"path=(\S+) ; argv\[\]=(.*?) ;", properties.get("ExecStart", ""))
    if properties.get("LoadState") != "loaded" or start is None:
        raise Refused(
            f"systemd has no service {name} that starts containerd (LoadState is {properties.get('LoadState', 'unknown')}): set "
            "gpushare_container_runtime_unit to the one that kubelet's container runtime runs as"
        )
    pid = int(properties.get("MainPID") or 0)
    # Of the process, if there is one: variables of the environment are filled in there.
    arguments = (arguments_of(pid) if pid else []) or start.group(2).split()
    since = time.time() - time.monotonic() + int(properties.get("ExecMainStartTimestampMonotonic") or 0) / 1e6
    return Unit(name, properties.get("ActiveState", ""), properties.get("KillMode", ""), pid, since, start.group(1), arguments[1:])


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


class ContainerdService(Service):
    """One host's containerd. timeout: seconds that it has to become healthy; silent: why it does not answer, None if it does."""

    def __init__(self, unit: Unit, installation: Installation, run: RunWithin, timeout: float) -> None:
        super().__init__(self.is_due, self.restart_now, self.problem)
        self.unit = unit
        self._installation = installation
        self._run = run
        self._timeout = timeout
        self._restarted_at = time.time()
        self._address = unit.address or socket_address(installation.dump())
        self.silent: Optional[str] = None
        self._held = self._conditions()

    def is_due(self) -> bool:
        """Whether the process does not run what the files on the disk say, as far as it concerns us."""
        return self.lacks(self._wanted()) is not None

    def lacks(self, wanted: Runtimes) -> Optional[str]:
        """What the process lacks of `wanted`, in words; None if nothing."""
        try:
            return not_running(wanted, running_runtimes(cri.status(self._address, ASK_SECONDS).config))
        except cri.CriError as error:
            return str(error)

    def restart_now(self) -> None:
        """Restart it; RestartError if systemd says no or does not end within the timeout."""
        self._restarted_at = time.time()
        # A daemon that failed a few times in a row would not be started again otherwise.
        self._run(["systemctl", "reset-failed", self.unit.name], ASK_SECONDS)
        outcome = self._run(["systemctl", "restart", self.unit.name], self._timeout)
        if not outcome.ok:
            why = f"did not end within {outcome.timed_out:g} s" if outcome.timed_out else f"failed: {outcome.words}"
            raise RestartError(f"systemctl restart {self.unit.name} {why}. It said:\n{self.journal()}")

    def problem(self) -> Optional[str]:
        """None once it runs with the files on the disk and is as ready as it was; what is wrong when the time is over."""
        deadline = time.monotonic() + self._timeout
        wanted, steady, since = self._wanted(), 0, 0.0
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

    def _reason(self, unit: Unit, wanted: Runtimes) -> Optional[str]:
        if unit.active != "active":
            return f"systemd says that it is {unit.active or 'unknown'}"
        try:
            status = cri.status(self._address, ASK_SECONDS)
        except cri.CriError as error:
            return str(error)
        for name in ("RuntimeReady", "NetworkReady"):
            holds, words = status.conditions.get(name, (False, "it does not say"))
            if not holds and self._held.get(name, name == "RuntimeReady"):
                return f"{name} is false: {words}"
        return not_running(wanted, running_runtimes(status.config))

    def _conditions(self) -> Dict[str, bool]:
        """What holds before we do anything: a node without a network yet need not have one after us."""
        try:
            return {name: holds for name, (holds, _dummy) in cri.status(self._address, ASK_SECONDS).conditions.items()}
        except cri.CriError as error:
            self.silent = str(error)
            return {}

    def _wanted(self) -> Runtimes:
        return Runtimes.of(dump_section(self._installation.dump()))


def _show(name: str, run: RunWithin) -> Dict[str, str]:
    properties = ("LoadState", "ActiveState", "KillMode", "MainPID", "ExecStart", "ExecMainStartTimestampMonotonic")
    outcome = run(show_command(name, *properties), ASK_SECONDS)
    if not outcome.ok:
        raise Refused(f"systemctl show {name} failed: {outcome.words}; a host with systemd was expected")
    return parsed(outcome.out)
