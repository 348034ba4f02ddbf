# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Our NVML code against what our module reads of `nvidia-smi -q -x`; the real XML; each NVML function that we call."""

from __future__ import annotations

import ast
import functools
import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import pynvml
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts import nvidia_smi

import gpushare_runtime
from gpu_proof import hardware
from gpu_proof.context import Context
from gpu_proof.findings import Findings, write_atomically
from gpu_proof.scrub import Scrubber
from gpushare_runtime.device_plugin.gpu.discovery import NvmlError
from gpushare_runtime.device_plugin.gpu.nvml import Pynvml
from gpushare_runtime.mps.gpu import PynvmlGpus

_SMI_SECONDS: Final = 30
_RUNTIME: Final = Path(gpushare_runtime.__file__).parent
_SOURCES: Final = ("device_plugin/gpu/nvml.py", "mps/gpu.py")
# They change the GPU: the steps about limits say what becomes of them.
SETTERS: Final = frozenset({"nvmlDeviceSetMemoryLimits_v1", "nvmlDeviceSetComputeMode"})
# The runtime asks them of a GPU in MIG mode alone, which the other steps cannot use.
OF_INSTANCES: Final = frozenset(
    {
        "nvmlDeviceGetComputeInstanceId",
        "nvmlDeviceGetDeviceHandleFromMigDeviceHandle",
        "nvmlDeviceGetGpuInstanceId",
        "nvmlDeviceGetMaxMigDeviceCount",
        "nvmlDeviceGetMigDeviceHandleByIndex",
    }
)
# It asks them of several GPUs, and of links that are there.
OF_LINKS: Final = frozenset(
    {"nvmlDeviceGetNvLinkRemoteDeviceType", "nvmlDeviceGetNvLinkRemotePciInfo", "nvmlDeviceGetTopologyCommonAncestor"}
)
_XID_SECONDS: Final = 0.2


