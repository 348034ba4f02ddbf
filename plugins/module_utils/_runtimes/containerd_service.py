# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""containerd under systemd: what its CRI status says of the process decides, never the files' dates."""

from __future__ import annotations

from copy import copy
from typing import Dict, List, Optional, Sequence, Tuple

from .._change.journal import Entry
from .._change.undo import Rejected
from .._host.command import RunWithin
from .._host.host import flag
from . import cri
from .containerd_config import masked, not_running, running_runtimes, socket_address
from .containerd_files import Installation
from .plan import Asked, RuntimePlan, Runtimes
from .service import ASK_SECONDS, RuntimeService, RuntimeUnit

CONFIG = "/etc/containerd/config.toml"


def config_of(unit: RuntimeUnit) -> str:
    """The configuration file that its command line names, or containerd's own default."""
    return flag(unit.arguments, "config") or flag(unit.arguments, "c") or CONFIG


def address_of(unit: RuntimeUnit) -> Optional[str]:
    """The socket that its command line names."""
    return flag(unit.arguments, "address") or flag(unit.arguments, "a")


class ContainerdService(RuntimeService):
    """One host's containerd."""

    def __init__(
        self, unit: RuntimeUnit, installation: Installation, run: RunWithin, timeout: float, allowed: bool = False, cdi: bool = False
    ) -> None:
        """cdi: whether CDI is of interest."""
        self._installation, self._cdi = installation, cdi
        self._address = address_of(unit) or socket_address(installation.dump())
        super().__init__(unit, run, timeout, allowed)

    @classmethod
    def of(cls, unit: RuntimeUnit, config: Optional[str], run: RunWithin, timeout: float, allowed: bool = False) -> "ContainerdService":
        """Of this unit, with this main configuration file or the one that its command line names."""
        return cls(unit, Installation(unit.program_call(run), config or config_of(unit)), run, timeout, allowed)

    def present(self, asked: Asked) -> RuntimePlan:
        return self._installation.present(asked)

    def absent(self, entries: Sequence[Entry]) -> RuntimePlan:
        return self._installation.absent(entries)

    def judged_by(self, plan: RuntimePlan) -> "ContainerdService":
        service = copy(self)
        service._cdi = plan.after.cdi is not None
        return service

    def paths(self) -> List[str]:
        return list(self._installation.read({}))

    def shown(self, text: str) -> str:
        return masked(text)

    def tidy(self) -> None:
        self._installation.tidy()

    def wanted(self) -> Runtimes:
        return self._installation.runtimes(self._cdi)

    def running(self) -> Tuple[Dict[str, Tuple[bool, str]], Runtimes]:
        status = cri.status(self._address, ASK_SECONDS)
        return status.conditions, running_runtimes(status.config, self._installation.decoder)

    def differs(self, wanted: Runtimes, running: Runtimes) -> Optional[str]:
        return not_running(wanted, running)

    def check_restart(self, plan: RuntimePlan) -> None:
        """Raise Rejected if it would have to be restarted and took containers with it."""
        if not self.allowed and self.unit.kill_mode not in ("process", "none") and self.lacks(plan.after):
            raise Rejected(
                f"{self.unit.name} has KillMode={self.unit.kill_mode}, so restarting containerd would end the shims of all containers on "
                "this host; nothing was changed: give it KillMode=process, as containerd's own unit has, or drain the node and set "
                "gpushare_container_runtime_allow_container_kill"
            )
