# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A stand-in for a program that uses the GPU: it has its memory in the state file of the simulated NVML, and computes nothing.

PROOF_FAULT plants what a step must find: leaks (the driver lists half of its memory), quiet (its fault makes no XID error), breaks (its
fault takes the GPU), greedy (it gets more than its limit), unlimited (so does one with a limit for a GPU that it has not), fails (it
cannot compute), slow (four compute less together than one alone), uncounted (the driver counts nothing of what it computes).
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lab.nvml import gpus

STATE = Path(os.environ["GPUSHARE_LAB_NVML_STATE"])
FAULT = os.environ.get("PROOF_FAULT", "")
PIPES = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "")
# What a context takes beside what is allocated.
CONTEXT_MIB = 400
held = 0
control: socket.socket | None = None


def change(change: Callable[[gpus.State, int], gpus.State]) -> None:
    """change: gets the state and the index of the GPU."""
    handle = os.open(STATE.parent, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        state = _living(gpus.read_state(STATE))
        wanted = os.environ.get("CUDA_VISIBLE_DEVICES", "")
        index = next((place for place, gpu in enumerate(state.gpus) if gpu.uuid == wanted), 0)
        gpus.write_state(STATE, change(state, index))
    finally:
        os.close(handle)


def _living(state: gpus.State) -> gpus.State:
    """As the driver does with a process that was killed."""
    for index, gpu in enumerate(state.gpus):
        for one in gpu.processes:
            if not Path(f"/proc/{one.pid}").exists():
                state = gpus.with_process(state, index, one.pid, 0, one.name)
    return state


def connect() -> str:
    """To the control daemon, as libcuda does; the error, "" for none. It may hang."""
    global control
    if not PIPES or control is not None:
        return ""
    made = socket.socket(socket.AF_UNIX)
    try:
        made.connect(str(Path(PIPES, "control")))
        made.sendall(f"connect {os.getpid()}".encode())
        answer = made.recv(64)
    except OSError:
        return "CUDA_ERROR_MPS_CONNECTION_FAILED"
    if answer.strip() != b"ok":
        return "CUDA_ERROR_MPS_SERVER_NOT_READY"
    control = made
    return ""


def limit() -> int:
    """MiB that the daemon and this process's environment permit."""
    own = re.findall(r"(\d+)=(\d+)([MG])", os.environ.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", ""))
    if FAULT == "unlimited" and len(own) > 1:
        return 2**40
    limits = [int(size) * (1024 if unit == "G" else 1) for index, size, unit in own if index == "0"]
    default = Path(PIPES, "limit")
    return min([*limits, *([int(default.read_text()) or 2**40] if default.exists() else [])], default=2**40)


def take(mib: int) -> str:
    """The error, "" for none."""
    global held
    if error := connect():
        return error
    if PIPES and held + mib > limit() and FAULT != "greedy":
        return "CUDA_ERROR_OUT_OF_MEMORY"
    held += mib
    listed = held // 2 if FAULT == "leaks" else held
    change(lambda state, index: gpus.with_process(state, index, os.getpid(), listed + CONTEXT_MIB, "stand-in"))
    return ""


def allocate(step: str, most: str) -> dict[str, Any]:
    error = ""
    while held < int(most) and not error:
        error = take(min(1024, int(most)) if held + 1024 <= int(most) and not PIPES else int(step))
    return {"allocated_mib": held, "error": error}


def busy(sm: int) -> None:
    """Percent of the SMs, where it has memory: else NVML does not list it."""
    if held and FAULT != "uncounted":
        change(lambda state, index: gpus.with_load(state, index, os.getpid(), (sm, sm // 2, 0, 0)))


def work(kind: str, seconds: str) -> dict[str, Any]:
    if FAULT == "fails" and float(seconds):
        return {"units": 0, "seconds": 0.0, "error": "CUDA_ERROR_LAUNCH_FAILED"}
    own = STATE.with_name(f"working.{os.getpid()}")
    own.touch()
    # NVML has it as busy from then on: on a busy machine the work would be over before somebody looks.
    busy(30)
    # All have begun by then.
    time.sleep(float(seconds) / 2)
    slower = len(list(STATE.parent.glob("working.*"))) ** 2 if FAULT == "slow" else 1
    time.sleep(float(seconds) / 2)
    own.unlink()
    return {"units": int(1000 * float(seconds) / slower), "seconds": max(float(seconds), 0.001)}


def spin() -> dict[str, Any]:
    error = connect()
    if PIPES and not error:
        with Path(PIPES).parent.joinpath("busy").open("a") as file:
            file.write(f"{os.getpid()}\n")
    return {"error": error}


def fault() -> dict[str, Any]:
    if FAULT != "quiet":
        change(lambda state, index: gpus.with_xid(state, index, 79 if FAULT == "breaks" else 31))
    if FAULT == "breaks":
        change(lambda state, index: gpus.with_gpu(state, index, health="lost"))
    return {"error": "CUDA_ERROR_ILLEGAL_ADDRESS"}


def main() -> int:
    verbs: dict[str, Callable[..., dict[str, Any]]] = {
        "hold": lambda mib: {"error": (error := take(int(mib))), "allocated_mib": 0 if error else int(mib)},
        "allocate": allocate,
        "managed": lambda mib: {"allocated_mib": int(mib)},
        "user": lambda uid: {},
        "kinds": lambda: {"kinds": ["chain"], "framework": "a stand-in"},
        "work": work,
        "spin": spin,
        "fault": fault,
    }
    for line in sys.stdin:
        name, *arguments = line.split()
        print(json.dumps({"error": "", **verbs[name](*arguments)}), flush=True)
    if held:
        change(lambda state, index: gpus.with_process(state, index, os.getpid(), 0, "stand-in"))
    return 0


if __name__ == "__main__":
    sys.exit(main())
