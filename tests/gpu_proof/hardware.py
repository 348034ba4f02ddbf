# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The GPU that the steps use: the first one that pods may have."""

from __future__ import annotations

import shlex
from typing import Final

from gpu_proof.context import Context
from gpu_proof.findings import NotPossible
from gpushare_runtime.device_plugin.gpu.discovery import GpuFacts, NvmlError
from gpushare_runtime.device_plugin.gpu.nvml import Pynvml
from gpushare_runtime.mps.gpu import GpuError, PynvmlGpus

VISIBLE: Final = "CUDA_VISIBLE_DEVICES"
_DEFAULT_MODE: Final = 0


def opened() -> Pynvml:
    """NVML of this machine. NotPossible without a driver or a GPU."""
    nvml = Pynvml()
    try:
        nvml.start()
        count = nvml.count()
    except NvmlError as error:
        raise NotPossible(f"found no usable NVML ({error}); expected a GPU with its driver") from None
    if not count:
        raise NotPossible("found no GPU; expected one: see nvidia-smi")
    return nvml


def first(nvml: Pynvml, least_mib: int = 0) -> GpuFacts:
    """NotPossible if no GPU may be used by several programs, as with MIG, or none has so much memory free."""
    why, gpus = "found no GPU; expected one", PynvmlGpus()
    for index in range(nvml.count()):
        facts = nvml.facts(index)
        free = facts.mib - nvml.memory_used(facts.uuid) // 2**20
        if facts.failed:
            why = f"found that GPU {index} is not usable: {facts.failed}"
        elif facts.instances is not None:
            why = f"found that MIG mode is on for GPU {index}; expected a GPU that programs can share"
        elif free < least_mib:
            why = f"found {free} MiB free on GPU {index}; expected {least_mib} MiB"
        elif (mode := _mode(gpus, facts.uuid)) != _DEFAULT_MODE:
            why = f"found compute mode {mode} on GPU {index}; expected {_DEFAULT_MODE} (Default), which the proof does not set"
        else:
            return facts
    raise NotPossible(why)


def _mode(gpus: PynvmlGpus, uuid: str) -> int:
    try:
        return gpus.read(uuid).mode
    except GpuError as error:
        raise NotPossible(str(error)) from None


def mps_program(context: Context) -> str:
    """The control daemon's program: it gets no environment but its own, and may need the folder of the driver's library."""
    if not context.mps:
        raise NotPossible("found no nvidia-cuda-mps-control; expected it in PATH or beside the driver's library")
    if context.loads:
        return context.mps
    made = context.folder / "nvidia-cuda-mps-control"
    made.write_text(f'#!/bin/sh\nLD_LIBRARY_PATH={shlex.quote(context.library)} exec {shlex.quote(context.mps)} "$@"\n')
    made.chmod(0o755)
    return str(made)
