# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The verbs over real TLS: who is let in, and new certificates without a lost connection."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import ssl
from datetime import timedelta
from pathlib import Path

import aiohttp
import pytest
from cryptography import x509

from gpushare_runtime.core.protocol import EXTENDER_PREFIX
from gpushare_runtime.daemon.listener import RateLimit
from gpushare_runtime.daemon.runner import EXIT_SETTINGS, FatalError
from gpushare_runtime.extender import http_protocol, http_server
from gpushare_runtime.extender import tls as tls_module
from gpushare_runtime.extender.cache import ClusterCache
from gpushare_runtime.extender.http_server import Endpoints, listen
from gpushare_runtime.extender.main import main
from gpushare_runtime.extender.tls import Tls, TlsFiles
from gpushare_runtime.pki.certificates import issue
from unit.fakes.runtime.extender.process import free_port, start
from unit.fakes.runtime.extender.tls_files import NOW, make, options
from unit.fakes.runtime.kube.fake_api import FakeApi
from unit.golden import Golden

pytestmark = pytest.mark.usefixtures("on_uvloop")

FILTER = f"{EXTENDER_PREFIX}/filter"


def trusting(directory: Path, certificate: Path | None = None, key: Path | None = None) -> ssl.SSLContext:
    """A client's context: trusts that folder's CA, shows that certificate."""
    context = ssl.create_default_context(cafile=directory / "ca.crt")
    if certificate and key:
        context.load_cert_chain(certificate, key)
    return context


def scheduler(directory: Path) -> ssl.SSLContext:
    return trusting(directory, directory / "scheduler/tls.crt", directory / "scheduler/tls.key")


class Caller:
    """Requests to the extender at a port, each kind of caller with connections of its own."""

    def __init__(self, port: int, context: ssl.SSLContext) -> None:
        self.url = f"https://127.0.0.1:{port}"
        self.session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=context))

    async def __aenter__(self) -> Caller:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.session.close()

    async def ask(self, method: str, path: str) -> tuple[int, str]:
        async with self.session.request(method, f"{self.url}{path}", data=b"{}" if method == "POST" else None) as response:
            return response.status, await response.text()


async def log_until(process: asyncio.subprocess.Process, text: str) -> str:
    """The process's log up to a line with that text."""
    assert process.stderr is not None
    read = b""
    async with asyncio.timeout(20):
        while text.encode() not in read:
            line = await process.stderr.readline()
            assert line, f"{text!r} has not come:\n{read.decode()}"
            read += line
    return read.decode()


async def served_by(context: ssl.SSLContext, port: int) -> bytes:
    """The certificate that a new connection meets."""
    _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    try:
        certificate: bytes = writer.get_extra_info("ssl_object").getpeercert(True)
        return certificate
    finally:
        writer.close()


async def test_who_may_call_what(tmp_path: Path, api: FakeApi, golden: Golden) -> None:
    pki, port = tmp_path / "pki", free_port()
    files = make(pki)
    process = await start(tmp_path, api, port, **options(files))
    await log_until(process, "answering the scheduler")
    async with Caller(port, trusting(pki)) as anybody, Caller(port, scheduler(pki)) as known:
        assert (await anybody.ask("GET", "/healthz"))[0] == 200
        assert (await anybody.ask("GET", "/version"))[0] == 200
        for method, path in (("POST", FILTER), ("GET", FILTER), ("GET", "/nowhere"), ("POST", f"{EXTENDER_PREFIX}/bind")):
            status, text = await anybody.ask(method, path)
            assert status == 403
            golden(text)
        assert '"unauthorized_calls":4' in (await anybody.ask("GET", "/healthz"))[1]
        status, text = await known.ask("POST", FILTER)
        # The verb's own answer: it has just started, and waits for whoever was active before.
        assert (status, '"Error":"' in text, '"Error":""' in text) == (200, True, False)
        assert (await known.ask("GET", "/nowhere"))[0] == 404
    process.send_signal(signal.SIGTERM)
    assert await asyncio.wait_for(process.wait(), 20) == 0


async def test_who_shows_no_certificate_takes_no_place_from_the_scheduler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "UNVERIFIED_SECONDS", 1.0)
    monkeypatch.setattr(http_server, "UNVERIFIED", 64)
    pki, port = tmp_path / "pki", free_port()
    tls = Tls(make(pki))
    endpoints = Endpoints(cluster := ClusterCache(), None, None, lambda: "not ready")  # type: ignore[arg-type]
    server = listen(endpoints, "127.0.0.1", port, tls.context)
    before = len(os.listdir("/proc/self/fd"))
    # Some before, some after the handshake.
    silent = [await asyncio.open_connection("127.0.0.1", port) for _ in range(100)]
    silent += [await asyncio.open_connection("127.0.0.1", port, ssl=trusting(pki)) for _ in range(100)]
    async with Caller(port, scheduler(pki)) as known:
        assert (await known.ask("POST", FILTER))[0] == 200
        # Each has one descriptor at this end, and where it is kept another one at that end.
        assert len(os.listdir("/proc/self/fd")) - before < 200 + http_server.UNVERIFIED + 10
        for reader, _ in silent:
            with contextlib.suppress(OSError):
                assert await asyncio.wait_for(reader.read(), 10) == b""
        # One connection, kept for longer than any stranger's.
        assert (await known.ask("POST", FILTER))[0] == 200
        assert len(server.connections) == 1
    for _, writer in silent:
        writer.close()
    await server.close()
    assert not cluster.pending


