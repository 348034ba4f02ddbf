# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Tokens and certificates, as the doctor judges them; the API server's word over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from gpushare_runtime.doctor.findings import Findings
from gpushare_runtime.doctor.host import EXTENDER, PLUGIN
from gpushare_runtime.doctor.identity import api_status, judge_certificates, judge_tokens
from gpushare_runtime.kube.service_account import Token, parse_token
from gpushare_runtime.pki.folder import Folder
from unit.fakes.runtime.doctor.fake_host import COMMANDS, FakeHost, said, settings
from unit.fakes.runtime.doctor.server import serving
from unit.fakes.runtime.kube.fake_api import kubeconfig
from unit.fakes.runtime.kube.tokens import jwt
from unit.golden import Golden

NOW = 1_800_000_000.0
OWN, SEED = f"/var/lib/{EXTENDER}/token", "/etc/gpushare/extender.token"
PKI = "/etc/gpushare/pki"
Lives = tuple[float, float]


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    host = FakeHost(tmp_path)
    host.install(EXTENDER)
    return host


# Tokens


def of_tokens(host: FakeHost, own: Lives | None, seed: Lives | None, ask: Callable[[str, Token, str], int]) -> list[tuple[str, str]]:
    """own, seed: (issued, expires), as seconds from now."""
    for path, life in ((OWN, own), (SEED, seed)):
        host.file(path, f"{jwt(NOW + life[0], NOW + life[1], account=EXTENDER)}\n" if life else "no token")
    found = Findings()
    judge_tokens(found, host, host.unit(EXTENDER), NOW, ask)
    return said(found)


def expired(how_long: str) -> list[tuple[str, str]]:
    return [("token_expired", f"the token in {OWN} expired {how_long} ago")]


GOOD, LATE = (-100, 300), (-300, 99)


@pytest.mark.parametrize(
    ("own", "seed", "expected"),
    [
        (GOOD, None, []),
        (None, GOOD, []),
        (None, None, [("token_missing", f"no token in {OWN} nor in {SEED}")]),
        ((-100, 1), (-50, 40), []),
        ((-100, -30), GOOD, []),
        ((-100, -30), (-200, -59), expired("30 s")),
        ((-100, 0), None, expired("0 s")),
        ((-100, -60), None, expired("1 min")),
        ((-9000, -3599), None, expired("60 min")),
        ((-9000, -3600), (-9000, -7200), expired("1 h")),
        (None, (-900000, -86400), expired("1 d")),
        (None, (-900000, -86399), expired("24 h")),
        ((-900000, -3 * 86400), None, expired("3 d")),
        ((-300, 100), None, []),
        (LATE, None, [("warning token_not_renewed", f"25% of the life of the token in {OWN} left")]),
        (LATE, (-300, -1), [("warning token_not_renewed", f"25% of the life of the token in {OWN} left")]),
        # A daemon that has only its seed, or a newer seed than its own token, is about to swap it.
        (None, LATE, []),
        ((-400, 99), LATE, []),
        ((-10, -5), LATE, []),
        ((0, 1), None, []),
    ],
)
def test_a_token_lives_and_is_renewed_in_time(
    host: FakeHost, own: Lives | None, seed: Lives | None, expected: list[tuple[str, str]]
) -> None:
    assert of_tokens(host, own, seed, lambda _kubeconfig, _token, _node: 200) == expected


def test_the_token_that_the_daemon_should_use_is_asked_about_with_its_kubeconfig(host: FakeHost) -> None:
    asked = []

    def unauthorized(config: str, token: Token, node: str) -> int:
        asked.append((config, token.issued - NOW))
        return 401

    (rejected,) = of_tokens(host, GOOD, (-99, 300), unauthorized)
    assert rejected == ("token_rejected", f"a token of ServiceAccount {EXTENDER} that the API server answers with 401")
    assert of_tokens(host, GOOD, (-101, 300), unauthorized) == [rejected]
    assert asked == [(str(host.at("/etc/gpushare/extender.kubeconfig")), issued) for issued in (-99, -100)]
    assert of_tokens(host, (-10, -5), None, unauthorized) == expired("5 s")
    assert [code for code, _ in of_tokens(host, LATE, None, unauthorized)] == ["token_rejected", "warning token_not_renewed"]


