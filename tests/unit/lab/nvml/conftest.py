# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The simulated library, built once, and machines with GPUs that processes see through it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from lab.nvml import gpus

HERE = Path(__file__).parent
SOURCES = Path(gpus.__file__).parent


class NvmlCode(Exception):
    """What an NVML call answered instead of success."""

    def __init__(self, code: int) -> None:
        super().__init__(f"NVML answered {code}")
        self.code = code


class Nvml:
    """pynvml in a process of its own: `nvml("DeviceGetName", handle)`."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.results = 0

    def __call__(self, function: str, *arguments: object) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.results += 1
        request = [str(self.results), f"nvml{function}", *arguments]
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        assert line, f"pynvml's process ended with {self.process.wait()} at {request}"
        answer = json.loads(line)
        if "error" in answer:
            raise NvmlCode(answer["error"])
        return answer["value"]

    def code(self, function: str, *arguments: object) -> int:
        """What the call answers as a number, 0 for success."""
        try:
            self(function, *arguments)
        except NvmlCode as error:
            return error.code
        return 0


@dataclass
class Machine:
    """A folder with a state file and device nodes, and the environment that makes the library look there."""

    root: Path
    libraries: Path
    processes: list[subprocess.Popen[str]] = field(default_factory=list)

    @property
    def state_file(self) -> Path:
        return self.root / "state" / "gpus.state"

    @property
    def devices(self) -> Path:
        return self.root / "dev"

    @property
    def groups(self) -> Path:
        return self.root / "cgroup"

    @property
    def environment(self) -> dict[str, str]:
        return os.environ | {
            "LD_LIBRARY_PATH": str(self.libraries),
            "GPUSHARE_LAB_NVML_STATE": str(self.state_file),
            "GPUSHARE_LAB_NVML_DEV": str(self.devices),
            "GPUSHARE_LAB_NVML_LIMITS": str(self.root / "limits"),
            "GPUSHARE_LAB_NVML_CGROUPS": str(self.groups),
            "GPUSHARE_LAB_NVML_MODES": str(self.root / "modes"),
        }

    def write(self, *present: gpus.Gpu) -> None:
        """Puts these GPUs into the machine, with their device nodes."""
        gpus.write_state(self.state_file, gpus.State(gpus=present))
        self.devices.mkdir(exist_ok=True)
        for gpu in present:
            (self.devices / f"nvidia{gpu.minor}").touch()

    def write_capabilities(self) -> None:
        """The device nodes of the present instances and the driver's list of all that could be."""
        shutil.rmtree(self.devices / "nvidia-caps", ignore_errors=True)
        (self.devices / "nvidia-caps").mkdir()
        for gpu in gpus.read_state(self.state_file).gpus:
            for number in (number for one in gpu.instances for number in one.capabilities(gpu.minor)):
                (self.devices / f"nvidia-caps/nvidia-cap{number}").touch()
        (self.root / "mig-minors").write_text(gpus.capability_minors())

    def command(self, *arguments: object) -> None:
        """Runs gpus.py as a user would."""
        command = [sys.executable, str(SOURCES / "gpus.py"), *map(str, arguments), str(self.state_file)]
        subprocess.run(command, check=True, timeout=30)

    def nvml(self, initialize: bool = True) -> Nvml:
        """A running process with pynvml, which has called nvmlInit."""
        process = subprocess.Popen(
            [sys.executable, str(HERE / "probe.py")],
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        nvml = Nvml(process)
        if initialize:
            nvml("Init")
        return nvml

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Runs a command on this machine to its end."""
        return subprocess.run(command, env=self.environment, check=False, timeout=60, text=True, capture_output=True)


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the built libraries."""
    for tool in ("make", "gcc"):
        if shutil.which(tool) is None:
            pytest.fail(f"{tool} is missing; install the Debian package {tool}")
    out = tmp_path_factory.mktemp("nvml")
    built = subprocess.run(["make", "-C", str(SOURCES), f"OUT={out}"], check=False, timeout=300, text=True, capture_output=True)
    assert built.returncode == 0, built.stderr
    return out


@pytest.fixture
def machine(tmp_path: Path, libraries: Path) -> Iterator[Machine]:
    """A machine without GPUs."""
    machine = Machine(tmp_path, libraries)
    yield machine
    for process in machine.processes:
        process.kill()
        process.communicate()


@pytest.fixture
def gpu() -> Callable[..., gpus.Gpu]:
    """Makes GPU `number` of an imagined machine: its UUID, serial and PCI bus say which it is."""

    def make(number: int, **changes: Any) -> gpus.Gpu:
        values: dict[str, Any] = {
            "uuid": f"GPU-{number:08x}-0000-4000-8000-000000000000",
            "minor": number,
            "name": "NVIDIA A10",
            "pci": f"00000000:{0x10 + number:02X}:00.0",
            "pci_device_id": 0x223610DE,
            "pci_subsystem_id": 0x148210DE,
            "memory_mib": 24576,
            "compute_capability": "8.6",
            "serial": f"132000000{number:04d}",
        }
        return gpus.Gpu(**(values | changes))

    return make
