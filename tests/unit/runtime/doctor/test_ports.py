# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Who has a daemon's addresses, by this machine's own sockets and by tables of a pretended one; to whom a token is sent."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from gpushare_runtime.doctor import daemons, endpoints
from gpushare_runtime.doctor.endpoints import judge_dashboard, judge_metrics
from gpushare_runtime.doctor.findings import Findings
from gpushare_runtime.doctor.host import DASHBOARD, EXTENDER, DaemonUnit, HostReader
from gpushare_runtime.doctor.ports import is_its_own, judge_ports
from unit.fakes.runtime.doctor.fake_host import COMMANDS, ENVIRONMENT, FakeHost, said
from unit.fakes.runtime.doctor.server import Answer, serving

TOKEN = "0123456789abcdef"
OURS, STRANGER = 77, 78
"""Processes with and without the descriptors of this test's server."""


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    found = FakeHost(tmp_path)
    found.real_ports(OURS)
    found.file("/etc/gpushare/extender-metrics.token", TOKEN)
    found.file("/etc/gpushare/dashboard-viewer.token", TOKEN)
    return found


def judged(
    host: FakeHost, name: str, pid: int, options: str, judge: Callable[[Findings, HostReader, DaemonUnit], None]
) -> tuple[list[str], Findings]:
    """(the tokens that a server got, what was found). options: {} is its address."""
    tokens = []

    def answer(path: str, authorization: str) -> Answer:
        tokens.append(authorization)
        return (200 if authorization or path == "/healthz" else 401), b"{}"

    found = Findings()
    with serving(answer) as address:
        host.install(name, pid, command=f"{ENVIRONMENT}/bin/{name} {options.format(address)}")
        judge(found, host, host.unit(name))
    return [one for one in tokens if one], found


@pytest.mark.parametrize(
    ("name", "options", "judge"),
    [
        (EXTENDER, "--metrics-listen {} --metrics-token-file /run/gpushare-extender-copies/extender-metrics.token", judge_metrics),
        (DASHBOARD, "--listen {} --viewer-token-file /run/gpushare-dashboard-copies/dashboard-viewer.token", judge_dashboard),
    ],
)
def test_a_token_is_for_the_daemon_itself(
    host: FakeHost, name: str, options: str, judge: Callable[[Findings, HostReader, DaemonUnit], None]
) -> None:
    tokens, found = judged(host, name, OURS, options, judge)
    assert (tokens, said(found)) == ([f"Bearer {TOKEN}"], [])
    tokens, found = judged(host, name, STRANGER, options, judge)
    assert (tokens, said(found)) == ([], [])
    host.at("/proc/1").mkdir()
    host.at("/proc/1/fd").symlink_to(f"/proc/{os.getpid()}/fd")
    tokens, found = judged(host, name, STRANGER, options, judge)
    assert (tokens, said(found)) == ([f"Bearer {TOKEN}"], [])


