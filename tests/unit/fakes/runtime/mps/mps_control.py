#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A stand-in for nvidia-cuda-mps-control: its dialogue as the programs of drivers 535 and 580 were heard to lead it, on a
socket of its own; its dialogue about clients as NVIDIA's documentation of MPS and reports about 580 have it.

-f: the daemon. Otherwise the commands of standard input, one a line. Faults, by the file `fault` beside the folder: mute (never answers),
dies (after its first answer), forgets (does not keep the memory limit), rejects (does not start), stubborn (its servers do
not), clings (never answers terminate_client, nor anything after it), wedges (a client that is killed with work on the GPU leaves a server
that takes no others). Beside the folder are also: `servers`, process numbers of its servers, which it keeps the limits of; `clients`, a
server and a client a line; `busy`, those that have work on the GPU; `connected` and `terminated`, all that did and were; `wedged`, while
the servers take no clients.

A client says `connect PID`, as the simulated libcuda does. This process is its server.
"""

import contextlib
import os
import re
import socket
import sys
import time
from pathlib import Path

FOLDER = Path(os.environ["CUDA_MPS_PIPE_DIRECTORY"])
BESIDE = FOLDER.parent
FAULT = (BESIDE / "fault").read_text() if (BESIDE / "fault").exists() else ""
KEPT: list[socket.socket] = []


def lines(name: str) -> list[str]:
    return (BESIDE / name).read_text().splitlines() if (BESIDE / name).exists() else []


def clients() -> list[tuple[str, str]]:
    """(server, client) of those that live. One that died at work has its effect."""
    known = [(server, client) for server, client in map(str.split, lines("clients"))]
    alive = [(server, client) for server, client in known if Path("/proc", client).exists()]
    if FAULT == "wedges" and {client for _, client in known if not Path("/proc", client).exists()} & set(lines("busy")):
        (BESIDE / "wedged").touch()
    keep(alive)
    return alive


def keep(pairs: list[tuple[str, str]]) -> None:
    (BESIDE / "clients").write_text("".join(f"{server} {client}\n" for server, client in pairs))


def connect(client: str) -> str | None:
    """None: it is not answered."""
    now = clients()
    if (BESIDE / "wedged").exists():
        return None
    with (BESIDE / "connected").open("a") as file:
        file.write(f"{client}\n")
    servers = " ".join(lines("servers")).split() or [str(os.getpid())]
    (BESIDE / "servers").write_text(" ".join(servers))
    keep([*now, (servers[0], client)])
    return "ok"


def terminate(client: str, of: list[str]) -> str:
    if client not in of:
        return f"Invalid process {client}!"
    if FAULT == "clings":
        time.sleep(600)
    (BESIDE / "terminated").write_text("".join(f"{one}\n" for one in [*lines("terminated"), client]))
    (BESIDE / "busy").write_text("".join(f"{one}\n" for one in lines("busy") if one != client))
    keep([(server, one) for server, one in clients() if one != client])
    return "0"


def said(limit: int) -> str:
    whole = f"{limit // 1024}G" if limit >= 1024 else f"{limit}M"
    return whole if limit else ""


def daemon() -> int:
    if FAULT == "rejects":
        print("An instance of this daemon is already running", file=sys.stderr)
        return 1
    (FOLDER / "environment").write_text("\n".join(sorted(f"{key}={value}" for key, value in os.environ.items())))
    for name in ("servers", "clients", "busy", "wedged"):
        (BESIDE / name).unlink(missing_ok=True)
    limit, own = 0, {}
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(FOLDER / "control"))
        listener.listen()
        while True:
            connection, _ = listener.accept()
            with contextlib.ExitStack() as ends:
                ends.callback(connection.close)
                words = connection.recv(4096).decode().split()
                answer = f'Unknown command "{" ".join(words)}"'
                if FAULT == "mute":
                    time.sleep(60)
                listed = BESIDE / "servers"
                servers = listed.read_text().split() if listed.exists() else []
                if words == ["get_server_list"]:
                    answer = "\n".join(map(str, servers))
                elif words[:2] == ["set_default_device_pinned_mem_limit", "0"] and (found := re.fullmatch(r"(\d+)M", words[2])):
                    limit, answer = 0 if FAULT == "forgets" else int(found[1]), ""
                    (FOLDER / "limit").write_text(str(limit))
                elif words[0] == "shutdown_server" and words[1] in servers:
                    listed.write_text(" ".join(one for one in servers if one != words[1]))
                    answer = ""
                elif words[0] == "connect":
                    if (given := connect(words[1])) is None:
                        # It waits for as long as the daemon lives.
                        KEPT.append(connection)
                        ends.pop_all()
                        continue
                    answer = given
                elif words[0] in ("get_client_list", "terminate_client") and words[1] not in servers:
                    answer = f"Server {words[1]} not found"
                elif words[0] == "get_client_list":
                    answer = "\n".join(client for server, client in clients() if server == words[1])
                elif words[0] == "terminate_client":
                    answer = terminate(words[2], [client for server, client in clients() if server == words[1]])
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
