# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""How busy pods keep the SMs, as the plugin reads it, against `nvidia-smi pmon`: 1, 2 and 4 programs, without isolation and with MPS."""

from __future__ import annotations

import asyncio
import re
import statistics
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any, Final

from bench.isolation import CLIENTS
from gpu_proof import groups, hardware
from gpu_proof.context import Context
from gpu_proof.findings import Findings, NotPossible
from gpu_proof.workload import Program, programs
from gpushare_runtime.core import mps, protocol
from gpushare_runtime.core.inventory import Gpu
from gpushare_runtime.device_plugin.gpu.nvml import Pynvml
from gpushare_runtime.device_plugin.gpu.use import UseReader
from gpushare_runtime.device_plugin.host.pod_processes import HostProcesses
from gpushare_runtime.mps.control import ControlDaemon, ControlError
from gpushare_runtime.mps.gpu import PynvmlGpus, obstacle

_HELD_MIB: Final = 256
_TOLERANCE: Final = 20
"""Percent: both look at the GPU for seconds, and not for the same ones."""
# GPU, process, kind, percent of the SMs.
_PMON: Final = re.compile(r"^ +\d+ +(\d+) +\S+ +(\d+|-) ", re.MULTILINE)
_SMI_SECONDS: Final = 20
# Until the driver counts all that compute.
_COUNTED_SECONDS: Final = 5.0


def run(context: Context, findings: Findings) -> None:
    nvml = hardware.opened()
    facts = hardware.first(nvml, max(CLIENTS) * (context.context_mib + _HELD_MIB))
    if not context.smi:
        raise NotPossible("found no nvidia-smi; expected it in PATH")
    gpu = Gpu(0, facts.uuid, facts.minor, facts.pci, facts.model, facts.mib, 1)
    with groups.pod_groups(max(CLIENTS), groups.DRIVERS[0], groups.hierarchy(), context.folder / "groups") as pods:
        measured = _Measured(context, findings, nvml, gpu, pods)
        measured.measure(protocol.ISOLATION_NONE, {hardware.VISIBLE: facts.uuid})
        try:
            program = hardware.mps_program(context)
            if why := obstacle(facts.uuid, PynvmlGpus().read(facts.uuid)):
                raise NotPossible(why)
            asyncio.run(_with_mps(measured, program))
        except (NotPossible, ControlError) as error:
            findings.cannot("SMs by pod with MPS", error)


async def _with_mps(measured: _Measured, program: str) -> None:
    folder = measured.context.folder / "m"
    folder.mkdir()
    daemon = ControlDaemon(program, measured.gpu.uuid, folder, folder / "log")
    try:
        await daemon.start()
        await asyncio.to_thread(measured.measure, protocol.ISOLATION_MPS, {mps.ENV_PIPES: str(folder / mps.PIPES)})
    finally:
        await daemon.stop()


def _pmon(smi: str, uuid: str, seconds: float) -> dict[int, float]:
    """The percent of the SMs that nvidia-smi prints of each process, as a mean of its samples."""
    command = [smi, "pmon", "--id", uuid, "--select", "u", "--delay", "1", "--count", str(max(1, int(seconds)))]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=_SMI_SECONDS)
    if done.returncode:
        raise NotPossible(f"nvidia-smi pmon ended with {done.returncode}: {(done.stdout + done.stderr).strip()[:200]}")
    found: dict[int, list[int]] = {}
    for pid, percent in _PMON.findall(done.stdout):
        found.setdefault(int(pid), []).append(0 if percent == "-" else int(percent))
    return {pid: round(statistics.mean(samples), 1) for pid, samples in found.items()}


class _Measured:
    """pods: a program runs in the group of each."""

    def __init__(self, context: Context, findings: Findings, nvml: Pynvml, gpu: Gpu, pods: Sequence[groups.PodGroup]) -> None:
        self.context, self.gpu = context, gpu
        self._findings, self._nvml, self._pods = findings, nvml, pods
        self._reader = UseReader(nvml, HostProcesses())
        self._rows: list[dict[str, Any]] = []

    def measure(self, isolation: str, environment: Mapping[str, str]) -> None:
        with programs(self.context.client, len(self._pods), environment, [pod.folder for pod in self._pods]) as started:
            held = [one.ask("hold", _HELD_MIB)["error"] for one in started]
            known = started[0].ask("kinds")
            if not self._findings.check(f"{isolation}: the programs start", [*held, known["error"]], [""] * (len(held) + 1)):
                return
            listed = dict(self._nvml.processes(self.gpu.uuid))
            if self.context.namespace and any(one.pid not in listed for one in started):
                self._findings.cannot(f"{isolation}: SMs by pod", self.context.namespace)
                return
            for clients in CLIENTS:
                self._compare(isolation, started, str(known["kinds"][0]), clients)

    def _read(self) -> list[float | None]:
        """Percent of the SMs by pod since the reading before."""
        use = self._reader.read(self.gpu, sensors=True)
        loads = [use.load_of((pod.uid, self.gpu.uuid)) for pod in self._pods]
        return [None if load is None else round(load.sm, 1) for load in loads]

    def _compare(self, isolation: str, started: Sequence[Program], kind: str, clients: int) -> None:
        seconds = self.context.seconds
        for one in started[:clients]:
            one.send("work", kind, 4 * seconds)
        # Loads count from the last one of these readings on.
        until = time.monotonic() + _COUNTED_SECONDS
        while sum(bool(percent) for percent in self._read()) < clients and time.monotonic() < until:
            time.sleep(seconds / 4)
        others = _pmon(self.context.smi, self.gpu.uuid, seconds)
        mine = self._read()
        errors = [answer["error"] for one in started[:clients] if (answer := one.answer())["error"]]
        theirs = [others.get(one.pid) for one in started]
        self._rows.append({"isolation": isolation, "programs": clients, "by pod": mine, "pmon": theirs})
        self._findings.value("percent of the SMs", self._rows)
        name = f"{isolation}: {clients} programs"
        if errors:
            self._findings.check(f"{name} compute", errors, [])
        elif not any(theirs) and isolation == protocol.ISOLATION_MPS:
            # The server is busy in the place of its clients: then no pod is called idle.
            self._findings.cannot(f"{name}: percent by pod", f"found nvidia-smi pmon with {others}, and none of the programs in it")
            self._findings.check(f"{name}: pods are unknown, not idle", mine, [None] * len(mine))
        else:
            busy = [place for place, percent in enumerate(mine) if percent]
            self._findings.check(f"{name}: pods that are busy", busy, list(range(clients)))
            wrong = [pair for pair in zip(mine, theirs, strict=True) if abs((pair[0] or 0) - (pair[1] or 0)) > _TOLERANCE]
            self._findings.check(f"{name}: pods of which nvidia-smi pmon says something else", wrong, [])
