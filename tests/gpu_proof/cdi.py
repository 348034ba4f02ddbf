# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The CDI spec of the real nvidia-ctk by our reader, and the device strategy that a node with this spec has."""

from __future__ import annotations

import subprocess
from typing import Final

from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts import device_strategy
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts.device_strategy import CdiFacts

from gpu_proof import hardware, machine
from gpu_proof.context import Context
from gpu_proof.findings import Findings, NotPossible, write_atomically
from gpu_proof.scrub import Scrubber
from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.core.quantity import GIB
from gpushare_runtime.device_plugin.gpu.discovery import GpuReader
from gpushare_runtime.device_plugin.gpu.health import GpuHealth
from gpushare_runtime.device_plugin.host.cdi_specs import SpecFolders

_SECONDS: Final = 20


def run(context: Context, findings: Findings) -> None:
    if not context.ctk:
        raise NotPossible("found no nvidia-ctk; expected it in the pack: make gpu-proof-pack")
    nvml = hardware.opened()
    inventory: Inventory = GpuReader(nvml, GIB, GpuHealth()).read()
    folder = context.folder / "cdi"
    folder.mkdir()
    # A folder of its own is no change of this machine.
    command = machine.cdi_command(context.ctk, context.hook, folder / "nvidia.yaml", context.library)
    done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
    last = (done.stderr.strip().splitlines() or [""])[-1]
    findings.check("nvidia-ctk cdi generate", f"status {done.returncode}: {last[:300]}", "status 0", done.returncode == 0)
    if done.returncode:
        return
    write_atomically(context.out / "cdi.yaml", Scrubber().text((folder / "nvidia.yaml").read_text()))
    specs = SpecFolders([str(folder)]).read()
    findings.check("problems that our reader sees in the spec", list(specs.problems), [])
    usable = True
    for gpu in inventory.gpus:
        problem = specs.problem(gpu)
        usable = findings.check(f"GPU {gpu.index}: why no container gets it through CDI", problem, "") and usable
    spec = "" if usable else "the spec does not fit the GPUs"
    chosen = device_strategy.choose(device_strategy.AUTO, CdiFacts("", "", spec), "", ())
    findings.check("device strategy with kubelet 1.31 and containerd 2", chosen.strategy, device_strategy.CDI)
    older = device_strategy.choose(device_strategy.AUTO, CdiFacts("its kubelet passes no CDI devices on", "", spec), "", ())
    findings.check("device strategy where kubelet passes no CDI devices on", older.strategy, device_strategy.MOUNTS)
