# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The program of workload.py on the driver's own library: it needs neither a toolkit nor a framework."""

from __future__ import annotations

import ctypes
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, Final

from bench.cuda_client import BLOCKS, MIB, PTX, ROUNDS, THREADS, Cuda, CudaError

_ATTACH_GLOBAL: Final = 1
# The most that a kernel counts to; about 15 s.
_LONG_ROUNDS: Final = 2**32 - 1
_BEGUN_SECONDS: Final = 0.5
_NOT_READY: Final = "CUDA_ERROR_NOT_READY"
# It writes where nothing is mapped.
_WILD: Final = b"""
.version 6.0
.target sm_60
.address_size 64
.visible .entry wild()
{
    .reg .b32 %r<2>;
    .reg .b64 %rd<2>;
    mov.u64 %rd1, 281474976645120;
    mov.u32 %r1, 7;
    st.global.u32 [%rd1], %r1;
    ret;
}
\0"""


class Client:
    """The GPU is opened by the first command that needs it."""

    def __init__(self) -> None:
        self._cuda: Cuda | None = None
        self._once: Callable[[], None] | None = None
        self._kept: object = None

    @property
    def cuda(self) -> Cuda:
        if self._cuda is None:
            self._cuda = Cuda()
        return self._cuda

    def hold(self, mib: str) -> dict[str, Any]:
        self.cuda.allocate(int(mib) * MIB)
        return {"allocated_mib": int(mib)}

    def allocate(self, step: str, most: str) -> dict[str, Any]:
        allocated = 0
        try:
            while allocated < int(most):
                self.cuda.allocate(int(step) * MIB)
                allocated += int(step)
        except CudaError as error:
            return {"allocated_mib": allocated, "error": str(error)}
        return {"allocated_mib": allocated}

    def managed(self, mib: str) -> dict[str, Any]:
        """So much managed memory, written by the GPU."""
        address, size = ctypes.c_uint64(), ctypes.c_size_t(int(mib) * MIB)
        self.cuda.call("cuMemAllocManaged", ctypes.byref(address), size, _ATTACH_GLOBAL)
        self.cuda.call("cuMemsetD8_v2", address, ctypes.c_ubyte(1), size)
        self.cuda.call("cuCtxSynchronize")
        return {"allocated_mib": int(mib)}

    def memory(self) -> dict[str, Any]:
        """What frameworks take for the GPU's memory."""
        free, total = ctypes.c_size_t(), ctypes.c_size_t()
        self.cuda.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return {"free_mib": free.value // MIB, "total_mib": total.value // MIB}

    def user(self, uid: str) -> dict[str, Any]:
        """Go on as this user, before the GPU is opened."""
        os.setgroups([])
        os.setgid(int(uid))
        os.setuid(int(uid))
        return {}

    def kinds(self) -> dict[str, Any]:
        return {"kinds": ["chain"], "framework": "the driver's library"}

    def work(self, _: str, seconds: str) -> dict[str, Any]:
        if self._once is None:
            function = self._function(PTX, b"chain")
            out, rounds = self.cuda.allocate(BLOCKS * THREADS * 4), ctypes.c_uint32(ROUNDS)
            values = (ctypes.c_void_p * 2)(ctypes.addressof(out), ctypes.addressof(rounds))
            kept = out, rounds, values

            def once() -> None:
                self.cuda.call("cuLaunchKernel", function, BLOCKS, 1, 1, THREADS, 1, 1, 0, None, kept[2], None)
                self.cuda.call("cuCtxSynchronize")

            once()
            self._once = once
        began, units = time.monotonic(), 0
        while (now := time.monotonic() - began) < float(seconds):
            self._once()
            units += 1
        return {"units": units, "seconds": now}

    def spin(self) -> dict[str, Any]:
        """One kernel that takes seconds has begun."""
        out, rounds = self.cuda.allocate(BLOCKS * THREADS * 4), ctypes.c_uint32(_LONG_ROUNDS)
        values = (ctypes.c_void_p * 2)(ctypes.addressof(out), ctypes.addressof(rounds))
        self.cuda.call("cuLaunchKernel", self._function(PTX, b"chain"), BLOCKS, 1, 1, THREADS, 1, 1, 0, None, values, None)
        self._kept = out, rounds, values
        time.sleep(_BEGUN_SECONDS)
        try:
            self.cuda.call("cuStreamQuery", None)
        except CudaError as error:
            return {} if str(error) == _NOT_READY else {"error": str(error)}
        return {"error": f"the kernel ended within {_BEGUN_SECONDS} s"}

    def fault(self) -> dict[str, Any]:
        self.cuda.call("cuLaunchKernel", self._function(_WILD, b"wild"), 1, 1, 1, 1, 1, 1, 0, None, None, None)
        self.cuda.call("cuCtxSynchronize")
        return {}

    def _function(self, text: bytes, name: bytes) -> ctypes.c_void_p:
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        try:
            self.cuda.call("cuModuleLoadData", ctypes.byref(module), text)
        except CudaError:
            # A driver that no longer compiles for Pascal.
            self.cuda.call(
                "cuModuleLoadData", ctypes.byref(module), text.replace(b"sm_60", b"sm_75").replace(b"version 6.0", b"version 7.0")
            )
        self.cuda.call("cuModuleGetFunction", ctypes.byref(function), module, name)
        return function


def serve(commands: dict[str, Callable[..., dict[str, Any]]], errors: Sequence[type[Exception]]) -> int:
    """Answer what stands on standard input."""
    for line in sys.stdin:
        name, *arguments = line.split()
        try:
            answer = commands[name](*arguments)
        except tuple(errors) as error:
            answer = {"allocated_mib": 0, "units": 0, "seconds": 0.0, "kinds": [], "error": str(error)}
        print(json.dumps({"error": "", **answer}), flush=True)
    return 0


if __name__ == "__main__":
    client = Client()
    verbs = {name: getattr(client, name) for name in ("hold", "allocate", "managed", "memory", "user", "kinds", "work", "spin", "fault")}
    sys.exit(serve(verbs, [CudaError, OSError]))