def test_a_daemon_with_a_kubeconfig_of_an_administrator_has_no_token(host: FakeHost) -> None:
    found = Findings()
    lines = settings(EXTENDER).replace("--token-file", "--x")
    judge_tokens(found, host, replace(host.unit(EXTENDER), settings=lines), NOW, api_status)
    assert said(found) == []


def test_the_device_plugins_tokens_are_where_its_unit_has_them(host: FakeHost) -> None:
    host.install(PLUGIN)
    found = Findings()
    judge_tokens(found, host, host.unit(PLUGIN), NOW, api_status)
    words = "no token in /var/lib/gpushare-device-plugin/token nor in /etc/gpushare/device-plugin.token"
    assert said(found) == [("token_missing", words)]
    assert f"one for {PLUGIN}" in found.findings[0].expected
    # Without a node it has the account of all.
    host.file(f"/var/lib/{PLUGIN}/token", jwt(NOW - 100, NOW + 300, account=PLUGIN))
    found = Findings()
    judge_tokens(found, host, host.unit(PLUGIN), NOW, lambda *_: 200)
    assert said(found) == []


def test_a_token_behind_a_link_of_the_daemon_is_none(host: FakeHost) -> None:
    host.file("/root/secret", jwt(NOW - 1, NOW + 100))
    host.file(SEED, "no token")
    host.at(OWN).parent.mkdir(parents=True)
    host.at(OWN).symlink_to(host.at("/root/secret"))
    found = Findings()
    judge_tokens(found, host, host.unit(EXTENDER), NOW, api_status)
    assert [code for code, _ in said(found)] == ["token_missing"]


@pytest.mark.parametrize("status", [200, 401, 403, 500])
def test_the_api_server_is_asked_with_the_token_for_what_the_daemon_reads(tmp_path: Path, status: int) -> None:
    token = parse_token(jwt(NOW, NOW + 9))
    asked = []

    def answer(path: str, authorization: str) -> tuple[int, bytes]:
        asked.append((path, authorization))
        return status, b"{}"

    file = tmp_path / "kubeconfig"
    with serving(answer) as address:
        file.write_text(kubeconfig(f"http://{address}"))
        assert api_status(str(file), token, "gpu1") == status
        assert api_status(str(file), token, "") == status
    assert {path for path, _ in asked} == {
        "/api/v1/pods?limit=1&resourceVersion=0&fieldSelector=spec.nodeName%3Dgpu1",
        "/api/v1/pods?limit=1&resourceVersion=0",
    }
    assert {authorization for _, authorization in asked} == {f"Bearer {token.text}"}
    assert api_status(str(file), token, "") == 0, "nobody answers any more"
    file.unlink()
    assert api_status(str(file), token, "") == 0, "there is nobody to ask"


def test_an_account_that_may_not_read_pods_is_a_finding(host: FakeHost) -> None:
    (finding,) = of_tokens(host, GOOD, None, lambda _kubeconfig, _token, _node: 403)
    assert finding == ("token_forbidden", f"the API server answering 403 to ServiceAccount {EXTENDER}, which asks for pods")
    assert of_tokens(host, GOOD, None, lambda _kubeconfig, _token, _node: 500) == []


@pytest.mark.parametrize("account", [f"{PLUGIN}-gpu2", EXTENDER, PLUGIN])
def test_a_token_of_another_node_is_a_finding_and_not_shown_to_the_api_server(host: FakeHost, account: str, golden: Golden) -> None:
    def never(*_: object) -> int:
        raise AssertionError

    host.install(PLUGIN, command=f"{COMMANDS[PLUGIN]} --node-name gpu1")
    own, seed = f"/var/lib/{PLUGIN}/token", "/etc/gpushare/device-plugin.token"
    host.file(own, jwt(NOW - 100, NOW + 300, account=account))
    for content in ("no token", jwt(NOW - 200, NOW + 300, account=f"{PLUGIN}-gpu1")):
        host.file(seed, content)
        found = Findings()
        judge_tokens(found, host, host.unit(PLUGIN), NOW, never)
        assert said(found) == [("token_foreign", f"a token of ServiceAccount {account} in {own}")]
        golden(found.findings[0].cure)
    host.file(own, jwt(NOW - 100, NOW + 300, account=f"{PLUGIN}-gpu1"))
    found = Findings()
    judge_tokens(found, host, host.unit(PLUGIN), NOW, lambda _kubeconfig, _token, node: 200 if node == "gpu1" else 0)
    assert said(found) == []


