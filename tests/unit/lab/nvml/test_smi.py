# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""NVIDIA's own nvidia-smi on the simulated library; it is not free, so only where the lab has fetched it."""

from __future__ import annotations

import os

import pytest

from lab.nvml import gpus, smi

NVIDIA_SMI = os.environ.get("GPUSHARE_LAB_NVIDIA_SMI", "")
pytestmark = pytest.mark.skipif(not NVIDIA_SMI, reason="GPUSHARE_LAB_NVIDIA_SMI does not name an nvidia-smi")


@pytest.mark.parametrize("spec", ["2x16", "8+16+24+192", "16x40", "none"])
def test_nvidia_smi_shows_the_gpus(machine, spec: str) -> None:
    machine.write(*gpus.gpus_from_spec(spec, "gpu1", "s"))
    smi.check(lambda *arguments: machine.run(NVIDIA_SMI, *arguments).stdout, gpus.read_state(machine.state_file).gpus)


def test_nvidia_smi_shows_processes_and_used_memory(machine) -> None:
    machine.write(*gpus.gpus_from_spec("16+24", "gpu1", "s"))
    machine.command("used", 0, 100)
    machine.command("process", 0, 4242, 512, "python train.py")
    state = gpus.read_state(machine.state_file)
    assert smi.used_mib(state.gpus[0]) == 612
    smi.check(lambda *arguments: machine.run(NVIDIA_SMI, *arguments).stdout, state.gpus)


def test_nvidia_smi_shows_mig_instances(machine) -> None:
    machine.write(*gpus.gpus_from_spec("16+2x80", "gpu1", "s"))
    machine.command("instances", 1, "1g,2g,1c.3g,2c.3g")
    machine.write_capabilities()
    state = gpus.read_state(machine.state_file)
    assert [one.profile(81920) for one in state.gpus[1].instances] == ["1g.10gb", "2g.20gb", "1c.3g.40gb", "2c.3g.40gb"]
    smi.check(lambda *arguments: machine.run(NVIDIA_SMI, *arguments).stdout, state.gpus)
    # A container has the device nodes of its own instance only.
    own = state.gpus[1].instances[1]
    for path in (machine.devices / "nvidia-caps").iterdir():
        if path.name[len("nvidia-cap") :] not in map(str, own.capabilities(1)):
            path.unlink()
    listed = machine.run(NVIDIA_SMI, "-L").stdout
    assert [line.split()[-1] for line in listed.splitlines() if "MIG" in line and "Device" in line] == [f"{own.uuid})"]


def test_nvidia_smi_says_what_is_wrong(machine) -> None:
    machine.write(*gpus.gpus_from_spec("2x16", "gpu1", "s"))
    machine.command("lost", 1)
    assert "GPU is lost" in machine.run(NVIDIA_SMI).stdout
    machine.command("driver", "mismatch")
    failed = machine.run(NVIDIA_SMI, "-L")
    assert failed.returncode != 0
    assert "Driver/library version mismatch" in failed.stdout
    machine.command("driver", "gone")
    assert "couldn't communicate with the NVIDIA driver" in machine.run(NVIDIA_SMI, "-L").stdout
