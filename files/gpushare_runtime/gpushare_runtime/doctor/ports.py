# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The listeners at the addresses of a daemon. Any user of the host may take a free address: he gets no token."""

from __future__ import annotations

import os
import sys
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final

from gpushare_runtime.doctor.findings import SITE, Findings
from gpushare_runtime.doctor.host import DaemonUnit, HostReader

# The option with an address, and how the socket unit is called that holds it.
_SOCKETS: Final = {"listen": ".socket", "metrics-listen": "-metrics.socket"}
_LISTENS: Final = "0A"
_SYSTEMD: Final = 1
_Ip = IPv4Address | IPv6Address


def judge_ports(found: Findings, host: HostReader, unit: DaemonUnit, runs: bool) -> None:
    """Whether the daemon's addresses are its own, and stay so while it restarts. runs: whether it does."""
    for option, end in _SOCKETS.items():
        address, socket = unit.option(option), unit.name + end
        if not address:
            continue
        cure = f"systemctl stop {socket} {unit.name}; systemctl start {socket} {unit.name}"
        users = [user for user, descriptor in _listeners(host, address) if descriptor not in _descriptors(host, unit)]
        if users:
            seen = f"a process of user {users[0]} listening on {address}"
            what = f"end it (ss -ltnp 'sport = :{address.rpartition(':')[2]}' names it), then: {cure}"
            found.error("port_taken", seen, f"{unit.name}, or systemd for it", what)
        elif runs and (state := host.active(socket)) != "active":
            expected = "it active: it keeps the address while the daemon restarts"
            found.warn("socket_stopped", f"{socket} {state}, which holds {address}", expected, f"{SITE}, or: {cure}")


def is_its_own(host: HostReader, unit: DaemonUnit, address: str) -> bool:
    """Whether this daemon, or systemd for it, and no other process listens there. Ask it right before a token is sent."""
    listening = {descriptor for _, descriptor in _listeners(host, address)}
    return bool(listening) and listening <= _descriptors(host, unit)


def _listeners(host: HostReader, address: str) -> list[tuple[int, str]]:
    """(user, descriptor) of each socket to which a connection to this address may go."""
    name, _, port = address.rpartition(":")
    try:
        wanted, number = ip_address(name.strip("[]")), int(port)
    except ValueError:
        return []
    # A connection goes to a socket of just this address, else to one of all addresses, else, over IPv4, to one of all of both kinds.
    found: tuple[list[tuple[int, str]], ...] = ([], [], [])
    for family in ("tcp", "tcp6"):
        # The listening ones come first.
        for line in (host.read(f"/proc/net/{family}") or b"").decode("ascii", "replace").splitlines()[1:]:
            words = line.split()
            with suppress(ValueError, IndexError):
                bound, bound_port = _parsed(words[1])
                if words[3] != _LISTENS or bound_port != number:
                    continue
                same = bound.version == wanted.version
                nearness = 0 if bound == wanted or (same and wanted.is_unspecified) else 1 if same else 2
                if nearness == 0 or (bound.is_unspecified and (same or wanted.version == 4)):
                    found[nearness].append((int(words[7]), f"socket:[{int(words[9])}]"))
    return next(filter(None, found), [])


def _parsed(text: str) -> tuple[_Ip, int]:
    """From "0100007F:24E0", words of 32 bits in this machine's order."""
    host, _, port = text.partition(":")
    packed = b"".join(int(host[at : at + 8], 16).to_bytes(4, sys.byteorder) for at in range(0, len(host), 8))
    found = ip_address(packed)
    return (found.ipv4_mapped or found if isinstance(found, IPv6Address) else found), int(port, 16)


def _descriptors(host: HostReader, unit: DaemonUnit) -> set[str]:
    """The sockets that the daemon's process and systemd have open."""
    found = set()
    for pid in {unit.pid, _SYSTEMD} - {0}:
        folder = host.at(f"/proc/{pid}/fd")
        with suppress(OSError):
            for name in os.listdir(folder):
                with suppress(OSError):
                    found.add(os.readlink(folder / name))
    return found
