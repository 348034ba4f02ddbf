# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A machine with simulated GPUs for the proof: the NVML library of the lab, and stand-ins for nvidia-smi, MPS and the programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from gpu_proof.context import REPOSITORY
from gpushare_lab import components
from gpushare_lab.cache import Cache
from gpushare_lab.places import cache_root
from lab.nvml import gpus

_STAND_INS: Final = Path(__file__).with_name("stand_ins")
_MPS: Final = REPOSITORY / "tests/unit/fakes/runtime/mps/mps_control.py"
_SECONDS: Final = 240
# What the whole of it may take there.
MOST_SECONDS: Final = 180
# nvidia-ctk wants real device nodes: in a mount namespace of its own, so that this machine's /dev stays as it is.
_DEVICES: Final = r"""
set -e
new=$1; count=$2; shift 2
mkdir -p "$new" && mount -t tmpfs none "$new"
for name in null zero full random urandom tty; do touch "$new/$name" && mount --bind "/dev/$name" "$new/$name"; done
mkdir "$new/shm" && mount --rbind /dev/shm "$new/shm"
ln -s /proc/self/fd "$new/fd"
for name in nvidiactl nvidia-uvm nvidia-uvm-tools; do mknod -m 666 "$new/$name" c 1 3; done
number=0
while [ "$number" -lt "$count" ]; do mknod -m 666 "$new/nvidia$number" c 1 3; number=$((number + 1)); done
mount --move "$new" /dev
exec "$@"
"""


@dataclass
class Simulated:
    """root: its files. extra: of the environment of everything on it."""

    root: Path
    extra: dict[str, str] = field(default_factory=dict)

    @property
    def state(self) -> Path:
        return self.root / "state" / "gpus.state"

    @property
    def out(self) -> Path:
        return self.root / "out"

    @property
    def programs(self) -> Path:
        """First in the PATH."""
        return self.root / "bin"

    @property
    def environment(self) -> dict[str, str]:
        modules = [str(REPOSITORY / name) for name in ("files/gpushare_runtime", "tests", "tools", "tools/lab")]
        return {
            **os.environ,
            "PATH": f"{self.programs}:{os.environ['PATH']}",
            "PYTHONPATH": os.pathsep.join(modules),
            "LD_LIBRARY_PATH": str(components.nvml(Cache(cache_root(os.environ)))),
            "GPUSHARE_LAB_NVML_STATE": str(self.state),
            "GPUSHARE_LAB_NVML_LIMITS": str(self.root / "limits"),
            "GPUSHARE_LAB_NVML_MODES": str(self.root / "modes"),
            **self.extra,
        }

    def make(self, spec: str = "2x24", **changes: Any) -> None:
        """changes: of the state."""
        made = gpus.gpus_from_spec(spec, "gpu1", "proof")
        gpus.write_state(self.state, gpus.State(gpus=tuple(made), **changes))
        self.programs.mkdir()
        self.program("nvidia-smi", f'exec {sys.executable} {_STAND_INS}/nvidia_smi.py "$@"')
        self.program("nvidia-cuda-mps-control", f'exec {sys.executable} {_MPS} "$@"')
        toolkit = components.nvidia_toolkit(Cache(cache_root(os.environ)))
        for name in ("nvidia-ctk", "nvidia-cdi-hook"):
            (self.programs / name).symlink_to(toolkit / name)

    def program(self, name: str, script: str) -> None:
        """In place of what is there."""
        (self.programs / name).unlink(missing_ok=True)
        (self.programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (self.programs / name).chmod(0o755)

    def change(self, index: int, **changes: Any) -> None:
        gpus.write_state(self.state, gpus.with_gpu(gpus.read_state(self.state), index, **changes))

    def prove(self, *arguments: str) -> tuple[int, dict[str, Any]]:
        """The exit status and the report."""
        client = f"{sys.executable} {_STAND_INS}/client.py"
        own = ["--out", str(self.out), "--seconds", "0.2", "--driver-program", client, "--framework-program", client]
        count = str(len(gpus.read_state(self.state).gpus))
        inside = ["unshare", "--mount", "--propagation", "private", "sh", "-c", _DEVICES, "sh", str(self.root / "dev"), count]
        done = subprocess.run(
            [*inside, sys.executable, "-m", "gpu_proof", *own, *arguments],
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=_SECONDS,
            check=False,
        )
        print(done.stdout, done.stderr)
        reports = sorted(self.out.glob("gpu-*.json"))
        return done.returncode, json.loads(reports[0].read_text()) if reports else {}
