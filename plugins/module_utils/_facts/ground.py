# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The ground of an installation: folders that can be written, a free port, an API server that is reached, a scheduler that runs, a clock.

Read-only.
"""

from __future__ import annotations

import posixpath
import re
import socket
import ssl
import time
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import Callable, Optional, Tuple
from urllib.parse import urlsplit

from .._cluster.names import EXTENDER
from .._host.container_runtimes import KINDS
from .._host.host import Host
from .._host.systemd import UNITS

MANIFESTS = "/etc/kubernetes/manifests"
#: Configurations of container runtimes and of NVIDIA's toolkit on GPU nodes, where there are any. A run may find them as it wants them.
OF_RUNTIMES = (*sorted(kind.settings for kind in KINDS.values()), "/etc/nvidia-container-runtime")
_SETTINGS, _STATE = "/etc/gpushare", "/var/lib/gpushare"
# A run of ours that has begun to change the scheduler, and neither verified nor restored.
_PENDING = f"{_STATE}/journal/scheduler.pending"
# Of a runtime, with all that it needs; of everything else.
_INODES, _FEW_INODES = 8000, 100
_KUBELET = "/etc/kubernetes/kubelet.conf"
_SERVER = re.compile(r"^\s*server:\s*['\"]?(https?://[^\s'\"]{1,300})", re.MULTILINE)
_MACHINE_ID = re.compile(r"[0-9a-f]{32}$")
_DATE = re.compile(rb"^Date: ([A-Za-z0-9 :,]{20,40})\r?$", re.MULTILINE)
_SECONDS = 5.0
_LISTENS = "0A"
#: Where kubelet and container runtimes write before a container starts: sockets and states, logs, images, volumes.
_OF_STARTS = ("/run", "/var/lib/kubelet", "/var/log/pods", "/var/lib/containerd", "/var/lib/docker", "/var/lib/containers/storage")
_LEAST_MIB = 4
# 127.0.0.1 and the addresses of all, as the kernel writes them; a socket of `::` takes IPv4, too.
_TAKES_LOOPBACK = ("0100007F", "00000000", "0" * 32)
_MOST = 4000
#: Makes a connection to (host, port, whether by TLS): why it cannot, "" if it can; and how far the clock here is ahead.
Connect = Callable[[str, int, bool], Tuple[str, Optional[float]]]


@dataclass(frozen=True)
class Ground:
    """read_only, full: folders that cannot be written, and without inodes. no_programs: where nothing can be executed.

    listening: ports that are taken on 127.0.0.1. extender: whether our extender is installed. server: the API server that kubelet
    uses, "" if unknown. unreached: why no connection to it was made. scheduler: whether a kube-scheduler runs, or a run of ours was
    killed while it changed it. machine_id: of systemd, "" if unknown. ahead: seconds by which this host's clock is ahead of the API
    server's, None if it has not said. without_room: folders in which no container can start, see below.
    """

    read_only: Tuple[str, ...]
    full: Tuple[str, ...]
    no_programs: Tuple[str, ...]
    listening: Tuple[int, ...]
    extender: bool
    server: str
    unreached: str
    scheduler: bool
    machine_id: str = ""
    ahead: Optional[float] = None
    without_room: Tuple[str, ...] = ()


def ground(host: Host, install_dir: str, connect: Optional[Connect] = None) -> Ground:
    folders = (install_dir, UNITS, _SETTINGS, _STATE, MANIFESTS, *filter(host.exists, OF_RUNTIMES))
    server = _SERVER.search(host.text(_KUBELET) or "")
    pending = host.exists(_PENDING)
    unreached, ahead = _ask(server.group(1), connect or _connect) if server else ("", None)
    machine_id = host.line("/etc/machine-id") or ""
    return Ground(
        read_only=tuple(path for path in folders if host.is_read_only(path)),
        full=tuple(path for path in folders if host.inodes(path) < (_INODES if path == install_dir else _FEW_INODES)),
        no_programs=(install_dir,) if host.no_programs(install_dir) else (),
        listening=_listening(host),
        extender=host.exists(f"{UNITS}/{EXTENDER}.service"),
        server=server.group(1) if server else "",
        unreached=unreached,
        scheduler=pending
        or any(
            "kube-scheduler" in (posixpath.basename(process.program), posixpath.basename(process.argv[0])) for process in host.processes
        ),
        machine_id=machine_id if _MACHINE_ID.match(machine_id) else "",
        ahead=ahead,
        without_room=without_room(host),
    )


def without_room(host: Host) -> Tuple[str, ...]:
    """The folders in which the start of a container needs a file, and none can be made: each with what is missing."""
    found = []
    for path in filter(host.is_folder, _OF_STARTS):
        free = host.free_mib(path)
        if host.is_read_only(path):
            found.append(f"{path} (mounted read-only)")
        elif free is not None and free < _LEAST_MIB:
            found.append(f"{path} ({free} MiB free)")
        elif host.inodes(path) < _FEW_INODES:
            found.append(f"{path} (too few free inodes)")
    return tuple(found)


def _listening(host: Host) -> Tuple[int, ...]:
    found = set()
    for family in ("tcp", "tcp6"):
        for line in (host.text(f"/proc/net/{family}") or "").splitlines()[1:]:
            words = line.split()
            address, _colon, port = words[1].partition(":") if len(words) > 3 else ("", "", "")
            if address in _TAKES_LOOPBACK and words[3] == _LISTENS:
                found.add(int(port, 16))
    return tuple(sorted(found)[:_MOST])


def _ask(server: str, connect: Connect) -> Tuple[str, Optional[float]]:
    try:
        parts = urlsplit(server)
        name, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError as error:
        return str(error), None
    return connect(name, port, parts.scheme == "https")


def _connect(name: str, port: int, tls: bool) -> Tuple[str, Optional[float]]:
    try:
        with socket.create_connection((name, port), timeout=_SECONDS) as connection:
            return "", _ahead(connection, name, tls)
    except (OSError, ValueError) as error:
        return str(error) or type(error).__name__, None


def _ahead(connection: socket.socket, name: str, tls: bool) -> Optional[float]:
    """By the date in an answer, whatever it says beside that: nothing is sent, and nothing else of it is believed."""
    try:
        if tls:
            context = ssl.create_default_context()
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
            connection = context.wrap_socket(connection)
        connection.sendall(f"GET /version HTTP/1.1\r\nHost: {name}\r\nConnection: close\r\n\r\n".encode("ascii"))
        # The head of an answer comes in one piece.
        date = _DATE.search(connection.recv(4096))
        # Whole seconds, cut off.
        return None if date is None else time.time() - 0.5 - parsedate_to_datetime(date.group(1).decode("ascii")).timestamp()
    except (OSError, ValueError, TypeError):
        return None
