# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""k3s and RKE2 on a host: whether their containerd knows NVIDIA's runtime, the one restart by which it finds it, and their image store.

Both search for the program when they start, and write containerd's configuration themselves: no file of theirs is changed here (k3s-io/k3s
pkg/agent/containerd/runtimes.go, docs.rke2.io/reference/cli_tools, read on 2026-11-25).
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import time
from dataclasses import dataclass, field
from typing import IO, Any, Callable, Dict, List, Optional

from .._formats import toml
from .._formats.answers import ABSENT, ModuleAnswer, like
from .._formats.failure import Failure
from .._host import files
from .._host.command import RunWithin
from .._host.host import Host
from .._host.rancher import KINDS, service
from .._host.systemd import parsed, show_command
from .images import IMAGE

RUNTIME = "nvidia"
#: Places in which both search for it. The GPU Operator's comes first.
PROGRAMS = ("/usr/local/nvidia/toolkit/nvidia-container-runtime", "/usr/bin/nvidia-container-runtime")
ADDRESS = "/run/k3s/containerd/containerd.sock"
_PLUGINS = ("io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri")
_ASK_SECONDS = 20.0
_IMPORT_SECONDS = 300.0
_PAUSE_SECONDS = 2.0
_CHUNK = 1 << 20


@dataclass(frozen=True)
class RancherAnswer(ModuleAnswer):
    """The answer of gpushare_host_runtime about k3s and RKE2. restarted: the unit, "" for none. missing: whether its action plugin must
    send the archive.
    """

    imported: List[str] = field(metadata=like(IMAGE))
    restarted: str
    missing: Optional[bool] = field(default=None, metadata=ABSENT)


class RancherError(Failure):
    """Why the host cannot be brought there: what was found, what was expected, what to do."""


@dataclass(frozen=True)
class RancherState:
    """Of one host. unit: the service that runs. program: NVIDIA's runtime, "" for none. knows: whether containerd's configuration has it.

    has_image: whether the image store has the image, None where none was asked for.
    """

    unit: str
    program: str
    knows: bool
    has_image: Optional[bool]

    @property
    def is_due(self) -> bool:
        """Whether a restart would change containerd's configuration."""
        return bool(self.program) != self.knows


