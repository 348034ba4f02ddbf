# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What the doctor asks of the dashboard: its certificate, and its answers over real TLS with the token and without."""

from __future__ import annotations

import http.client
import ssl
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from gpushare_runtime.doctor import daemons, identity
from gpushare_runtime.doctor.endpoints import judge_dashboard
from gpushare_runtime.doctor.findings import Findings
from gpushare_runtime.doctor.host import DASHBOARD
from gpushare_runtime.doctor.identity import judge_served_certificate
from gpushare_runtime.pki.folder import Folder, dashboard
from unit.fakes.runtime.doctor.fake_host import COMMANDS, ENVIRONMENT, FakeHost, said
from unit.fakes.runtime.doctor.server import Answer, serving
from unit.fakes.runtime.kube.tokens import jwt

TOKEN = "0123456789abcdef"
PKI = "/etc/gpushare/dashboard-pki"


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    found = FakeHost(tmp_path)
    found.file("/etc/gpushare/dashboard-viewer.token", TOKEN + "\n")
    made(found, datetime.now(timezone.utc))
    found.real_ports(77)
    return found


def made(host: FakeHost, at: datetime) -> None:
    """Of a name that the doctor does not call it by."""
    purpose = dashboard([])
    folder = Folder(host.at(PKI), replace(purpose, server=replace(purpose.server, names=("gpus.example.org",))))
    folder.write(folder.due(at))


def sound(path: str, authorization: str) -> Answer:
    if path == "/healthz":
        return 200, b"ok"
    return (200, b"{}") if (path, authorization) == ("/api/state", f"Bearer {TOKEN}") else (401, b"")


def looked(host: FakeHost, answer: Callable[[str, str], Answer], *, whole: bool = False) -> list[tuple[str, str]]:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(host.at(f"{PKI}/dashboard.crt"), host.at(f"{PKI}/dashboard.key"))
    found = Findings()
    with serving(answer, context) as address:
        host.install(DASHBOARD, command=COMMANDS[DASHBOARD].replace("127.0.0.1:9442", address))
        if whole:
            daemons.look(found, host, host.unit(DASHBOARD), Path(ENVIRONMENT))
        else:
            judge_dashboard(found, host, host.unit(DASHBOARD))
    return [(code, words.replace(address, "HERE")) for code, words in said(found)]


def test_one_that_is_as_it_should_be(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    # As Python before 3.13 makes it.
    context = ssl.create_default_context()
    context.verify_flags = ssl.VERIFY_DEFAULT
    monkeypatch.setattr(ssl, "create_default_context", lambda: context)
    monkeypatch.setattr(identity, "api_status", lambda kubeconfig, token, node: 200)
    now = time.time()
    host.file("/var/lib/gpushare-dashboard/token", jwt(now - 100, now + 300, account=DASHBOARD))
    assert looked(host, sound, whole=True) == []


@pytest.mark.parametrize(
    ("path", "token", "status", "expected"),
    [
        ("/healthz", "", 503, ("dashboard_not_synced", "HTTP 503 from HERE")),
        ("/healthz", "", 421, ("dashboard_down", "HTTP 421 from HERE")),
        ("/api/state", "", 200, ("dashboard_open", "HTTP 200 from HERE for requests without a token")),
        ("/api/state", f"Bearer {TOKEN}", 401, ("dashboard_down", "HTTP 401 from HERE for requests with the token of its file")),
    ],
)
def test_one_that_answers_otherwise(host: FakeHost, path: str, token: str, status: int, expected: tuple[str, str]) -> None:
    def answer(asked: str, authorization: str) -> Answer:
        return (status, b"") if (asked, authorization) == (path, token) else sound(asked, authorization)

    assert looked(host, answer) == [expected]


@pytest.mark.parametrize("name", ["gpus.example.org", ""])
@pytest.mark.parametrize("file", ["", "/etc/gpushare/gpushare-dashboard.yaml"])
def test_it_is_called_by_its_name_and_without_one_by_its_address(host: FakeHost, name: str, file: str) -> None:
    """By its file of settings, or by the options of gpushare 0.1."""
    hosts: list[str] = []
    host.at("/etc/gpushare/dashboard-viewer.token").unlink()
    with serving(sound, hosts=hosts) as served:
        address = served.replace("127.0.0.1", "0.0.0.0")
        options = f"--config {file}" if file else f"--listen {address}" + f" --host-name {name}" * bool(name)
        host.file(file or "/unused", f'listen: "{address}"\n' + f"hostNames: [{name}]\n" * bool(name))
        host.install(DASHBOARD, command=f"{ENVIRONMENT}/bin/{DASHBOARD} {options}")
        judge_dashboard(Findings(), host, host.unit(DASHBOARD))
    assert set(hosts) == {name or address}


def test_one_that_is_silent_is_down(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(_name: str, _port: int, *, timeout: float, context: ssl.SSLContext) -> None:
        assert 0 < timeout < 60
        raise TimeoutError

    monkeypatch.setattr(http.client, "HTTPSConnection", silent)
    host.install(DASHBOARD)
    found = Findings()
    judge_dashboard(found, host, host.unit(DASHBOARD))
    assert said(found) == [("dashboard_down", "TimeoutError from 127.0.0.1:9442")]


def test_another_server_in_its_place_is_not_believed(host: FakeHost) -> None:
    other = FakeHost(host.at("/other"))
    made(other, datetime.now(timezone.utc))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(other.at(f"{PKI}/dashboard.crt"), other.at(f"{PKI}/dashboard.key"))
    found = Findings()
    with serving(sound, context) as address:
        host.install(DASHBOARD, command=COMMANDS[DASHBOARD].replace("127.0.0.1:9442", address))
        judge_dashboard(found, host, host.unit(DASHBOARD))
    ((code, words),) = said(found)
    assert (code, "certificate verify failed" in words) == ("dashboard_down", True)


def test_its_certificate_has_not_expired(host: FakeHost) -> None:
    host.install(DASHBOARD)
    unit, now, found = host.unit(DASHBOARD), time.time(), Findings()
    assert judge_served_certificate(found, host, unit, now)
    assert judge_served_certificate(found, host, unit, now + 89 * 86400)
    assert said(found) == []
    assert judge_served_certificate(found, host, unit, now + 90 * 86400 + 60) is False
    end = (datetime.now(timezone.utc) + timedelta(days=90)).strftime("%Y-%m-%d")
    ((code, words),) = said(found)
    assert (code, words.startswith(f"{PKI}/dashboard.crt: has expired at {end}")) == ("certificate_expired", True)
    host.file(f"{PKI}/dashboard.crt", "no certificate")
    assert not judge_served_certificate(found, host, unit, now)
    host.at(f"{PKI}/dashboard.crt").unlink()
    assert judge_served_certificate(found, host, unit, now) is False
    assert said(found)[1:] == [("dashboard_down", f"{PKI}/dashboard.crt is not a certificate in PEM")] * 2
    host.install(DASHBOARD, command="/opt/x --listen 127.0.0.1:1")
    assert judge_served_certificate(found, host, host.unit(DASHBOARD), now)
