#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A stand-in for nvidia-cuda-mps-control: its dialogue as the programs of drivers 535 and 580 were heard to lead it, on a
socket of its own.

-f: the daemon. Otherwise the commands of standard input, one a line. Faults, by MPS_STAND_IN: mute (never answers), dies (after its first
answer), forgets (does not keep the memory limit), rejects (does not start), stubborn (its servers do
not). The file `servers` beside the folder has the process numbers of its servers, which it keeps the limits of.
"""

import os
import re
import socket
import sys
import time
from pathlib import Path

FOLDER = Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
FAULT = (FOLDER.parent / "fault").read_text() if (FOLDER.parent / "fault").exists() else ""


def said(limit: int) -> str:
    whole = f"{limit // 1024}G" if limit >= 1024 else f"{limit}M"
    return whole if limit else ""


def daemon() -> int:
    if FAULT == "rejects":
        print("An instance of this daemon is already running", file=sys.stderr)
        return 1
    (FOLDER / "environment").write_text("\n".join(sorted(f"{key}={value}" for key, value in os.environ.items())))
    limit, own = 0, {}
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(FOLDER / "control"))
        listener.listen()
        while True:
            connection, _ = listener.accept()
            with connection:
                words = connection.recv(4096).decode().split()
                answer = f'Unknown command "{" ".join(words)}"'
                if FAULT == "mute":
                    time.sleep(60)
                listed = FOLDER.parent / "servers"
                servers = listed.read_text().split() if listed.exists() else []
                if words == ["get_server_list"]:
                    answer = "\n".join(map(str, servers))
                elif words[:2] == ["set_default_device_pinned_mem_limit", "0"] and (found := re.fullmatch(r"(\d+)M", words[2])):
                    limit, answer = 0 if FAULT == "forgets" else int(found[1]), ""
                    (FOLDER / "limit").write_text(str(limit))
                elif words[0] == "shutdown_server" and words[1] in servers:
                    listed.write_text(" ".join(one for one in servers if one != words[1]))
                    answer = ""
                elif words[0].endswith("et_device_pinned_mem_limit") and words[1] not in servers:
                    answer = f"Server {words[1]} not found"
                elif words[0] == "set_device_pinned_mem_limit" and words[2] == "0" and (found := re.fullmatch(r"(\d+)M", words[3])):
                    own[words[1]], answer = 0 if FAULT == "stubborn" else int(found[1]), ""
                elif words[0] == "get_device_pinned_mem_limit":
                    answer = said(own.get(words[1], limit))
                elif words == ["get_default_device_pinned_mem_limit", "0"]:
                    answer = said(limit)
                elif words == ["quit"]:
                    return 0
                connection.sendall(answer.encode() + b"\n" if answer else b"\0")
                # Once it has its limit.
                if FAULT == "dies" and limit and words == ["get_server_list"]:
                    print("[2026-11-26 17:26:19.692 Control   532] Shutting down")
                    print("[2026-11-26 17:26:19.693 Control   532] UI closed", flush=True)
                    return 3


def ask() -> int:
    for line in sys.stdin:
        with socket.socket(socket.AF_UNIX) as connection:
            try:
                connection.connect(str(FOLDER / "control"))
            except OSError:
                print("Cannot find MPS control daemon process")
                return 1
            connection.sendall(line.encode())
            print(connection.recv(4096).decode().strip("\0"), end="")
    return 0


if __name__ == "__main__":
    sys.exit(daemon() if sys.argv[1:] == ["-f"] else ask())
