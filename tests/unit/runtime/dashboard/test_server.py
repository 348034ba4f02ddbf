# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The dashboard over HTTP: nothing of the cluster without the token, headers on every answer, differences as server-sent events."""

from __future__ import annotations

import asyncio
import gzip
import json
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from gpushare_runtime.core.placement.policies import Placement
from gpushare_runtime.core.pods import PendingPod
from gpushare_runtime.dashboard import pods, server
from gpushare_runtime.dashboard.access import FixedToken, Hosts
from gpushare_runtime.dashboard.feed import Feed
from gpushare_runtime.dashboard.history import Prometheus
from gpushare_runtime.dashboard.pods import Verdicts
from gpushare_runtime.dashboard.server import HEADERS, Dashboard, listen, page_files
from gpushare_runtime.dashboard.viewers import OneToken, Viewer
from gpushare_runtime.kubectl_gpushare.cluster import Cluster
from gpushare_runtime.kubectl_gpushare.explain import NodeVerdict, explain
from unit.fakes.runtime.kubectl_gpushare.objects import node, pending, pod, read_all

Json = dict[str, Any]
TOKEN = "correct-horse-battery"
AUTHORIZED = {"Authorization": f"Bearer {TOKEN}"}


class Site:
    """A dashboard that serves, and a client of it."""

    def __init__(self, feed: Feed, http: aiohttp.ClientSession, port: int) -> None:
        self.feed = feed
        self.http = http
        self.port = port

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    async def get(self, path: str, method: str = "GET", **headers: str) -> tuple[int, dict[str, str], bytes]:
        """Status, headers and body."""
        async with self.http.request(method, self.url(path), headers=headers, allow_redirects=False) as response:
            return response.status, dict(response.headers), await response.read()

    async def json(self, path: str) -> Json:
        status, _, body = await self.get(path, **AUTHORIZED)
        assert status == 200, body
        return dict(json.loads(body))


@asynccontextmanager
async def serving(cluster: Cluster, *, read: bool = True, get: Any = None, **options: Any) -> AsyncIterator[Site]:
    feed = Feed(cluster, "epoch")
    if read:
        await feed.refresh()
    runner, port = await listen(
        lambda port: Dashboard(feed, OneToken(FixedToken(TOKEN), get), Hosts("127.0.0.1", port), **options), "127.0.0.1", 0
    )
    try:
        async with aiohttp.ClientSession() as http:
            yield Site(feed, http, port)
    finally:
        await runner.cleanup()


def some() -> Cluster:
    pods = [pod("p", "a", gpu=0, mem=3), pod("w", None, mem=20, phase="Pending"), pod("bad", None, mem=1, count=1)]
    return read_all([node("a", "10.0.0.1", 16, 16), node("b", "10.0.0.2", 16)], pods)


def on(cluster: Cluster, use: Callable[[Site], Awaitable[None]], **options: Any) -> None:
    async def go() -> None:
        async with serving(cluster, **options) as site:
            await use(site)

    asyncio.run(asyncio.wait_for(go(), 120))


DATA = (
    "/api/state",
    "/api/events",
    "/api/history",
    "/api/nodes/a",
    "/api/nodes/none",
    "/api/pods/default/p",
    "/api/pods/default/p/events",
    "/api/namespaces/default",
    "/api/verdicts/uid-w",
    "/api/anything",
)


def test_without_the_token_there_is_no_data_and_no_difference_between_what_is_there_and_what_is_not() -> None:
    async def use(site: Site) -> None:
        for path in DATA:
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Cookie": f"token={TOKEN}"}):
                status, _, body = await site.get(path, **headers)
                assert (status, b"token" in body, b"gpu" in body) == (401, True, False), path
            status, _, _ = await site.get(f"{path}?token={TOKEN}")
            assert status == 401, path

    on(some(), use)


def test_the_files_of_the_page_are_for_everybody_and_have_nothing_of_the_cluster() -> None:
    async def use(site: Site) -> None:
        for path, file in page_files().items():
            status, headers, body = await site.get(path)
            assert (status, body) == (200, file.body)
            assert headers["Content-Type"] == f"{file.content_type}; charset=utf-8"
        status, _, body = await site.get("/healthz")
        assert (status, body) == (200, b"ok\n")

    on(some(), use)