class Rancher:
    """One host's k3s or RKE2."""

    def __init__(
        self,
        host: Host,
        name: str,
        run: RunWithin,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._host, self._name, self._run, self._clock, self._sleep = host, name, run, clock, sleep
        self.kind = KINDS[name]
        found = service(host, name)
        self._data = found.data if found is not None else self.kind.data
        self.config = f"{self._data}/agent/etc/containerd/config.toml"
        #: Ours, in the folder whose archives are imported at each start.
        self.image = f"{self._data}/agent/images/gpushare.tar"

    def state(self, image: str = "") -> RancherState:
        """RancherError where no service of it runs, or its containerd cannot be asked."""
        unit = next((unit for unit in self.kind.units if self._is_active(unit)), "")
        if not unit:
            raise RancherError(
                f"found no active {' or '.join(self.kind.units)}; expected one. Start it (journalctl -u {self.kind.units[0]} says why not)"
            )
        return RancherState(unit, next(iter(self._host.existing(PROGRAMS)), ""), self.knows(), self._has(image) if image else None)

    def knows(self) -> bool:
        """Whether the configuration of containerd that it has written has the runtime."""
        return knows(self._host.text(self.config) or "")

    def restart(self, unit: str, wanted: bool, seconds: float) -> None:
        """Its containers go on: both units have KillMode=process. RancherError unless containerd's configuration is as wanted in time."""
        mode = parsed(self._asked(show_command(unit, "KillMode"))).get("KillMode", "")
        if mode != "process":
            raise RancherError(
                f"found KillMode={mode[:40]} of {unit}; expected process, because a restart would end all containers. Correct the unit"
            )
        deadline = self._clock() + seconds
        done = self._run(["systemctl", "restart", unit], seconds)
        if not done.ok:
            raise RancherError(
                f"found that {unit} does not restart ({done.words or 'it took too long'}); expected it to. See journalctl -u {unit}"
            )
        while self.knows() is not wanted or not self._host.is_socket(ADDRESS):
            if self._clock() > deadline:
                raise RancherError(
                    f"found {'no' if wanted else 'still the'} runtime {RUNTIME} in {self.config} within {seconds:.0f} s after a "
                    f"restart of {unit}; {self._name} has not written that file again, see whether you have a config.toml.tmpl"
                )
            self._sleep(_PAUSE_SECONDS)

    def archived(self) -> str:
        """SHA-256 of the archive with the image that lies there, "" without one."""
        try:
            with open(self._host.outside(self.image), "rb") as file:
                return _sum(file)
        except FileNotFoundError:
            return ""

    def archive(self, path: str, sha256: str) -> None:
        """Place the one that has arrived. RancherError where it has another sum, OSError where there is no room."""
        place = self._host.outside(self.image)
        os.makedirs(os.path.dirname(place), mode=0o755, exist_ok=True)
        # Not one that the distribution would import half-written.
        staged = place + ".gpushare-staged"
        try:
            with open(path, "rb") as source, open(staged, "wb") as target:
                found = _sum(source, target.write)
                os.fchmod(target.fileno(), 0o644)
                os.fsync(target.fileno())
            if found != sha256:
                raise RancherError(f"found an archive that arrived with SHA-256 {found}, expected {sha256}; run again")
            os.rename(staged, place)
        finally:
            files.remove(staged)

    def has_archive(self) -> bool:
        return self._host.exists(self.image)

    def remove_archive(self) -> None:
        """There may be none."""
        files.remove(self._host.outside(self.image))

    def bring(self) -> None:
        archive = self.image
        done = self._run([*self._ctr(), "images", "import", archive], _IMPORT_SECONDS)
        if not done.ok:
            raise RancherError(
                f"found that {archive} cannot be imported ({done.words or 'it took too long'}); expected an archive of `make image`"
            )

    def _has(self, image: str) -> bool:
        return image in self._asked([*self._ctr(), "images", "list", "--quiet"]).split()

    def _ctr(self) -> List[str]:
        program = self._host.program(f"{self._data}/bin/{self.kind.ctr[0]}") or self._host.program(self.kind.ctr[0])
        if program is None:
            raise RancherError(f"found no program {self.kind.ctr[0]}; expected that of {self._name}. See its installation")
        return [program, *self.kind.ctr[1:], "--address", ADDRESS, "--namespace", "k8s.io"]

    def _is_active(self, unit: str) -> bool:
        return parsed(self._asked(show_command(unit, "ActiveState"))).get("ActiveState") == "active"

    def _asked(self, argv: List[str]) -> str:
        done = self._run(argv, _ASK_SECONDS)
        if not done.ok:
            raise RancherError(f"found no answer from {posixpath.basename(argv[0])} ({done.words or 'it took too long'}); expected one")
        return done.out


def _sum(source: IO[bytes], also: Callable[[bytes], object] = len) -> str:
    digest = hashlib.sha256()
    for part in iter(lambda: source.read(_CHUNK), b""):
        digest.update(part)
        also(part)
    return digest.hexdigest()


def knows(config: str) -> bool:
    """Whether a configuration of containerd, of version 2 or 3, has NVIDIA's runtime. False for one that cannot be read."""
    try:
        data = toml.loads(config)
    except toml.TomlError:
        return False
    return any(_inside(data, "plugins", name, "containerd", "runtimes", RUNTIME) is not None for name in _PLUGINS)


def _inside(data: Any, *steps: str) -> Optional[Dict[str, Any]]:
    for step in steps:
        data = data.get(step) if isinstance(data, dict) else None
    return data if isinstance(data, dict) else None
