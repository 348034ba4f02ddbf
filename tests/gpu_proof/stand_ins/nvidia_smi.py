# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A stand-in for `nvidia-smi -q -x` and `pmon` on the simulated GPUs: it reads their state file, and not our NVML code.

PROOF_FAULT: memory, uuid (they differ from what NVML says), garbage (no XML), pmon (it has twice the load).
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from xml.sax.saxutils import escape

from lab.nvml import gpus

FAULT = os.environ.get("PROOF_FAULT", "")


def element(gpu: gpus.Gpu) -> str:
    uuid = gpu.uuid.replace("a", "b").replace("1", "2") if FAULT == "uuid" else gpu.uuid
    mib = gpu.memory_mib + (1024 if FAULT == "memory" else 0)
    mode = {0: "Default", 2: "Prohibited", 3: "Exclusive_Process"}[gpu.compute_mode]
    mig = ("Disabled", "Enabled")[gpu.mig_mode] if float(gpu.compute_capability) >= 8 else "N/A"
    listed = "".join(
        f"<process_info><pid>{one.pid}</pid><type>C</type><process_name>{escape(one.name)}</process_name>"
        f"<used_memory>{one.memory_mib} MiB</used_memory></process_info>"
        for one in gpu.processes
    )
    return (
        f'<gpu id="{gpu.pci}"><product_name>{gpu.name}</product_name><serial>{gpu.serial}</serial><uuid>{uuid}</uuid>'
        f"<minor_number>{gpu.minor}</minor_number><mig_mode><current_mig>{mig}</current_mig></mig_mode>"
        f"<fb_memory_usage><total>{mib} MiB</total></fb_memory_usage><compute_mode>{mode}</compute_mode>"
        f"<processes>{listed}</processes></gpu>"
    )


def pmon(state: gpus.State, uuid: str) -> str:
    """One sample of `pmon -s u`."""
    lines = [
        "# gpu         pid   type     sm    mem    enc    dec    jpg    ofa    command ",
        "# Idx           #    C/G      %      %      %      %      %      %    name ",
    ]
    for index, gpu in enumerate(state.gpus):
        for one in gpu.processes if gpu.uuid == uuid else ():
            sm = one.load[0] * (2 if FAULT == "pmon" else 1)
            lines.append(f"    {index} {one.pid:>10}     C {sm or '-':>6}      -      -      -      -      -    {one.name}")
    return "\n".join(lines)


def main() -> int:
    state = gpus.read_state(Path(os.environ["GPUSHARE_LAB_NVML_STATE"]))
    if FAULT == "garbage":
        print("NVIDIA-SMI has failed because it could not communicate with the NVIDIA driver.")
        return 9
    if sys.argv[1:2] == ["pmon"]:
        print(pmon(state, sys.argv[sys.argv.index("--id") + 1]))
        return 0
    elements = "".join(map(element, state.gpus))
    version = f"<driver_version>{state.driver_version}</driver_version><cuda_version>12.2</cuda_version>"
    print(f'<?xml version="1.0" ?>\n<nvidia_smi_log>{version}<attached_gpus>{len(state.gpus)}</attached_gpus>{elements}</nvidia_smi_log>')
    return 0


if __name__ == "__main__":
    sys.exit(main())