def test_strangers_do_not_fill_the_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    # Whatever other tests have had logged before.
    monkeypatch.setattr(http_server._at_callers, "filters", [RateLimit(3)])
    monkeypatch.setattr(http_protocol._malformed, "filters", [RateLimit(4)])
    monkeypatch.setattr(http_protocol, "_LINGER_SECONDS", 0.01)

    async def run() -> None:
        pki, port = tmp_path / "pki", free_port()
        tls = Tls(make(pki))
        endpoints = Endpoints(ClusterCache(), None, None, lambda: "not ready")  # type: ignore[arg-type]
        server = listen(endpoints, "127.0.0.1", port, tls.context)
        for n in range(40):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=trusting(pki))
            writer.write(b"GET / HTTP/1.1\r\nContent-Length: x\r\n\r\n" if n % 2 else b"GET /a%0aINFO%20bind HTTP/1.1\r\nHost: x\r\n\r\n")
            await asyncio.wait_for(reader.read(), 10)
            writer.close()
        await server.close()

    asyncio.run(run())
    assert len(caplog.records) == 3 + 4
    for record in caplog.records:
        assert record.exc_info is None
        assert "\n" not in record.getMessage()


async def test_only_the_client_certificate_of_this_ca_that_is_valid_is_believed(tmp_path: Path, api: FakeApi) -> None:
    pki, other, port = tmp_path / "pki", tmp_path / "other", free_port()
    files = make(pki)
    make(other)
    ca_pem, ca_key = (pki / "ca.crt").read_bytes(), (pki / "ca.key").read_bytes()
    expired = tmp_path / "expired"
    expired.mkdir()
    (expired / "ca.crt").write_bytes(ca_pem)
    (expired / "ca.key").write_bytes(ca_key)
    make(expired, NOW - timedelta(days=200))
    # Its client certificate has ended; the CA, made again for that time, has the same key.
    shown = {
        "of another CA": (other / "scheduler/tls.crt", other / "scheduler/tls.key"),
        "expired": (expired / "scheduler/tls.crt", expired / "scheduler/tls.key"),
        "a server's": (files.certificate, files.key),
    }
    process = await start(tmp_path, api, port, **options(files))
    await log_until(process, "answering the scheduler")
    for what, (certificate, key) in shown.items():
        async with Caller(port, trusting(pki, certificate, key)) as caller:
            with pytest.raises((aiohttp.ClientError, OSError)):
                raise AssertionError(f"{what}: {await caller.ask('POST', FILTER)}")
    async with Caller(port, trusting(other)) as doubting:
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await doubting.ask("GET", "/healthz")
    process.terminate()
    await process.wait()


async def test_sighup_takes_the_new_certificate_and_keeps_the_connections(tmp_path: Path, api: FakeApi) -> None:
    pki, port = tmp_path / "pki", free_port()
    files = make(pki)
    process = await start(tmp_path, api, port, **options(files))
    await log_until(process, "answering the scheduler")
    before = await served_by(trusting(pki), port)
    async with Caller(port, scheduler(pki)) as known:
        assert (await known.ask("POST", FILTER))[0] == 200
        old = scheduler(pki)
        for path in pki.rglob("*.*"):
            path.unlink()
        make(pki)
        process.send_signal(signal.SIGHUP)
        await log_until(process, "for new connections")
        # The context of this caller trusts the old CA only: it answers on the connection that is open.
        assert (await known.ask("POST", FILTER))[0] == 200
    assert await served_by(trusting(pki), port) != before
    async with Caller(port, scheduler(pki)) as known:
        assert (await known.ask("POST", FILTER))[0] == 200
    async with Caller(port, old) as stale:
        with pytest.raises(aiohttp.ClientConnectorCertificateError):
            await stale.ask("POST", FILTER)
    good = await served_by(trusting(pki), port)
    files.certificate.write_text("nothing")
    process.send_signal(signal.SIGHUP)
    assert "the certificate read before stays in use" in await log_until(process, "not reloaded")
    assert await served_by(trusting(pki), port) == good
    process.terminate()
    assert await process.wait() == 0