def functions() -> list[str]:
    """Every function of NVML that the runtime's sources name."""
    trees = (ast.parse((_RUNTIME / source).read_text()) for source in _SOURCES)
    named = {node.attr for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return sorted(name for name in named if name.startswith("nvml") and callable(getattr(pynvml, name, None)))


class Calls:
    """Records each call of those functions: how often, the last answer, and the longest time in ms."""

    def __init__(self) -> None:
        self.made: dict[str, dict[str, Any]] = {}

    def listen(self) -> None:
        for name in functions():
            setattr(pynvml, name, self._heard(name, getattr(pynvml, name)))

    def _heard(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def call(*arguments: Any) -> Any:
            began = time.perf_counter()
            try:
                answer = function(*arguments)
            except pynvml.NVMLError as error:
                self._note(name, str(error), began)
                raise
            self._note(name, _shown(answer), began)
            return answer

        return call

    def _note(self, name: str, answer: str, began: float) -> None:
        ms = (time.perf_counter() - began) * 1000
        one = self.made.setdefault(name, {"calls": 0, "answer": "", "ms": 0.0})
        one.update(calls=one["calls"] + 1, answer=answer[:200], ms=round(max(one["ms"], ms), 3))


def _shown(answer: Any) -> str:
    if isinstance(answer, list):
        return f"[{', '.join(map(_shown, answer[:8]))}]"
    fields = getattr(answer, "_fields_", None)
    if fields:
        return f"{{{', '.join(f'{name}: {getattr(answer, name, None)}' for name, *_ in fields)}}}"
    return repr(answer)


def run(context: Context, findings: Findings) -> None:
    calls = Calls()
    calls.listen()
    nvml = hardware.opened()
    count = nvml.count()
    findings.value("GPUs", count)
    findings.value("driver", _text(pynvml.nvmlSystemGetDriverVersion()))
    try:
        _compare(context, findings, nvml, count)
        _call_all(findings, nvml, count)
    finally:
        nvml.stop()
        findings.value("functions", calls.made)
    silent = sorted(set(functions()) - set(calls.made) - SETTERS - OF_INSTANCES - OF_LINKS)
    findings.check("every function of NVML that the runtime names was called", silent, [])


def _compare(context: Context, findings: Findings, nvml: Pynvml, count: int) -> None:
    if not context.smi:
        findings.cannot("facts as nvidia-smi reports them", "found no nvidia-smi; expected it in PATH or beside the driver's library")
        return
    done = subprocess.run([context.smi, *nvidia_smi.ARGUMENTS], capture_output=True, text=True, timeout=_SMI_SECONDS, check=False)
    write_atomically(context.out / "nvidia-smi.xml", Scrubber().text(done.stdout))
    try:
        report = nvidia_smi.parse(done.stdout)
    except nvidia_smi.SmiOutputError as error:
        findings.check("nvidia-smi -q -x can be read", str(error), "XML of nvidia-smi", good=False)
        return
    findings.value("model", report.gpus[0].model if report.gpus else "")
    findings.check("GPUs that nvidia-smi lists", len(report.gpus), count)
    findings.check("problem that our module sees in nvidia-smi", str(report.problem) if report.problem else "", "")
    for index, gpu in enumerate(report.gpus[:count]):
        try:
            ours = nvml.facts(index)
        except NvmlError as error:
            findings.check(f"GPU {index} answers", str(error), "its facts", good=False)
            continue
        for name, found, expected in (
            ("uuid", ours.uuid, gpu.uuid),
            ("minor number", ours.minor, gpu.minor),
            ("PCI address", ours.pci, gpu.pci),
            ("model", ours.model, gpu.model),
            ("memory in MiB", ours.mib, gpu.memory_mib),
        ):
            findings.check(f"GPU {index}: {name}", found, expected)
        prohibited = gpu.mig_mode == "enabled" or gpu.compute_mode == "Prohibited" or bool(gpu.repair.failed)
        findings.check(f"GPU {index}: pods may use it", not ours.failed, not prohibited)
        findings.value(f"GPU {index}", {"compute mode": gpu.compute_mode, "MIG": gpu.mig_mode, "NUMA node": ours.numa, "unfit": ours.unfit})
        listed = {one.pid for one in gpu.processes}
        findings.check(f"GPU {index}: processes", sorted({pid for pid, _ in nvml.processes(ours.uuid)} - listed), [])


def _call_all(findings: Findings, nvml: Pynvml, count: int) -> None:
    """What the comparison has not called."""
    gpus = PynvmlGpus()
    for index in range(count):
        uuid = nvml.facts(index).uuid
        for name, call in (
            ("processes", lambda uuid=uuid: nvml.processes(uuid)),
            ("memory in use", lambda uuid=uuid: nvml.memory_used(uuid)),
            ("facts for MPS", lambda uuid=uuid: gpus.read(uuid)),
            ("sensors", lambda uuid=uuid: nvml.sensors(uuid)),
        ):
            _answers(findings, f"GPU {index}: {name}", call)
        try:
            limit = nvml.memory_limit(uuid, "/sys/fs/cgroup")
            findings.value(f"GPU {index}: memory limit", json.dumps([limit.most, limit.used]))
        except NvmlError as error:
            findings.cannot(f"GPU {index}: memory limits by control group", error)
    _answers(findings, "links of all GPUs", lambda: nvml.links(tuple(range(count))).to_json())
    try:
        events = nvml.xid_events()
        try:
            findings.check("XID errors while nothing happens", events.wait(_XID_SECONDS), None)
        finally:
            events.close()
    except NvmlError as error:
        findings.check("XID errors can be watched", str(error), "a subscription", good=False)


def _answers(findings: Findings, name: str, call: Callable[[], object]) -> None:
    try:
        findings.check(name, call(), "an answer", good=True)
    except Exception as error:
        findings.check(name, f"{type(error).__name__}: {error}", "an answer", good=False)


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value
