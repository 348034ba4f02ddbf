# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Requests against a real HTTP server."""

from __future__ import annotations

import asyncio
import socket
import ssl
import time
from datetime import datetime, timezone
from pathlib import Path

import pytest
from aiohttp import web

from gpushare_runtime.kube import credentials
from gpushare_runtime.kube.client import LOST, TIMEOUT, UNREACHABLE, KubeClient, KubeError, path
from gpushare_runtime.pki.certificates import issue
from unit.fakes.runtime.kube.fake_api import FakeApi, connected, fail, kubeconfig, serving, status

POD = "/api/v1/namespaces/default/pods/a"


def pod(name: str, **spec: object) -> dict[str, object]:
    return {"metadata": {"name": name, "namespace": "default", "uid": f"uid-{name}"}, "spec": spec}


def test_path_quotes_what_comes_from_elsewhere() -> None:
    assert path("api/v1", "nodes", "n1") == "/api/v1/nodes/n1"
    assert path("/api/v1", "namespaces", "a/b", "pods", "c?d#e") == "/api/v1/namespaces/a%2Fb/pods/c%3Fd%23e"
    for bad in ("", ".", ".."):
        with pytest.raises(ValueError, match="cannot be part of an API path"):
            path("api/v1", "namespaces", bad)


async def test_get_create_patch_delete(api: FakeApi, client: KubeClient) -> None:
    await client.create("/api/v1/namespaces/default/pods", pod("a"))
    assert (await client.get(POD))["metadata"]["uid"] == "uid-a"
    changed = await client.patch(f"{POD}/status", {"metadata": {"annotations": {"x": "1"}}}, kind="merge", fieldManager="me")
    assert changed["metadata"]["annotations"] == {"x": "1"}
    assert api.headers[-1]["Content-Type"] == "application/merge-patch+json"
    assert api.requests[-1][2] == {"fieldManager": "me"}
    await client.delete(POD)
    with pytest.raises(KubeError) as caught:
        await client.get(POD)
    assert (caught.value.status, caught.value.reason, caught.value.ambiguous) == (404, "NotFound", False)


async def test_each_kind_of_patch_has_its_content_type(api: FakeApi, client: KubeClient) -> None:
    await api.put(POD, pod("a"))
    seen = []
    for kind in ("merge", "strategic", "apply"):
        await client.patch(f"{POD}/status", {}, kind=kind, force=True)  # type: ignore[arg-type]
        seen.append(api.headers[-1]["Content-Type"].split("/")[1])
    assert seen == ["merge-patch+json", "strategic-merge-patch+json", "apply-patch+yaml"]
    assert api.requests[-1][2] == {"force": "true"}


async def test_errors_carry_the_servers_words(api: FakeApi, client: KubeClient) -> None:
    async def because(_: web.Request) -> web.StreamResponse:
        cause = {"reason": "DisruptionBudget", "message": "the budget b"}
        return status(409, "Conflict", "not now", details={"name": "p", "causes": [cause]})

    async def plain(_: web.Request) -> web.StreamResponse:
        return web.Response(status=502, text="bad gateway\n")

    async def html(_: web.Request) -> web.StreamResponse:
        return web.Response(text="<html>")

    api.faults = [fail(403, "Forbidden", "you may not"), because, plain, html]
    with pytest.raises(KubeError, match=r"you may not \(403 Forbidden\)") as caught:
        await client.get(POD)
    assert caught.value.causes == {}
    with pytest.raises(KubeError, match="not now") as caught:
        await client.get(POD)
    assert caught.value.causes == {"DisruptionBudget": "the budget b"}
    with pytest.raises(KubeError, match="bad gateway") as caught:
        await client.get(POD)
    assert caught.value.ambiguous
    with pytest.raises(KubeError, match="sent no JSON"):
        await client.get(POD)


