# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The MPS control daemons of a host, one systemd service per GPU.

A restart ends all CUDA work on its GPU. So nothing is started, restarted or stopped while pods have GPUs: a change that pods forbid
is an error, and one that can wait, such as that of a new release, waits.
"""

from __future__ import annotations

import os
import re
import shutil
from dataclasses import dataclass
from typing import Callable, Dict, List, Mapping, Optional, Sequence

from .._change.engine import ChangePlan, Recorded, Subject
from .._change.subjects import MPS_FOLDER, SETTINGS, SHARED_MEMORY
from .._change.transaction import Service
from .._change.undo import Rejected, Texts, read_or_none
from .._formats.answers import DiffPart, ModuleAnswer
from .._formats.finding import few
from .._host.command import Run
from .._host.mounts import unmount
from .._host.systemd import UNITS
from .service import Daemon, Health, SystemdError, apart

OWNER = "mps"
#: How the names of the services begin; the UUID of the GPU follows.
PREFIX = "gpushare-mps-"
#: Stands for the GPU in the unit that the role renders.
GPU = "@gpu@"
_UUID = re.compile(r"GPU-[0-9A-Za-z-]{8,60}")
_NAME = re.compile(rf"{PREFIX}({_UUID.pattern})\.service")


@dataclass(frozen=True)
class Place:
    """Where units and their settings are."""

    units: str = UNITS
    settings: str = SETTINGS
    folder: str = MPS_FOLDER


class MpsServices(Service):
    """All services of the host that are ours, by the folder of their GPU."""

    def __init__(self, daemons: Mapping[str, Daemon], run: Run) -> None:
        self._folders = dict(daemons)
        self._daemons = tuple(daemons.values())
        self._run = run

    def due(self) -> bool:
        return any(daemon.due() for daemon in self._daemons) or bool(self._left())

    def restart(self) -> None:
        for daemon in self._daemons:
            daemon.restart()
        for folder in self._left():
            why = unmount(self._run, os.path.join(folder, SHARED_MEMORY))
            if why:
                raise SystemdError(why)
            shutil.rmtree(folder)

    def _left(self) -> List[str]:
        """Folders of GPUs that have no service any more."""
        return [folder for folder, daemon in self._folders.items() if daemon.wanted_generation() is None and os.path.isdir(folder)]

    def problem(self) -> Optional[str]:
        problems = [why for why in (daemon.problem() for daemon in self._daemons) if why]
        return "; ".join(problems) if problems else None


def present(place: Place) -> List[str]:
    """UUIDs of the GPUs that have a service of ours."""
    names = sorted(os.listdir(place.units)) if os.path.isdir(place.units) else []
    return [found.group(1) for found in map(_NAME.fullmatch, names) if found]


@dataclass(frozen=True)
class MpsAnswer(ModuleAnswer):
    """The answer of gpushare_sharing about MPS control daemons. waiting: services that change once no pod has GPUs."""

    waiting: List[str]
    diff: List[DiffPart]


class MpsDaemons(Subject[List[str]]):
    """The control daemons of this host: exactly these GPUs have one. unit: with GPU in it; holders: UIDs of the pods with GPUs.

    Its plan leaves the units of services that are older than this release and run on, because pods have GPUs.
    """

    owner, mode = OWNER, 0o644

    def __init__(
        self,
        gpus: Sequence[str],
        unit: str,
        holders: Sequence[str],
        run: Run,
        environ: Callable[[str], bytes],
        timeout: float = 60,
        place: Optional[Place] = None,
        exposed: Callable[[], Optional[str]] = lambda: None,
    ) -> None:
        self._gpus, self._unit, self._holders, self._run = gpus, unit, holders, run
        self._place, self._environ, self._timeout, self._exposed = place or Place(), environ, timeout, exposed
        for gpu in gpus:
            if not _UUID.fullmatch(gpu):
                raise Rejected(
                    f"found the GPU {gpu[:80]!r}, expected a UUID such as GPU-8f6f2c31-…, as `nvidia-smi -L` prints it; nothing was changed"
                )

    def look(self, recorded: Recorded) -> List[str]:
        """UUIDs of the GPUs that have a service of ours."""
        return present(self._place)

    def present(self, found: List[str]) -> ChangePlan:
        holders, health, where = self._holders, Health(None, "", self._timeout), self._place
        new, gone = sorted(set(self._gpus) - set(found)), sorted(set(found) - set(self._gpus))
        if (new or gone) and holders:
            raise Rejected(_rejection(new, gone, holders))
        texts: Texts = {}
        left: Dict[str, str] = {}
        services: Dict[str, Daemon] = {}
        for gpu in sorted({*self._gpus, *found}):
            daemon = Daemon(PREFIX + gpu, health, self._run, self._environ, where.units, settings=where.settings, exposed=self._exposed)
            if gpu in gone:
                texts[daemon.path] = texts[daemon.settings] = None
            else:
                content = self._unit.replace(GPU, gpu)
                text, settings = apart(content, daemon.settings, [content])
                if holders and daemon.running_generation() is not None and not _same(daemon, text, settings):
                    left[daemon.path] = "pods have GPUs"
                    continue
                texts[daemon.path], texts[daemon.settings] = text, settings
            services[os.path.join(where.folder, gpu)] = daemon
        return ChangePlan(texts, left=left, service=MpsServices(services, self._run))


def _same(daemon: Daemon, text: str, settings: str) -> bool:
    found = [state and state.content for state in (read_or_none(path)[0] for path in (daemon.path, daemon.settings))]
    return found == [text.encode(), settings.encode()] and not daemon.is_stale()


def _rejection(new: Sequence[str], gone: Sequence[str], holders: Sequence[str]) -> str:
    what = " and ".join(
        part for part in (f"{len(new)} GPUs without MPS" if new else "", f"{len(gone)} GPUs with MPS" if gone else "") if part
    )
    return (
        f"found {what} that gpushare_isolation changes, and {len(holders)} pods with GPUs (UID {few(sorted(holders), 3)}); "
        "expected no pod with GPUs, because their containers cannot use a GPU in the other way: drain the node and run again, or keep "
        "gpushare_isolation; nothing was changed"
    )
