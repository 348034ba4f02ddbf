# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Calls pynvml for a test, in a process of its own: one JSON request a line, one JSON answer a line.

Request: `[RESULT_NAME, FUNCTION, ARGUMENT, …]`. A handle that a call returns is kept as `$RESULT_NAME` and can be an
argument of later calls. Answer: `{"value": …}` or `{"error": NVML_CODE}`.
"""

import ctypes
import json
import sys
from typing import Any

import pynvml

handles: dict[str, Any] = {}


def plain(value: Any) -> Any:
    """What JSON can carry: structures as dictionaries, known handles as their names."""
    if isinstance(value, ctypes._Pointer):
        same = [name for name, handle in handles.items() if address(handle) == address(value)]
        return same[0] if same else "?"
    if isinstance(value, ctypes.Structure | ctypes.Union):
        return {field[0]: plain(getattr(value, field[0])) for field in value._fields_}
    if isinstance(value, pynvml.nvmlFriendlyObject):
        return vars(value)
    if isinstance(value, list | tuple | ctypes.Array):
        return [plain(each) for each in value]
    return value


def address(handle: Any) -> int:
    """Where a handle points."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


for line in sys.stdin:
    name, function, *arguments = json.loads(line)
    try:
        value = getattr(pynvml, function)(*(handles.get(a, a) if isinstance(a, str) else a for a in arguments))
        if isinstance(value, ctypes._Pointer):
            handles[f"${name}"] = value
        answer: dict[str, Any] = {"value": plain(value)}
    except pynvml.NVMLError as error:
        answer = {"error": error.value}
    print(json.dumps(answer), flush=True)
