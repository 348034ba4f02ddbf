# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The units beside one of our daemons, such as a timer and what it starts. No Ansible here."""

from __future__ import annotations

import os
from typing import Dict, Mapping, Optional

from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.transaction import Service, Transaction
from ansible_collections.gpushare.kubernetes.plugins.module_utils._systemd import UNITS, Daemon, Run, SystemdError

_PROPERTIES = "--property=LoadState,ActiveState,UnitFileState,NeedDaemonReload"


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
        status = self._show(name)
        if status.get("NeedDaemonReload") == "yes":
            return True
        running = status.get("ActiveState") in ("active", "activating")
        if not os.path.exists(self.path(name)):
            return running or status.get("UnitFileState") == "enabled"
        return name.endswith(".timer") and not (running and status.get("UnitFileState") == "enabled")

    def _show(self, name: str) -> Dict[str, str]:
        _dummy, out, _err = self._run(["systemctl", "show", name, _PROPERTIES])
        return {key: value for key, _equals, value in (line.partition("=") for line in out.splitlines())}

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
