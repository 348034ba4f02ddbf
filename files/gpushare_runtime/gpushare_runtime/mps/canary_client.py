# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The canary: a program that starts CUDA and ends. It runs by its path in a process of its own, which the driver may hang.

    canary_client.py connect    starts CUDA, and so connects to the MPS server of its environment
    canary_client.py compute    also makes a context, and has the GPU write some bytes

It prints each call of the driver's library before it makes it, and the number of the error after a call that fails.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence
from typing import Any, Final

LIBRARY: Final = "libcuda.so.1"
CONNECT: Final = "connect"
COMPUTE: Final = "compute"
_BYTES: Final = 4096


def main(arguments: Sequence[str]) -> int:
    """0 if all calls succeed, else 1."""
    cuda = ctypes.CDLL(LIBRARY)

    def call(name: str, *values: Any) -> None:
        print(name, flush=True)
        if code := int(getattr(cuda, name)(*values)):
            print(code, flush=True)
            sys.exit(1)

    call("cuInit", 0)
    if list(arguments) != [COMPUTE]:
        return 0
    device, context, address = ctypes.c_int(), ctypes.c_void_p(), ctypes.c_uint64()
    call("cuDeviceGet", ctypes.byref(device), 0)
    call("cuCtxCreate_v2", ctypes.byref(context), 0, device)
    call("cuMemAlloc_v2", ctypes.byref(address), ctypes.c_size_t(_BYTES))
    call("cuMemsetD8_v2", address, ctypes.c_ubyte(1), ctypes.c_size_t(_BYTES))
    call("cuCtxSynchronize")
    call("cuCtxDestroy_v2", context)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
