# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""One GPU, and a stand-in for its MPS control daemon."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gpushare_runtime.core.mps import MpsState
from gpushare_runtime.mps.gpu import GpuForMps
from gpushare_runtime.mps.main import MpsSettings

UUID = "GPU-8f6f2c31-0000-0000-0000-000000000000"

STAND_IN = Path(__file__).with_name("mps_control.py")

# No multiple of 1 GiB, as no GPU has.
VOLTA = GpuForMps((7, 0), False, (), 0, 16160)


class Gpus:
    """NVML with one GPU. sticky: the mode cannot be changed."""

    exclusive = 3

    def __init__(self, gpu: GpuForMps = VOLTA) -> None:
        self.gpu, self.sticky, self.modes = gpu, False, []

    def read(self, uuid: str) -> GpuForMps:
        assert uuid == UUID
        return self.gpu

    def set_mode(self, uuid: str, mode: int) -> None:
        self.modes.append(mode)
        if not self.sticky:
            self.gpu = replace(self.gpu, mode=mode)


def settings(root: Path, program: str = str(STAND_IN), canary: float = 0.0) -> MpsSettings:
    return MpsSettings(UUID, root / "r", root / "l", root / "s", program, root / "u/held.json", canary)


def state(root: Path) -> MpsState:
    path = root / "r" / UUID / "state.json"
    if not path.exists():
        raise LookupError("not written yet")
    return MpsState.from_json(path.read_text())


def fault(root: Path, kind: str) -> None:
    (root / "r" / UUID).mkdir(parents=True)
    (root / "r" / UUID / "fault").write_text(kind)