async def test_no_answer_is_told_apart_from_never_sent(tmp_path: Path) -> None:
    async def slow(_: web.Request) -> web.StreamResponse:
        await asyncio.sleep(30)
        raise AssertionError

    async def drop(request: web.Request) -> web.StreamResponse | None:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async with serving(FakeApi()) as api, connected(api, tmp_path) as client:
        api.faults = [slow]
        with pytest.raises(KubeError) as caught:
            await client.create(POD, {}, within=2.0)
        assert (caught.value.status, caught.value.reason, caught.value.ambiguous) == (0, TIMEOUT, True)
        api.faults = [drop]
        with pytest.raises(KubeError) as caught:
            await client.create(POD, {})
        assert (caught.value.status, caught.value.reason, caught.value.ambiguous) == (0, LOST, True)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        (tmp_path / "gone").write_text(kubeconfig(f"http://127.0.0.1:{unused.getsockname()[1]}", token="x"))
        async with KubeClient(credentials.load(str(tmp_path / "gone"))) as client:
            with pytest.raises(KubeError) as caught:
                await client.create(POD, {})
    assert (caught.value.status, caught.value.reason, caught.value.ambiguous) == (0, UNREACHABLE, False)
    assert "Connect call failed" in caught.value.message


async def test_a_mended_kubeconfig_is_used_by_the_next_request(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, api: FakeApi) -> None:
    monkeypatch.setattr(credentials, "UNANSWERED_SECONDS", 0.0)
    file = tmp_path / "kubeconfig"
    file.write_text(kubeconfig("http://127.0.0.1:9", token="x"))
    async with KubeClient(credentials.load(str(file))) as client:
        await api.put(POD, pod("a"))
        with pytest.raises(KubeError, match=r"http://127\.0\.0\.1:9"):
            await client.get(POD)
        file.write_text(kubeconfig(api.url, token="x"))
        assert (await client.get(POD))["metadata"]["name"] == "a"


async def test_too_many_requests_waits_and_comes_again(api: FakeApi, client: KubeClient) -> None:
    async def busy(_: web.Request) -> web.StreamResponse:
        return web.Response(status=429, headers={"Retry-After": "0"})

    api.faults = [busy, busy]
    await client.create("/api/v1/namespaces/default/pods", pod("a"))
    assert len(api.requests) == 3
    api.faults = [fail(429, "TooManyRequests")] * 9
    with pytest.raises(KubeError) as caught:
        await client.get(POD, within=0.5)
    assert caught.value.status == 429


async def test_a_401_reads_the_credentials_again(tmp_path: Path) -> None:
    api = FakeApi()
    api.token = "old"
    async with serving(api), connected(api, tmp_path) as client:
        await api.put(POD, pod("a"))
        await client.get(POD)
        api.token = "new"
        with pytest.raises(KubeError, match="401"):
            await client.get(POD)
        (tmp_path / "kubeconfig").write_text(kubeconfig(api.url, token="new"))
        await client.get(POD)


async def test_many_binds_run_at_once(api: FakeApi, client: KubeClient) -> None:
    gate = asyncio.Event()
    arrived = 0

    async def wait(_: web.Request) -> None:
        nonlocal arrived
        arrived += 1
        if arrived == 150:
            gate.set()
        await gate.wait()

    api.faults = [wait] * 150
    await asyncio.gather(*(client.create("/api/v1/namespaces/default/pods", pod(f"p{n}")) for n in range(150)))
    assert len(api.objects) == 150


async def test_pages(api: FakeApi, client: KubeClient) -> None:
    for n in range(7):
        await api.put(f"/api/v1/namespaces/ns{n % 2}/pods/p{n}", pod(f"p{n}"))
    pages = [page async for page in client.list_pages("/api/v1/pods", limit=3, fieldSelector="a=b")]
    assert [len(page["items"]) for page in pages] == [3, 3, 1]
    assert all(query["fieldSelector"] == "a=b" and query["limit"] == "3" for _, _, query in api.requests)
    assert "continue" not in api.requests[0][2]
    one = [page async for page in client.list_pages("/api/v1/namespaces/ns1/pods", limit=0)]
    assert [item["metadata"]["name"] for item in one[0]["items"]] == ["p1", "p3", "p5"]


