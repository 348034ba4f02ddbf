# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The two real programs, on a stand-in for the driver's library and on one for PyTorch: they speak the language of workload.py.

That a GPU does what they ask is not shown here.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_proof.context import DRIVER_CLIENT, REPOSITORY, torch_client
from gpu_proof.workload import Program, programs

OOM, WILD = "CUDA_ERROR_OUT_OF_MEMORY", "CUDA_ERROR_ILLEGAL_ADDRESS"
# 1 GiB of memory; text for Pascal is too old for it; a module with the kernel `wild` writes to a wrong address.
LIBCUDA = """
#include <string.h>
#include <stddef.h>
static size_t used; static int wild, broken;
int cuInit(unsigned flags) { return flags; }
int cuDeviceGet(int *device, int number) { *device = number; return 0; }
int cuDevicePrimaryCtxRetain(void **context, int device) { *context = (void *)1L; return device; }
int cuCtxSetCurrent(void *context) { return !context; }
int cuMemAlloc_v2(unsigned long long *address, size_t size) {
    if (used + size > 1UL << 30) return 2;
    *address = 4096 + used; used += size; return 0; }
int cuMemGetInfo_v2(size_t *free, size_t *total) { *total = 1UL << 30; *free = *total - used; return 0; }
int cuModuleLoadData(void **module, const char *text) {
    if (strstr(text, "sm_60")) return 222;
    *module = (void *)(strstr(text, "sm_75") && strstr(text, "version 7.0") ? 2L : 0L); return 0; }
int cuModuleGetFunction(void **function, void *module, const char *name) {
    *function = module; wild = !strcmp(name, "wild"); return module ? 0 : 500; }
int cuLaunchKernel(void *function) { broken |= wild; return !function; }
int cuCtxSynchronize(void) { return broken ? 700 : 0; }
int cuGetErrorName(int error, const char **name) {
    *name = error == 2 ? "CUDA_ERROR_OUT_OF_MEMORY" : error == 700 ? "CUDA_ERROR_ILLEGAL_ADDRESS" : "CUDA_ERROR_OTHER"; return 0; }
"""
TORCH = """
import contextlib
__version__ = "2.9"
uint8, float16 = "uint8", "float16"
class Tensor:
    def __matmul__(self, other): return self
class Model:
    def __init__(self, *a, **k): pass
    def to(self, *a): return self
    def eval(self): return self
    def __call__(self, batch): return batch
class cuda:
    held = 0
    class OutOfMemoryError(RuntimeError): pass
    @staticmethod
    def init(): pass
    @staticmethod
    def synchronize(): pass
    @classmethod
    def memory_reserved(cls): return cls.held
class nn:
    TransformerEncoderLayer = TransformerEncoder = Model
def empty(size, dtype, device):
    if cuda.held + size > 1 << 30: raise cuda.OutOfMemoryError("CUDA out of memory")
    cuda.held += size
    return Tensor()
def randn(*shape, device, dtype): return Tensor()
def inference_mode(): return contextlib.nullcontext()
"""


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Program]:
    (tmp_path / "cuda.c").write_text(LIBCUDA)
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(tmp_path / "libcuda.so.1"), str(tmp_path / "cuda.c")], check=True, timeout=60)
    modules = os.pathsep.join(str(REPOSITORY / name) for name in ("files/gpushare_runtime", "tests", "tools", "tools/lab"))
    with programs(DRIVER_CLIENT, 1, {"LD_LIBRARY_PATH": str(tmp_path), "PYTHONPATH": modules}) as (one,):
        yield one


@pytest.fixture
def torch(tmp_path: Path) -> Iterator[Program]:
    # In the program's own folder, because it runs without the proof's modules.
    *command, script = torch_client(sys.executable)
    (tmp_path / "torch.py").write_text(TORCH)
    (tmp_path / "client.py").write_text(Path(script).read_text())
    with programs([*command, str(tmp_path / "client.py")], 1, {"PYTHONPATH": "/nowhere"}) as (one,):
        yield one


@pytest.mark.parametrize("name", ["driver", "torch"])
def test_it_holds_allocates_and_computes(name: str, request: pytest.FixtureRequest) -> None:
    one: Program = request.getfixturevalue(name)
    assert one.ask("hold", 256) == {"error": "", "allocated_mib": 256}
    for kind in one.ask("kinds")["kinds"]:
        done = one.ask("work", kind, 0.05)
        assert done["error"] == ""
        assert done["units"] > 0
        assert 0.05 <= done["seconds"] < 30
    assert one.ask("allocate", 64, 512) == {"error": "", "allocated_mib": 512}
    over = one.ask("allocate", 64, 1024)
    assert over["error"] == OOM
    assert 128 <= over["allocated_mib"] <= 256
    assert one.ask("hold", 1024)["error"] == OOM
    assert one.lives


def test_it_says_what_the_driver_reports_of_the_memory(driver: Program) -> None:
    driver.ask("hold", 256)
    assert driver.ask("memory") == {"error": "", "free_mib": 768, "total_mib": 1024}


def test_a_fault_is_reported_and_its_context_is_lost(driver: Program) -> None:
    assert driver.ask("fault")["error"] == WILD
    assert driver.ask("work", "chain", 0.05)["error"] == WILD


def test_a_program_that_dies_says_why() -> None:
    with programs([sys.executable, "-c", "raise SystemExit('no such GPU')"], 1, {}) as (one,):
        assert one.ask("hold", 1)["error"] == "it ended with 1: no such GPU"
        assert one.ask("hold", 1, seconds=5)["error"] == "it ended with 1: no such GPU"
        assert not one.lives


def test_a_program_that_does_not_answer_is_not_waited_for() -> None:
    with programs(["sleep", "600"], 1, {}) as (one,):
        assert one.ask("hold", 1, seconds=0.2)["error"] == "no answer within 0.2 s"
        one.kill()
