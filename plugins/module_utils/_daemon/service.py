# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One of our daemons under systemd, as what a transaction restarts and proves. No Ansible here.

The unit gives its process a hash of all that it reads at its start. So the running process itself says whether it is older
than the files, also after a run that was killed between writing and restarting.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from typing import Callable, Dict, Mapping, Optional, Sequence

from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.transaction import Service, Transaction
from ansible_collections.gpushare.kubernetes.plugins.module_utils._daemon.health import fetch_json, unhealthy
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.command import Run
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.files import read_state
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.systemd import UNITS, show

VARIABLE = "GPUSHARE_GENERATION"
POLL_SECONDS = 0.3


class SystemdError(RuntimeError):
    """systemctl refused; the message has its words."""


def generation(parts: Sequence[Optional[str]]) -> str:
    """A short hash of everything that the process reads at its start; changes when any of it does."""
    return hashlib.sha256(json.dumps(list(parts)).encode()).hexdigest()[:16]


def stamped(unit: str, stamp: str) -> str:
    """The unit with the generation as a variable of the process, right after [Service]."""
    head, section, rest = unit.partition("[Service]\n")
    if not section:
        raise SystemdError("the unit must have a line [Service]")
    return f"{head}{section}Environment={VARIABLE}={stamp}\n{rest}"


class Health:
    """Where the daemon reports its health, which key must be true, and how many seconds it has. url None: systemd's word counts.

    ca: for https, the certificate authority's file. also: what else must be so, in words what is wrong, None if nothing is.
    """

    def __init__(
        self, url: Optional[str], key: str, timeout: float, ca: Optional[str] = None, also: Callable[[], Optional[str]] = lambda: None
    ) -> None:
        self.url = url
        self.key = key
        self.timeout = timeout
        self.ca = ca
        self.also = also


class Daemon(Service):
    """A systemd service of ours. `run` executes systemctl and journalctl, `environ` reads a process's environment.

    copies: file to the copy that the unit makes of it, at its start and when it is told to reload, for a process that may not read it.
    """

    def __init__(
        self,
        name: str,
        health: Health,
        run: Run,
        environ: Callable[[str], bytes],
        units: str = UNITS,
        copies: Optional[Mapping[str, str]] = None,
    ) -> None:
        super().__init__(self.is_due, self.restart_now, self.problem)
        self.unit = f"{name}.service"
        self.path = os.path.join(units, self.unit)
        self._health = health
        self._run = run
        self._environ = environ
        self._copies = dict(copies or {})

    def is_due(self) -> bool:
        """Whether what runs is older than the files on the disk."""
        return self.is_stale() or self.has_old_copies()

    def is_stale(self) -> bool:
        """Whether what runs was not started from the unit on the disk, whose hash covers all that it reads but its copies.

        Or systemd knows another unit: somebody changed it by hand, and it may run so.
        """
        return self.wanted_generation() != self.running_generation() or self._show().get("NeedDaemonReload") == "yes"

    def has_old_copies(self) -> bool:
        """Whether a file differs from the copy that the process reads."""
        if self.running_generation() is None:
            return False
        return any(content_of(source) != content_of(copy) for source, copy in self._copies.items())

    def restart_now(self) -> None:
        """Have the files on the disk in use. Where only copies are old, it is not restarted but told to reload."""
        if self.is_stale():
            self.start_anew()
        elif self.has_old_copies():
            self.reload()

    def start_anew(self) -> None:
        """Run the unit on the disk, at boot too, or nothing if there is none. SystemdError if it does not come up."""
        if self.wanted_generation() is None:
            self._run(["systemctl", "disable", "--now", "--quiet", self.unit])
            self._must("daemon-reload")
            return
        self._must("daemon-reload")
        self.enable()
        self._must("restart", self.unit)

    def reload(self) -> None:
        """Have the unit make its copies again, and the process read them."""
        self._must("reload", self.unit)

    def enable(self) -> None:
        """Have it started at boot."""
        self._must("enable", "--quiet", self.unit)

    def is_enabled(self) -> bool:
        """Whether it is started at boot."""
        return self._show().get("UnitFileState") == "enabled"

    def problem(self) -> Optional[str]:
        """None once it runs and its health report is good; what is wrong, in its own words, when its time is over."""
        deadline = time.monotonic() + self._health.timeout
        while True:
            reason = self._reason()
            if reason is None:
                return None
            if time.monotonic() > deadline:
                return f"{self.unit} is not healthy after {self._health.timeout} s: {reason}. It said:\n{self.journal()}"
            time.sleep(POLL_SECONDS)

    def wanted_generation(self) -> Optional[str]:
        """The generation in the unit on the disk, None if there is no unit."""
        state = read_state(self.path)
        if state is None:
            return None
        found = re.search(rf"^Environment={VARIABLE}=(\S+)$", state.content.decode(), re.MULTILINE)
        return found.group(1) if found else ""

    def running_generation(self) -> Optional[str]:
        """The generation that the running process was started with, "" if it has none, None if nothing runs."""
        properties = self._show()
        if properties.get("ActiveState") != "active":
            return None
        for variable in self._environ(properties.get("MainPID", "0")).split(b"\0"):
            key, _dummy, value = variable.partition(b"=")
            if key == VARIABLE.encode():
                return value.decode("ascii", "replace")
        return ""

    def journal(self) -> str:
        """Its last words."""
        _dummy, out, _err = self._run(["journalctl", "--unit", self.unit, "--lines=25", "--no-pager", "--output=cat"])
        return out.strip() or "(its journal is empty)"

    def _reason(self) -> Optional[str]:
        if self.is_stale():
            return "systemd does not run it from its unit file"
        if self.wanted_generation() is None:
            return None
        health = self._health
        report = None if health.url is None else unhealthy(*fetch_json(health.url, ca=health.ca), health.key)
        return report or health.also()

    def _show(self) -> Dict[str, str]:
        return show(self._run, self.unit, "ActiveState", "MainPID", "UnitFileState", "NeedDaemonReload")

    def _must(self, *args: str) -> None:
        status, out, err = self._run(["systemctl", *args])
        if status != 0:
            words = (err or out).strip()
            raise SystemdError(f"systemctl {' '.join(args)} failed with exit status {status}: {words}. It said:\n{self.journal()}")