async def test_a_list_that_expires_half_way_says_so(api: FakeApi, client: KubeClient) -> None:
    for n in range(3):
        await api.put(f"/api/v1/namespaces/default/pods/p{n}", pod(f"p{n}"))
    pages = client.list_pages("/api/v1/pods", limit=2)
    await anext(pages)
    api.faults = [fail(410, "Expired")]
    with pytest.raises(KubeError) as caught:
        await anext(pages)
    assert caught.value.status == 410


@pytest.mark.parametrize("pause", [0.0, 0.01])
async def test_watch_lines_of_any_length(api: FakeApi, client: KubeClient, pause: float) -> None:
    stream = client.watch("/api/v1/pods", "100", pause=lambda: pause)
    await api.put("/api/v1/namespaces/default/pods/a", pod("a", big="x" * 300_000))
    await api.remove("/api/v1/namespaces/default/pods/a")
    seen = []
    async for kind, value in stream:
        seen.append(kind)
        if kind == "ADDED":
            assert len(value["spec"]["big"]) == 300_000
        if kind == "BOOKMARK":
            break
    await stream.aclose()
    assert seen == ["ADDED", "DELETED", "BOOKMARK"]


@pytest.fixture
def certified(tmp_path: Path) -> tuple[ssl.SSLContext, Path]:
    """A server's context, and the authority of its certificate."""
    now = datetime.now(timezone.utc)
    ca = issue("ca", None, now)
    own = issue("server", ca, now)
    for name, data in (("ca", ca.certificate_pem), ("crt", own.certificate_pem), ("key", own.key_pem)):
        (tmp_path / name).write_bytes(data)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "crt", tmp_path / "key")
    return context, tmp_path / "ca"


@pytest.mark.parametrize("tls", [True, False])
async def test_a_watch_that_looks_seldom_is_woken_once_for_what_came_together(tls: bool, certified: tuple[ssl.SSLContext, Path]) -> None:
    """Over TLS each event is a record of its own."""
    context, ca = certified
    async with serving(FakeApi(), context if tls else None) as api:
        loaded = credentials.Loaded("test", api.url, ca_file=str(ca))
        async with KubeClient(credentials.Credentials(lambda: loaded)) as client:
            await looks_seldom(api, client)


async def looks_seldom(api: FakeApi, client: KubeClient) -> None:
    looks: list[float] = []

    def pause() -> float:
        looks.append(time.monotonic())
        return 0.5

    stream = client.watch("/api/v1/pods", str(api.version), pause=pause)
    first = asyncio.ensure_future(anext(stream))
    await api.put("/api/v1/namespaces/default/pods/first", pod("first"))
    await first
    looked, names = time.monotonic(), []
    for number in range(100):
        await api.put(f"/api/v1/namespaces/default/pods/{number}", pod(str(number)))
    async for kind, value in stream:
        if kind == "BOOKMARK":
            continue
        if not names:
            assert time.monotonic() - looked >= 0.5
        names.append(value["metadata"]["name"])
        if len(names) == 100:
            break
    await stream.aclose()
    assert names == [str(number) for number in range(100)]
    assert len(looks) <= 5, "each has all that came"


async def test_watch_errors(api: FakeApi, client: KubeClient) -> None:
    await api.compact()
    with pytest.raises(KubeError) as caught:
        await anext(client.watch("/api/v1/pods", "100"))
    assert caught.value.status == 410
    silent = client.watch("/api/v1/pods", str(api.version), read_timeout=0.2)
    with pytest.raises(KubeError) as caught:
        await anext(silent)
    assert caught.value.reason == TIMEOUT
