# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A CUDA program for tools/bench/isolation.py, on the driver's own library: it needs neither a toolkit nor a framework.

    cuda_client.py allocate STEP_MIB MOST_MIB     allocates until it may not, and prints how much that was
    cuda_client.py work SECONDS                   prints "ready", waits for a line, computes, and prints how many kernels ended

It prints one JSON object, and in it the name of the driver's error, "" for none. Its environment decides which GPU it has, and whether
MPS limits it.
"""

from __future__ import annotations

import ctypes
import json
import sys
import time
from typing import Any, Final

MIB: Final = 1024 * 1024
# A small kernel: one client alone leaves most of a GPU idle, so that sharing it gains something.
BLOCKS, THREADS, ROUNDS = 16, 128, 200_000
# Each thread computes a chain of dependent multiplications and additions.
PTX: Final = b"""
.version 6.0
.target sm_60
.address_size 64
.visible .entry chain(.param .u64 out, .param .u32 rounds)
{
    .reg .pred %p1;
    .reg .b32 %r<6>;
    .reg .f32 %f<3>;
    .reg .b64 %rd<4>;
    ld.param.u64 %rd1, [out];
    ld.param.u32 %r1, [rounds];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.u32 %r2, %r2, %r3, %r4;
    cvt.rn.f32.u32 %f1, %r2;
    mov.f32 %f2, 0f3F7FFFFF;
    mov.u32 %r5, 0;
AGAIN:
    fma.rn.f32 %f1, %f1, %f2, %f2;
    add.u32 %r5, %r5, 1;
    setp.lt.u32 %p1, %r5, %r1;
    @%p1 bra AGAIN;
    cvta.to.global.u64 %rd2, %rd1;
    mul.wide.u32 %rd3, %r2, 4;
    add.u64 %rd2, %rd2, %rd3;
    st.global.f32 [%rd2], %f1;
    ret;
}
\0"""


class CudaError(Exception):
    """The name of the driver's error."""


class Cuda:
    """The first GPU that this process sees, with a context. CudaError; OSError without the library."""

    def __init__(self) -> None:
        self._library = ctypes.CDLL("libcuda.so.1")
        self.call("cuInit", 0)
        device, context = ctypes.c_int(), ctypes.c_void_p()
        self.call("cuDeviceGet", ctypes.byref(device), 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), device)
        self.call("cuCtxSetCurrent", context)

    def call(self, name: str, *arguments: Any) -> None:
        status = getattr(self._library, name)(*arguments)
        if status:
            words = ctypes.c_char_p()
            self._library.cuGetErrorName(status, ctypes.byref(words))
            raise CudaError((words.value or b"error %d" % status).decode())

    def allocate(self, size: int) -> ctypes.c_uint64:
        """The address of so many bytes of the GPU."""
        address = ctypes.c_uint64()
        self.call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(size))
        return address


def allocate(step: int, most: int) -> dict[str, Any]:
    """MiB."""
    allocated = 0
    try:
        cuda = Cuda()
        while allocated < most:
            cuda.allocate(step * MIB)
            allocated += step
    except CudaError as error:
        return {"allocated_mib": allocated, "error": str(error)}
    return {"allocated_mib": allocated, "error": ""}


def work(seconds: float) -> dict[str, Any]:
    """Kernels that ended within that time."""
    try:
        cuda = Cuda()
        module, function = ctypes.c_void_p(), ctypes.c_void_p()
        cuda.call("cuModuleLoadData", ctypes.byref(module), PTX)
        cuda.call("cuModuleGetFunction", ctypes.byref(function), module, b"chain")
        out, rounds = cuda.allocate(BLOCKS * THREADS * 4), ctypes.c_uint32(ROUNDS)
        values = (ctypes.c_void_p * 2)(ctypes.addressof(out), ctypes.addressof(rounds))

        def once() -> None:
            cuda.call("cuLaunchKernel", function, BLOCKS, 1, 1, THREADS, 1, 1, 0, None, values, None)
            cuda.call("cuCtxSynchronize")

        once()
        print("ready", flush=True)
        sys.stdin.readline()
        began, kernels = time.monotonic(), 0
        while (now := time.monotonic() - began) < seconds:
            once()
            kernels += 1
    except CudaError as error:
        return {"kernels": 0, "seconds": 0.0, "error": str(error)}
    return {"kernels": kernels, "seconds": now, "error": ""}


def main() -> int:
    what, *numbers = sys.argv[1:]
    print(json.dumps(allocate(int(numbers[0]), int(numbers[1])) if what == "allocate" else work(float(numbers[0]))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