def content_of(path: str) -> Optional[bytes]:
    """The file's bytes, None if there is none."""
    state = read_state(path)
    return None if state is None else state.content


def read_environ(pid: str) -> bytes:
    """/proc/PID/environ, b"" if the process is gone."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as stream:
            return stream.read()
    except OSError:
        return b""


class Companions:
    """Units by name with their content, None for one that shall not be there. Timers run, also after a boot; others are started by them."""

    def __init__(self, wanted: Mapping[str, Optional[str]], run: Run, units: str = UNITS) -> None:
        self.wanted = dict(wanted)
        self._run = run
        self._units = units

    def plan(self, transaction: Transaction) -> None:
        """Their files."""
        for name, content in self.wanted.items():
            if content is None:
                transaction.remove(self.path(name))
            else:
                transaction.write(self.path(name), content.encode(), 0o644)

    def path(self, name: str) -> str:
        return os.path.join(self._units, name)

    def is_due(self) -> bool:
        """Whether systemd does not have them as they are wanted."""
        return any(self._is_off(name) for name in self.wanted)

    def settle(self) -> None:
        """Have systemd take them as their files are now. SystemdError with its own words."""
        there = [name for name in self.wanted if os.path.exists(self.path(name))]
        for name in self.wanted:
            if name not in there:
                # Before systemd hears that the file is gone: it would be left as failed.
                self._run(["systemctl", "stop", name])
                self._run(["systemctl", "disable", "--quiet", name])
        self._must("daemon-reload")
        for name in there:
            if name.endswith(".timer"):
                self._must("enable", "--now", "--quiet", name)

    def _is_off(self, name: str) -> bool:
        status = show(self._run, name, "LoadState", "ActiveState", "UnitFileState", "NeedDaemonReload")
        if status.get("NeedDaemonReload") == "yes":
            return True
        running = status.get("ActiveState") in ("active", "activating")
        if not os.path.exists(self.path(name)):
            return running or status.get("UnitFileState") == "enabled"
        return name.endswith(".timer") and not (running and status.get("UnitFileState") == "enabled")

    def _must(self, *args: str) -> None:
        status, out, err = self._run(["systemctl", *args])
        if status != 0:
            raise SystemdError(f"systemctl {' '.join(args)} failed with exit status {status}: {(err or out).strip()}")


class Together(Service):
    """A daemon and its companions as one service of a transaction."""

    def __init__(self, daemon: Daemon, companions: Companions) -> None:
        super().__init__(self.is_due, self.settle, daemon.problem)
        self._daemon = daemon
        self._companions = companions

    def is_due(self) -> bool:
        return self._daemon.is_due() or self._companions.is_due()

    def settle(self) -> None:
        """Each of the two only if it is due itself."""
        # Asked first: what the companions need makes systemd forget that the daemon's unit is another one.
        stale = self._daemon.is_stale()
        if self._companions.is_due():
            self._companions.settle()
        if stale:
            self._daemon.start_anew()
        elif self._daemon.has_old_copies():
            self._daemon.reload()