def test_every_answer_forbids_what_the_page_does_not_need() -> None:
    async def use(site: Site) -> None:
        for path, headers in (("/", {}), ("/app.js", {}), ("/nothing", {}), ("/api/state", {}), ("/api/state", AUTHORIZED)):
            _, found, _ = await site.get(path, **headers)
            assert HEADERS.items() <= found.items(), path
            assert "Set-Cookie" not in found
        async with site.http.get(site.url("/api/events?since="), headers=AUTHORIZED) as response:
            assert HEADERS.items() <= dict(response.headers).items()

    policy = HEADERS["Content-Security-Policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    on(some(), use)


def test_the_page_itself_needs_nothing_that_the_policy_forbids() -> None:
    for path, file in page_files().items():
        text = file.body.decode()
        assert "innerHTML" not in text, path
        assert not re.search(r"https?://(?!www\.w3\.org/)", text), path
        assert not re.search(r"\son\w+=|style=|<style|<script(?! type=\"module\" src=)", text), path
        assert not re.search(r"\beval\(|new Function|document\.write", text), path
        assert "SPDX-License-Identifier: Apache-2.0" in text


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "PATCH", "OPTIONS"])
def test_nothing_can_be_written(method: str) -> None:
    async def use(site: Site) -> None:
        status, _, _ = await site.get("/api/state", method, **AUTHORIZED)
        assert status == 405

    on(some(), use)


def test_another_host_is_rejected_also_with_the_token() -> None:
    async def use(site: Site) -> None:
        for path in ("/", "/api/state", "/healthz"):
            status, _, body = await site.get(path, Host=f"evil.example:{site.port}", **AUTHORIZED)
            assert (status, b"hostNames" in body) == (421, True)
            assert (await site.get(path, Host=f"localhost:{site.port}", **AUTHORIZED))[0] == 200

    on(some(), use)


def test_paths_lead_nowhere_else() -> None:
    async def use(site: Site) -> None:
        files = ("/../server.py", "/static/app.js", "/%2e%2e/access.py", "/app.js/")
        data = ("", "/nodes", "/nodes/", "/nodes/a/b", "/pods/default", "/pods//p", f"/nodes/{'x' * 300}")
        for path in (*files, *(f"/api{one}" for one in data)):
            status, _, _ = await site.get(path, **AUTHORIZED)
            assert status == 404, path

    on(some(), use)


def test_the_state_is_packed_and_has_all() -> None:
    async def use(site: Site) -> None:
        async with site.http.get(site.url("/api/state"), headers=AUTHORIZED, auto_decompress=False) as response:
            assert response.headers["Content-Encoding"] == "gzip"
            packed = json.loads(gzip.decompress(await response.read()))
        _, headers, body = await site.get("/api/state", **{"Accept-Encoding": "identity"}, **AUTHORIZED)
        assert ("Content-Encoding" in headers, json.loads(body)) == (False, packed)
        assert (packed["synced"], packed["title"], packed["version"]) == (True, "here", "epoch.1")
        assert sorted(one["name"] for one in packed["nodes"]) == ["a", "b"]
        assert {one["name"]: one["invalid"] for one in packed["waiting"]} == {"w": False, "bad": True}

    on(some(), use, title="here")


def test_before_the_cluster_is_read_the_page_hears_how_far_it_is() -> None:
    async def use(site: Site) -> None:
        assert await site.json("/api/state") == {"synced": False, "nodes": 2, "pods": 1}
        assert (await site.get("/healthz"))[0] == 503

    on(some(), use, read=False)


async def events(response: aiohttp.ClientResponse, count: int) -> list[tuple[str, Json]]:
    """The next events but status."""
    found = []
    while len(found) < count:
        kind = (await response.content.readline()).decode().removeprefix("event: ").strip()
        data = json.loads((await response.content.readline()).decode().removeprefix("data: "))
        assert await response.content.readline() == b"\n"
        if kind != "status":
            found.append((kind, data))
    return found


def test_differences_come_as_events_from_the_version_that_a_page_has() -> None:
    async def use(site: Site) -> None:
        version = (await site.json("/api/state"))["version"]
        for name in ("x", "y"):
            site.feed.cluster.set_pod(pod(name, "a", gpu=1, mem=3))
            await site.feed.refresh()
        async with site.http.get(site.url(f"/api/events?since={version}"), headers=AUTHORIZED) as response:
            assert response.headers["Content-Type"] == "text/event-stream; charset=utf-8"
            found = await events(response, 2)
            assert [(kind, data["version"]) for kind, data in found] == [("change", "epoch.2"), ("change", "epoch.3")]
            site.feed.cluster.remove_pod("uid-x")
            await site.feed.refresh()
            [(kind, data)] = await events(response, 1)
            assert (kind, [pod[1] for pod in data["nodes"][0]["pods"]]) == ("change", ["p", "y"])
            assert data["sums"]["allocated"] == 6 * 1024

    on(some(), use)


