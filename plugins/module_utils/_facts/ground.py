# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What an installation stands on: folders that can be written, a free port, an API server that is reached, a scheduler that runs.

Private to this collection. Read-only.
"""

from __future__ import annotations

import posixpath
import re
import socket
from dataclasses import dataclass
from typing import Callable, Optional, Tuple
from urllib.parse import urlsplit

from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.names import EXTENDER
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.host import Host
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.systemd import UNITS

MANIFESTS = "/etc/kubernetes/manifests"
_SETTINGS, _STATE = "/etc/gpushare", "/var/lib/gpushare"
# A run of ours that has begun to change the scheduler, and neither proven nor put back.
_PENDING = f"{_STATE}/journal/scheduler.pending"
# Of a runtime, with all that it needs; of everything else.
_INODES, _FEW_INODES = 8000, 100
_KUBELET = "/etc/kubernetes/kubelet.conf"
_SERVER = re.compile(r"^\s*server:\s*['\"]?(https?://[^\s'\"]{1,300})", re.MULTILINE)
_SECONDS = 5.0
_LISTENS = "0A"
# 127.0.0.1 and the addresses of all, as the kernel writes them; a socket of `::` takes IPv4, too.
_TAKES_LOOPBACK = ("0100007F", "00000000", "0" * 32)
_MOST = 4000


@dataclass(frozen=True)
class Ground:
    """read_only, full: folders that cannot be written, and without inodes; no_programs: where nothing can be executed.

    listening: ports that are taken on 127.0.0.1; extender: whether our extender is installed; server: the API server that kubelet
    uses, "" if unknown; unreached: why no connection to it was made; scheduler: whether a kube-scheduler runs, or a run of ours was
    killed while it changed it.
    """

    read_only: Tuple[str, ...]
    full: Tuple[str, ...]
    no_programs: Tuple[str, ...]
    listening: Tuple[int, ...]
    extender: bool
    server: str
    unreached: str
    scheduler: bool


def ground(host: Host, install_dir: str, connect: "Optional[Callable[[str, int], str]]" = None) -> Ground:
    """Look at the host. connect: makes a connection; why it cannot, "" if it can."""
    folders = (install_dir, UNITS, _SETTINGS, _STATE, MANIFESTS)
    server = _SERVER.search(host.text(_KUBELET) or "")
    pending = host.exists(_PENDING)
    return Ground(
        read_only=tuple(path for path in folders if host.is_read_only(path)),
        full=tuple(path for path in folders if host.inodes(path) < (_INODES if path == install_dir else _FEW_INODES)),
        no_programs=(install_dir,) if host.no_programs(install_dir) else (),
        listening=_listening(host),
        extender=host.exists(f"{UNITS}/{EXTENDER}.service"),
        server=server.group(1) if server else "",
        unreached=_unreached(server.group(1), connect or _connect) if server else "",
        scheduler=pending
        or any(
            "kube-scheduler" in (posixpath.basename(process.program), posixpath.basename(process.argv[0])) for process in host.processes
        ),
    )


def _listening(host: Host) -> Tuple[int, ...]:
    found = set()
    for family in ("tcp", "tcp6"):
        for line in (host.text(f"/proc/net/{family}") or "").splitlines()[1:]:
            words = line.split()
            address, _colon, port = words[1].partition(":") if len(words) > 3 else ("", "", "")
            if address in _TAKES_LOOPBACK and words[3] == _LISTENS:
                found.add(int(port, 16))
    return tuple(sorted(found)[:_MOST])


def _unreached(server: str, connect: Callable[[str, int], str]) -> str:
    try:
        parts = urlsplit(server)
        name, port = parts.hostname or "", parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError as error:
        return str(error)
    return connect(name, port)


def _connect(name: str, port: int) -> str:
    try:
        with socket.create_connection((name, port), timeout=_SECONDS):
            return ""
    except (OSError, ValueError) as error:
        return str(error) or type(error).__name__