def test_who_hangs_up_gets_no_token_either(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = []

    def get(*_where: str, token: str) -> None:
        tokens.append(token)
        raise ConnectionResetError

    monkeypatch.setattr(endpoints, "_get", get)
    token = "--metrics-token-file /run/gpushare-extender-copies/extender-metrics.token"
    host.install(EXTENDER, command=f"{ENVIRONMENT}/bin/{EXTENDER} --metrics-listen 127.0.0.1:9 {token}")
    judge_metrics(Findings(), host, host.unit(EXTENDER))
    assert tokens == [""]


def test_a_stranger_at_the_address_is_the_finding(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(daemons.identity, "judge_tokens", lambda *_arguments: None)

    def judge(found: Findings, host: HostReader, unit: DaemonUnit) -> None:
        daemons.look(found, host, unit, Path(ENVIRONMENT))

    _tokens, found = judged(host, DASHBOARD, STRANGER, "--listen {}", judge)
    (one,) = found.findings
    address = host.unit(DASHBOARD).option("listen")
    assert (one.check, one.found) == ("port_taken", f"a process of user {os.getuid()} listening on {address}")
    assert f"ss -ltnp 'sport = :{address.rpartition(':')[2]}'" in one.cure
    assert one.cure.endswith(
        "then: systemctl stop gpushare-dashboard.socket gpushare-dashboard; systemctl start gpushare-dashboard.socket gpushare-dashboard"
    )


@pytest.mark.parametrize(
    ("state", "runs", "expected"),
    [
        ("active", True, []),
        ("failed", False, []),
        ("inactive", True, [("warning socket_stopped", "gpushare-extender-metrics.socket inactive, which holds 127.0.0.1:9")]),
        ("failed", True, [("warning socket_stopped", "gpushare-extender-metrics.socket failed, which holds 127.0.0.1:9")]),
    ],
)
def test_an_address_that_nobody_keeps_while_the_daemon_restarts(
    host: FakeHost, state: str, runs: bool, expected: list[tuple[str, str]]
) -> None:
    host.install(EXTENDER, command=f"{COMMANDS[EXTENDER]} --metrics-listen 127.0.0.1:9")
    host.states["gpushare-extender-metrics.socket"]["ActiveState"] = state
    found = Findings()
    judge_ports(found, host, host.unit(EXTENDER), runs)
    assert said(found) == expected


# A pretended host: address, port and owner of each socket that listens. The daemon has those of user 7.

ANY, LOCAL, OTHER = "00000000", "0100007F", "0500000A"
ANY6, LOCAL6, MAPPED = "0" * 32, "0" * 24 + "01000000", "0000000000000000FFFF00000100007F"


def table(*rows: tuple[str, int], state: str = "0A") -> str:
    lines = [
        f"{number:4}: {address}:24E0 00000000:0000 {state} 00000000:00000000 00:00000000 00000000 {user:5} 0 {user} 1 0 100 0 0 10 0\n"
        for number, (address, user) in enumerate(rows)
    ]
    return "  sl  local_address rem_address st ...\n" + "".join(lines)


@pytest.mark.parametrize(
    ("address", "tcp", "tcp6", "own"),
    [
        ("127.0.0.1:9440", [(LOCAL, 7)], [], True),
        ("127.0.0.1:9440", [(LOCAL, 65534)], [], False),
        ("127.0.0.1:9440", [], [], False),
        ("127.0.0.1:9441", [(LOCAL, 7)], [], False),
        ("127.0.0.1:9440", [(LOCAL, 7), (LOCAL, 65534)], [], False),
        # The nearest gets the connection.
        ("127.0.0.1:9440", [(LOCAL, 7), (OTHER, 65534)], [(ANY6, 65534)], True),
        ("127.0.0.1:9440", [(ANY, 7), (LOCAL, 65534)], [], False),
        ("127.0.0.1:9440", [(ANY, 7)], [(MAPPED, 65534)], False),
        ("127.0.0.1:9440", [(ANY, 65534)], [], False),
        ("127.0.0.1:9440", [], [(ANY6, 65534)], False),
        ("127.0.0.1:9440", [], [(ANY6, 7)], True),
        ("127.0.0.1:9440", [(ANY, 7)], [(ANY6, 65534)], True),
        ("0.0.0.0:9440", [(ANY, 7)], [(ANY6, 65534)], True),
        ("0.0.0.0:9440", [(ANY, 7), (OTHER, 65534)], [], False),
        ("0.0.0.0:9440", [(OTHER, 65534)], [], False),
        ("[::1]:9440", [(ANY, 65534)], [(LOCAL6, 7)], True),
        ("[::1]:9440", [], [(ANY6, 65534)], False),
        ("[::]:9440", [(ANY, 65534)], [(ANY6, 7)], True),
        ("[::1]:9440", [(ANY, 7)], [], False),
        ("nowhere", [(ANY, 7)], [], False),
    ],
)
def test_whose_a_connection_would_be(
    tmp_path: Path, address: str, tcp: list[tuple[str, int]], tcp6: list[tuple[str, int]], own: bool
) -> None:
    host = FakeHost(tmp_path)
    host.install(EXTENDER, command=f"{ENVIRONMENT}/bin/x --metrics-listen {address}")
    host.file("/proc/net/tcp", table(*tcp) + table((LOCAL, 65534), state="01").partition("\n")[2] + "cut\n")
    host.file("/proc/net/tcp6", table(*tcp6))
    host.at("/proc/77/fd").mkdir()
    host.at("/proc/77/fd/5").symlink_to("socket:[7]")
    assert is_its_own(host, host.unit(EXTENDER), address) is own


def test_a_real_socket_of_ipv6(host: FakeHost) -> None:
    with socket.create_server(("::1", 0), family=socket.AF_INET6) as one:
        address = f"[::1]:{one.getsockname()[1]}"
        host.install(EXTENDER, OURS)
        assert is_its_own(host, host.unit(EXTENDER), address)
        host.install(EXTENDER, STRANGER)
        assert not is_its_own(host, host.unit(EXTENDER), address)