@pytest.mark.parametrize(
    ("path", "mode", "user", "code"),
    [
        (OWN, 0o644, None, "token_exposed"),
        (SEED, 0o640, None, "token_exposed"),
        (OWN, 0o600, 65534, "token_unreadable"),
        (SEED, 0o600, 65534, "token_unreadable"),
        (SEED, 0o000, None, "token_unreadable"),
        (OWN, 0o604, 65534, "token_exposed"),
    ],
)
def test_token_files_are_the_daemons_alone(
    host: FakeHost, monkeypatch: pytest.MonkeyPatch, path: str, mode: int, user: int | None, code: str
) -> None:
    """The doctor reads with root's powers; the daemon has none of them."""
    me = host.root_user()
    host.file("/proc/77/status", f"Name:\tx\nUid:\t0\t0\t0\t{me}\nGid:\t0\n")
    seen = host.mode_and_owner
    changed = {path: (mode, me if user is None else user)}
    assert of_tokens(host, GOOD, GOOD, lambda *_: 200) == []
    monkeypatch.setattr(host, "mode_and_owner", lambda asked: changed.get(asked) or seen(asked))
    (finding,) = of_tokens(host, GOOD, GOOD, lambda *_: 200)
    assert finding == (code, f"{path} with mode {mode:04o} of user {me if user is None else user}")


# Certificates

START = datetime(2026, 11, 21, 10, tzinfo=timezone.utc)


@pytest.fixture
def pki(host: FakeHost) -> Folder:
    folder = Folder(host.at(PKI))
    folder.write(folder.due(START))
    return folder


def of_certificates(host: FakeHost, days: float = 0) -> list[tuple[str, str]]:
    found = Findings()
    judge_certificates(found, host, host.unit(EXTENDER), (START + timedelta(days=days)).timestamp())
    return said(found)


@pytest.mark.usefixtures("pki")
def test_certificates_that_are_good_late_and_over(host: FakeHost) -> None:
    assert of_certificates(host) == []
    late = of_certificates(host, 80)
    assert [code for code, _ in late] == ["certificate_wrong"] * 2
    assert all(words.startswith(f"{PKI}/") and "should have been renewed by now" in words for _, words in late)
    over = of_certificates(host, 91)
    assert [code for code, _ in over] == ["certificate_expired"] * 2
    assert [words.partition(": ")[0] for _, words in over] == [f"{PKI}/extender.crt", f"{PKI}/scheduler/tls.crt"]
    assert all(words.endswith("Z)") for _, words in over)


@pytest.mark.parametrize(
    ("name", "content", "codes"),
    [
        ("extender.crt", b"no certificate", ["certificate_wrong"]),
        ("extender.crt", None, ["certificate_wrong"]),
        ("extender.key", None, ["certificate_wrong"]),
        ("scheduler/ca.crt", b"another", ["certificate_wrong"]),
    ],
)
@pytest.mark.usefixtures("pki")
def test_a_certificate_that_is_wrong_or_gone_has_not_expired(
    host: FakeHost, name: str, content: bytes | None, codes: list[str], golden: Golden
) -> None:
    if content is None:
        host.at(f"{PKI}/{name}").unlink()
    else:
        host.file(f"{PKI}/{name}", content)
    found = Findings()
    judge_certificates(found, host, host.unit(EXTENDER), START.timestamp())
    assert [code for code, _ in said(found)] == codes
    golden(found.findings[0].cure)


def test_an_extender_without_tls_has_no_certificates(host: FakeHost) -> None:
    assert len(of_certificates(host)) == 4, "all of them are missing"
    host.install(EXTENDER, command=COMMANDS[EXTENDER].replace("--tls-cert", "--x"))
    assert of_certificates(host) == []