@pytest.mark.parametrize("since", ["", "epoch.99", "other.1", "x" * 5000])
def test_a_page_with_an_unknown_version_is_to_read_the_whole(since: str) -> None:
    async def use(site: Site) -> None:
        async with site.http.get(site.url(f"/api/events?since={since}"), headers=AUTHORIZED) as response:
            assert await response.read() == b"event: reset\ndata: {}\n\n"

    on(some(), use)


def test_silence_is_broken_by_the_age_of_the_data(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEARTBEAT_SECONDS", 0.01)

    async def use(site: Site) -> None:
        site.feed.age = lambda: 123.456
        async with site.http.get(site.url("/api/events?since=epoch.1"), headers=AUTHORIZED) as response:
            for _ in range(3):
                assert await response.content.readuntil(b"\n\n") == b'event: status\ndata: {"age":123.5}\n\n'

    on(some(), use)


def test_there_are_only_so_many_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "MOST_STREAMS", 1)

    async def use(site: Site) -> None:
        async with site.http.get(site.url("/api/events?since=epoch.1"), headers=AUTHORIZED) as response:
            await response.content.readline()
            assert (await site.get("/api/events?since=epoch.1", **AUTHORIZED))[0] == 503

    on(some(), use)


def test_a_node_is_as_the_published_json_has_it() -> None:
    async def use(site: Site) -> None:
        made = await site.json("/api/nodes/a")
        assert (made["name"], [one["free"] for one in made["gpus"]], made["pods"][0]["name"]) == ("a", [13, 16], "p")
        assert (await site.get("/api/nodes/none", **AUTHORIZED))[0] == 404

    on(some(), use)


def test_a_pod_has_its_gpus_or_the_verdict_on_every_node() -> None:
    cluster = some()

    async def use(site: Site) -> None:
        [bound] = (await site.json("/api/pods/default/p"))["pods"]
        assert (bound["kind"], bound["node"], bound["state"]) == ("bound", "a", "bound")
        assert bound["gpus"] == [{"index": 0, "units": 3, "of": 16, "model": "Tesla T4", "uuid": "GPU-00000000", "state": "ok"}]
        [waiting] = (await site.json("/api/pods/default/w"))["pods"]
        w = cluster.waiting["uid-w"].pod
        assert isinstance(w, PendingPod)
        verdicts = explain(cluster, w, Placement())
        assert [(one["name"], one["fits"], one["reason"]) for one in waiting["nodes"]] == [(v.node, v.fits, v.reason) for v in verdicts]
        assert (waiting["kind"], waiting["all_nodes"], waiting["fitting_nodes"]) == ("pending", 2, 0)
        assert "largest GPU has 16" in waiting["verdict"]
        [invalid] = (await site.json("/api/pods/default/bad"))["pods"]
        assert (invalid["kind"], "aliyun.com/gpu-count" in invalid["reason"]) == ("invalid", True)
        assert await site.json("/api/pods/default/none") == {"pods": []}
        assert await site.json("/api/pods/other/p") == {"pods": []}

    on(cluster, use)


def test_of_many_nodes_the_best_come_first_and_the_rest_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pods, "MOST_VERDICTS", 3)
    nodes = [node(f"n{at}", "10.0.0.1", 32 if at == 7 else 16) for at in range(10)]

    async def use(site: Site) -> None:
        [waiting] = (await site.json("/api/pods/default/w"))["pods"]
        assert [(one["name"], one["fits"]) for one in waiting["nodes"]] == [("n7", True), ("n0", False), ("n1", False)]
        assert (waiting["all_nodes"], waiting["fitting_nodes"]) == (10, 1)

    on(read_all(nodes, [pod("w", None, mem=20)]), use)


def test_events_and_quotas_are_read_when_the_page_asks_and_a_file_has_none() -> None:
    asked: list[tuple[str, Json]] = []

    async def get(path: str, **parameters: object) -> Json:
        asked.append((path, parameters))
        return {"items": [{"reason": "Started", "status": {"hard": {"requests.aliyun.com/gpu-mem": "8"}}}]}

    async def use(site: Site) -> None:
        assert asked == []
        assert [one["reason"] for one in (await site.json("/api/pods/default/p/events"))["events"]] == ["Started"]
        assert [one["hard"] for one in (await site.json("/api/namespaces/default"))["quotas"]] == [8]
        assert [path for path, _ in asked] == ["/api/v1/namespaces/default/events", "/api/v1/namespaces/default/resourcequotas"]

    async def offline(site: Site) -> None:
        assert await site.json("/api/pods/default/p/events") == {"events": [], "problem": "a file has none of them"}

    on(some(), use, get=get)
    on(some(), offline)


