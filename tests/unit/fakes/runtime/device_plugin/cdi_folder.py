# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A folder of CDI specs, and the device nodes that they may name."""

from __future__ import annotations

import json
from pathlib import Path

from unit.fakes.runtime.device_plugin.fake_nvml import facts


def made(folder: Path) -> Path:
    """The folder of specs; beside it, device nodes of three GPUs."""
    (folder / "dev").mkdir()
    for minor in range(3):
        (folder / f"dev/nvidia{minor}").touch()
    (folder / "libcuda.so.1").touch()
    (folder / "cdi").mkdir()
    return folder / "cdi"


def write(cdi: Path, *minors: int) -> None:
    """One spec of these GPUs, as nvidia-ctk writes it: beside its place, and then renamed."""
    devices = [
        {"name": facts(minor, 0).uuid, "containerEdits": {"deviceNodes": [{"path": f"{cdi.parent}/dev/nvidia{minor}"}]}} for minor in minors
    ]
    common = {"mounts": [{"hostPath": f"{cdi.parent}/libcuda.so.1", "containerPath": "/lib/libcuda.so.1"}]}
    spec = {"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": devices, "containerEdits": common}
    partial = cdi / ".partial"
    partial.write_text(json.dumps(spec))
    partial.rename(cdi / "nvidia.yaml")
