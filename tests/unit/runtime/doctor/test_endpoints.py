# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The health report and the metrics that the doctor asks for, over real HTTP."""

from __future__ import annotations

import http.client
import json
import socket
import ssl
from datetime import datetime, timezone
from pathlib import Path

import pytest

from gpushare_runtime.doctor import endpoints
from gpushare_runtime.doctor.endpoints import ExtenderCounters, judge_health, judge_metrics
from gpushare_runtime.doctor.findings import Findings
from gpushare_runtime.doctor.host import EXTENDER
from gpushare_runtime.pki.folder import Folder
from unit.fakes.runtime.doctor.fake_host import COMMANDS, FakeHost, said
from unit.fakes.runtime.doctor.server import Answer, serving

TOKEN = "/etc/gpushare/extender-metrics.token"
TOKEN_OPTION = ("--metrics-token-file", "/run/gpushare-extender-copies/extender-metrics.token")


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    found = FakeHost(tmp_path)
    found.real_ports(77)
    return found


def with_options(host: FakeHost, *options: str, tls: bool = False) -> None:
    command = COMMANDS[EXTENDER] if tls else COMMANDS[EXTENDER].replace("--client-ca", "--x")
    host.install(EXTENDER, command=command.replace("--listen 127.0.0.1:32766", " ".join(options)))


def of_metrics(host: FakeHost, *options: str) -> list[tuple[str, str]]:
    with_options(host, *options)
    found = Findings()
    judge_metrics(found, host, host.unit(EXTENDER))
    return said(found)


@pytest.mark.parametrize(
    ("token", "file", "expected"),
    [
        ("s3cret", "s3cret\n", []),
        ("s3cret", "other\n", [("metrics_down", "HTTP 401 from {}, for the metrics of gpushare-extender")]),
        ("s3cret", "", [("metrics_down", "HTTP 401 from {}, for the metrics of gpushare-extender")]),
        ("", None, []),
        ("", "s3cret\n", [("metrics_open", "HTTP 200 from {} for who shows no token")]),
    ],
)
def test_metrics_are_for_who_has_the_token_and_for_nobody_else(
    host: FakeHost, token: str, file: str | None, expected: list[tuple[str, str]]
) -> None:
    def answer(path: str, authorization: str) -> Answer:
        return (200 if path == "/metrics" and authorization == (f"Bearer {token}" if token else authorization) else 401), b"x"

    if file is not None:
        host.file(TOKEN, file)
    hosts: list[str] = []
    with serving(answer, hosts=hosts) as address:
        found = of_metrics(host, "--metrics-listen", address, *([] if file is None else TOKEN_OPTION))
    assert set(hosts) == {address}
    assert found == [(code, words.format(address)) for code, words in expected]


def test_metrics_that_are_down_or_nowhere(host: FakeHost) -> None:
    assert of_metrics(host) == []
    with serving(lambda _path, _authorization: (503, b"")) as address:
        # Also where its token is not there.
        for options in ((), TOKEN_OPTION):
            assert of_metrics(host, "--metrics-listen", address, *options) == [
                ("metrics_down", f"HTTP 503 from {address}, for the metrics of {EXTENDER}")
            ]
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        ((code, words),) = of_metrics(host, "--metrics-listen", address)
    assert (code, "refused" in words) == ("metrics_down", True)
    ((code, _words),) = of_metrics(host, "--metrics-listen", "nowhere")
    assert code == "metrics_down"


@pytest.mark.parametrize(
    ("address", "name"), [("0.0.0.0:9440", "127.0.0.1"), ("[::]:9440", "::1"), ("[fd00::1]:9440", "fd00::1"), ("10.0.0.5:9440", "10.0.0.5")]
)
def test_who_listens_everywhere_is_asked_on_this_host(host: FakeHost, monkeypatch: pytest.MonkeyPatch, address: str, name: str) -> None:
    made: list[tuple[str, int]] = []
    ended = []

    class Silent:
        def __init__(self, name: str, port: int, *, timeout: float) -> None:
            made.append((name, port))
            assert 0 < timeout < 60

        def request(self, *_arguments: object, **_more: object) -> None:
            raise TimeoutError

        def close(self) -> None:
            ended.append(True)

    monkeypatch.setattr(http.client, "HTTPConnection", Silent)
    assert of_metrics(host, "--metrics-listen", address) == [
        ("metrics_down", f"TimeoutError from {address}, for the metrics of {EXTENDER}")
    ]
    assert (made, ended) == ([(name, 9440)], [True])