def test_what_a_pod_waits_for_is_a_sentence_with_what_to_copy() -> None:
    raw = pending("w", "0/2 nodes are available: no room", mem=14)
    bound = [pod("p", "a", gpu=0, mem=10), pod("q", "b", gpu=0, mem=10)]
    cluster = read_all([node("a", "10.0.0.1", 16), node("b", "10.0.0.2", 16)], [raw, *bound, pod("bad", None, mem=1, count=1)])

    async def use(site: Site) -> None:
        said = {"verdict": "fits on no node; cheapest change: end default/p", "copy": "kubectl delete pod -n default p"}
        assert await site.json("/api/verdicts/uid-w") == said
        [page] = (await site.json("/api/pods/default/w"))["pods"]
        assert {key: page[key] for key in said} == said
        # The scheduler's words stand beside it, and only once.
        assert page["reported"] == "0/2 nodes are available: no room"
        assert "available" not in json.dumps({**page, "reported": ""})
        assert page["nodes"][0]["cures"][1:] == [{"text": "end default/p", "copy": "kubectl delete pod -n default p"}]
        for uid in ("uid-p", "uid-bad", "none"):
            assert await site.json(f"/api/verdicts/{uid}") == {"verdict": "", "copy": ""}
        # Somebody who does not see every pod does not know what is free.
        cluster.complete = False
        assert await site.json("/api/verdicts/uid-w") == {"verdict": "", "copy": ""}
        [page] = (await site.json("/api/pods/default/w"))["pods"]
        assert (page["judged"], page["verdict"], "nodes" in page) == (False, "", False)

    on(cluster, use)


async def test_pods_that_ask_for_the_same_share_a_verdict_which_holds_in_proportion_to_what_it_took(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = read_all(
        [node("a", "10.0.0.1", 16)],
        [pod("p", "a", gpu=0, mem=10), *(pod(f"w{at}", None, mem=14) for at in range(5)), pod("v", None, mem=13)],
    )
    now, took, asked = 0.0, 0.5, 0
    rests: list[float] = []

    async def slow(of: Cluster, one: PendingPod, _viewer: Viewer) -> list[NodeVerdict]:
        nonlocal now, asked
        now, asked = now + took, asked + 1
        return explain(of, one)

    async def sleep(seconds: float) -> None:
        rests.append(seconds)

    monkeypatch.setattr(pods, "_verdicts", slow)
    monkeypatch.setattr(pods.asyncio, "sleep", sleep)
    made = Verdicts(lambda: now)
    for at in range(5):
        assert (await made.of(cluster, f"uid-w{at}"))["copy"] == "kubectl delete pod -n default p"
    assert (asked, rests) == (1, [0.0])
    # The next one waits, and not the person who has asked for this one.
    assert (await made.of(cluster, "uid-v"))["verdict"] != ""
    assert (asked, rests) == (2, [0.0, 1.5])
    now += 9.0
    await made.of(cluster, "uid-w0")
    assert asked == 2
    now += 1.0
    await made.of(cluster, "uid-w0")
    assert asked == 3
    monkeypatch.setattr(pods, "MOST_KEPT", 1)
    await made.of(cluster, "uid-v")
    await made.of(cluster, "uid-w0")
    assert asked == 5


def test_without_prometheus_the_history_is_its_own_and_says_why() -> None:
    async def use(site: Site) -> None:
        made = await site.json("/api/history")
        assert (made["source"], made["total"], made["allocated"]) == ("dashboard", [48 * 1024], [3 * 1024])
        assert "gave no answer" in made["problem"]

    on(some(), use, prometheus=Prometheus("http://127.0.0.1:9"))


def test_a_fault_is_a_500_that_says_nothing_of_it(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("secret")

    monkeypatch.setattr(server, "node_page", broken)

    async def use(site: Site) -> None:
        status, headers, body = await site.get("/api/nodes/a", **AUTHORIZED)
        assert (status, b"secret" in body, HEADERS.items() <= headers.items()) == (500, False, True)

    on(some(), use)
    assert "secret" in caplog.text


def test_a_connection_without_the_token_does_not_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_UNVERIFIED_SECONDS", 2.0)

    async def use(site: Site) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
        assert await asyncio.wait_for(reader.read(), 60) == b""
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", site.port)
        writer.write(f"GET /healthz HTTP/1.1\r\nHost: localhost:{site.port}\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode())
        assert b"200 OK" in await asyncio.wait_for(reader.read(), 60)
        writer.close()

    on(some(), use)