async def test_no_connection_is_rejected_while_the_certificate_changes(tmp_path: Path, api: FakeApi) -> None:
    pki, port = tmp_path / "pki", free_port()
    files = make(pki)
    process = await start(tmp_path, api, port, **options(files))
    await log_until(process, "answering the scheduler")
    context = scheduler(pki)
    done = False

    async def knock() -> int:
        count = 0
        while not done:
            async with Caller(port, context) as caller:
                assert (await caller.ask("POST", FILTER))[0] == 200
            count += 1
        return count

    knocking = [asyncio.create_task(knock()) for _ in range(4)]
    for _ in range(20):
        process.send_signal(signal.SIGHUP)
        await log_until(process, "for new connections")
    done = True
    assert all(await asyncio.gather(*knocking))
    process.terminate()
    await process.wait()


def test_the_end_of_the_certificates_is_that_of_the_files(tmp_path: Path) -> None:
    files = make(tmp_path)
    tls = Tls(files)

    def ends(of: Path) -> float:
        return x509.load_pem_x509_certificate(of.read_bytes()).not_valid_after_utc.timestamp()

    assert tls.ends() == (ends(files.certificate), ends(files.client_ca))
    before = tls.ends()
    make(tmp_path, NOW + timedelta(days=80))
    assert tls.ends() == before
    tls.reload()
    assert tls.ends() == (ends(files.certificate), ends(files.client_ca)) != before
    # A bundle while the CA changes: until the newer one ends.
    other = issue("ca", None, NOW + timedelta(days=900))
    files.client_ca.write_bytes(files.client_ca.read_bytes() + other.certificate_pem)
    tls.reload()
    assert tls.ends()[1] == other.certificate.not_valid_after_utc.timestamp()


@pytest.mark.parametrize("years", [10, 60])
def test_the_end_of_a_certificate_in_both_forms_of_time(years: int, tmp_path: Path) -> None:
    """From 2050 on certificates have years of four digits."""
    pair = issue("server", issue("ca", None, NOW), NOW + timedelta(days=365 * years))
    (tmp_path / "crt").write_bytes(pair.certificate_pem)
    assert tls_module._end_of(tmp_path / "crt") == pair.certificate.not_valid_after_utc.timestamp()


def test_a_certificate_that_cannot_be_read_has_no_end(tmp_path: Path) -> None:
    pem = issue("server", issue("ca", None, NOW), NOW).certificate_pem.decode()
    lines = pem.splitlines()
    for text in ("", "x", "\u00e4", lines[0], "\n".join([lines[0], lines[1], lines[-1]]), "\n".join([lines[0], "MAA=", lines[-1]])):
        (tmp_path / "crt").write_text(text)
        assert tls_module._end_of(tmp_path / "crt") is None
    assert tls_module._end_of(tmp_path / "nowhere") is None


def test_broken_files_are_named(tmp_path: Path) -> None:
    files = make(tmp_path)
    assert files.context().verify_mode == ssl.CERT_OPTIONAL
    foreign = issue("server", None, NOW)
    for path, text, said in (
        (files.key, foreign.key_pem, "extender.crt and .*extender.key: .*expected a certificate and its key"),
        (files.certificate, b"", "extender.crt and .*expected a certificate and its key"),
        (files.client_ca, b"x", "ca.crt: .*expected the CA of the scheduler's certificate"),
    ):
        right = path.read_bytes()
        path.write_bytes(text)
        with pytest.raises(FatalError, match=said):
            files.context()
        path.write_bytes(right)
    os.unlink(files.key)
    with pytest.raises(FatalError, match=r"extender.key: No such file or directory; expected PEM\. `gpushare-pki ensure`"):
        files.context()


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (["--tls-cert", "/a"], "--tls-key and --client-ca not given: TLS takes all of --tls-cert, --tls-key, --client-ca"),
        (["--tls-cert", "/a", "--tls-key", "/b"], "--client-ca not given"),
        (["--listen", "0.0.0.0:32766"], "--listen 0.0.0.0:32766: plain http is for loopback addresses"),
        (["--listen", "[::]:32766"], "--listen [::]:32766: plain http is for loopback addresses"),
    ],
)
def test_bad_arguments(argv: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(argv)
    assert caught.value.code == 2
    assert said in " ".join(capsys.readouterr().err.split())


async def test_missing_files_end_it_with_the_reason(tmp_path: Path, api: FakeApi) -> None:
    process = await start(tmp_path, api, free_port(), **options(TlsFiles(tmp_path / "c", tmp_path / "k", tmp_path / "ca")))
    _, log = await asyncio.wait_for(process.communicate(), 20)
    assert process.returncode == EXIT_SETTINGS
    assert f"ERROR gpushare_runtime.daemon.runner: {tmp_path}/c: No such file or directory" in log.decode()