# The health report

REPORT = {"synced": True, "filter_calls": 3, "unauthorized_calls": 1}


def of_health(host: FakeHost, body: bytes, status: int = 200) -> tuple[ExtenderCounters, list[tuple[str, str]], str]:
    """(what is known of the calls, what was found, the URL)."""
    with serving(lambda path, _authorization: (status if path == "/healthz" else 404, body)) as address:
        with_options(host, "--listen", address)
        found = Findings()
        return judge_health(found, host, host.unit(EXTENDER)), said(found), f"http://{address}/healthz"


@pytest.mark.parametrize(
    ("report", "known", "expected"),
    [
        (REPORT, ExtenderCounters(3, 1), []),
        ({"synced": True}, ExtenderCounters(), []),
        ({"synced": True, "filter_calls": "3", "unauthorized_calls": None}, ExtenderCounters(), []),
        (
            {**REPORT, "synced": False, "not_ready": "no nodes\x1b yet"},
            ExtenderCounters(3, 1),
            [("extender_not_synced", "an extender that is not in sync: no nodes yet")],
        ),
        ({"synced": "true"}, ExtenderCounters(), [("extender_not_synced", "an extender that is not in sync: it does not say why")]),
    ],
)
@pytest.mark.parametrize("status", [200, 503])
def test_an_extender_that_answers(
    host: FakeHost, status: int, report: dict[str, object], known: ExtenderCounters, expected: list[tuple[str, str]]
) -> None:
    health, found, _ = of_health(host, json.dumps(report).encode(), status)
    assert (health, found) == (known, expected)


@pytest.mark.parametrize("body", [b"", b"x", b"[]", b"7", b"[" * 60_000, b'{"x": "' + b"x" * (64 * 1024 - 8) + b'"}'])
def test_an_answer_that_is_no_report_is_none(host: FakeHost, body: bytes) -> None:
    health, ((code, words),), url = of_health(host, body)
    assert (code, words.startswith(f"{url} cannot be read: ")) == ("extender_down", True)
    assert (health.why, len(words) < 500) == (words, True)


@pytest.mark.parametrize(("error", "filters"), [(TimeoutError("timed out"), True), (ConnectionRefusedError("refused"), False)])
def test_an_extender_that_gets_no_packets_is_not_to_be_restarted_first(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch, error: OSError, filters: bool
) -> None:
    def get(*_arguments: object, **_more: object) -> None:
        raise error

    monkeypatch.setattr("gpushare_runtime.doctor.endpoints._get", get)
    found = Findings()
    judge_health(found, host, host.unit(EXTENDER))
    assert [code for code, _ in said(found)] == ["extender_down"]
    assert found.findings[0].cure.startswith("does a packet filter" if filters else "systemctl restart gpushare-extender")


def test_an_extender_with_tls_is_believed_by_roots_own_authority(host: FakeHost) -> None:
    folder = Folder(host.at("/etc/gpushare/pki"))
    folder.write(folder.due(datetime.now(timezone.utc)))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder.path / "extender.crt", folder.path / "extender.key")
    with serving(lambda _path, _authorization: (200, json.dumps(REPORT).encode()), context) as address:
        with_options(host, "--listen", address, tls=True)
        found = Findings()
        assert judge_health(found, host, host.unit(EXTENDER)) == ExtenderCounters(3, 1)
        assert said(found) == []
        # Somebody else listens there.
        other = Folder(host.at("/other"))
        other.write(other.due(datetime.now(timezone.utc)))
        host.file("/etc/gpushare/pki/ca.crt", (other.path / "ca.crt").read_bytes())
        assert "certificate" in judge_health(found, host, host.unit(EXTENDER)).why.lower()
        host.at("/etc/gpushare/pki/ca.crt").unlink()
        judge_health(found, host, host.unit(EXTENDER))
    assert [code for code, _ in said(found)] == ["extender_down"] * 2
    assert all(words.startswith(f"https://{address}/healthz cannot be read: ") for _, words in said(found))


def test_nobody_waits_long_for_an_answer() -> None:
    assert 0 < endpoints._SECONDS < 60
