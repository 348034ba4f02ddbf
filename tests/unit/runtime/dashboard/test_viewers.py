# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Tokens of people: what the API server says that they may list is all that they see, and no token stays anywhere."""

from __future__ import annotations

import asyncio
import gc
import json
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from gpushare_runtime.dashboard import server, viewers, visible
from gpushare_runtime.dashboard.access import AccessError, Hosts
from gpushare_runtime.dashboard.feed import Feed
from gpushare_runtime.dashboard.main import namespaces_shown
from gpushare_runtime.dashboard.server import Dashboard, listen
from gpushare_runtime.dashboard.viewers import OwnTokens, Viewer
from gpushare_runtime.kube import credentials
from gpushare_runtime.kube.client import KubeClient
from gpushare_runtime.kubectl_gpushare.cluster import Cluster
from gpushare_runtime.kubectl_gpushare.explain import Cure, NodeVerdict
from unit.fakes.runtime.kube.fake_api import FakeApi, connected, fail, serving, status
from unit.fakes.runtime.kubectl_gpushare.objects import allocation, held, node, pending, pod, read_all

Json = dict[str, Any]
OWN, ADMIN, NOBODY, OTHER = "own-token-of-mine-0123", "admin-token-0123456789", "nobody-token-012345678", "other-token-0123456789"


class Reviews(FakeApi):
    """An API server with people. rights: of each token, the namespaces whose pods it may list; None for all."""

    def __init__(self) -> None:
        super().__init__()
        self.rights: dict[str, set[str] | None] = {OWN: {"mine"}, ADMIN: None, NOBODY: set(), OTHER: {"hidden"}}
        self.reviewed: list[tuple[str, str]] = []

    async def handle(self, request: web.Request) -> web.StreamResponse:
        header = request.headers.get("Authorization", "")
        if request.path.endswith("selfsubjectaccessreviews") and not self.faults:
            body = json.loads(await request.read())
            wanted = body["spec"]["resourceAttributes"]
            assert (wanted["verb"], wanted["resource"], wanted["group"]) == ("list", "pods", "")
            token = header.removeprefix("Bearer ")
            self.reviewed.append((token, wanted["namespace"]))
            if token not in self.rights:
                return status(401, "Unauthorized", "Unauthorized")
            rights = self.rights[token]
            allowed = rights is None or wanted["namespace"] in rights
            return web.json_response({**body, "status": {"allowed": allowed}}, status=201)
        return await super().handle(request)


@pytest.fixture
def people() -> Reviews:
    return Reviews()


@pytest.fixture
def api(people: Reviews) -> AbstractAsyncContextManager[FakeApi]:
    return serving(people)


@pytest.fixture
def client(people: Reviews, tmp_path: Path) -> AbstractAsyncContextManager[KubeClient]:
    return connected(people, tmp_path)


def bearer(token: str) -> str:
    return f"Bearer {token}"


async def seen(access: OwnTokens, token: str) -> frozenset[str] | str | None:
    found = await access.viewer(bearer(token))
    return "nobody" if found is None else found.namespaces


async def test_everybody_sees_what_the_api_server_says_that_his_token_may_list(api: Reviews, client: KubeClient) -> None:
    access = OwnTokens(client.of_user, lambda: ["mine", "hidden"])
    assert await seen(access, OWN) == {"mine"}
    assert await seen(access, ADMIN) is None
    assert await seen(access, NOBODY) == set()
    assert await seen(access, "made-up-token-01234567") == "nobody"
    # Nobody is asked twice in a minute.
    api.reviewed.clear()
    assert await seen(access, OWN) == {"mine"}
    assert api.reviewed == []


@pytest.mark.parametrize(
    "header",
    [
        None,
        "",
        "Bearer ",
        "Bearer short",
        f"bearer {OWN}",
        f"Basic {OWN}",
        f"Bearer {OWN} x",
        f"Bearer {OWN}\udc80",
        "Bearer " + "x" * 9000,
    ],
)
async def test_what_is_no_bearer_token_is_not_sent_to_the_api_server(api: Reviews, client: KubeClient, header: str | None) -> None:
    assert await OwnTokens(client.of_user, lambda: ["mine"]).viewer(header) is None
    assert api.requests == []


async def test_rights_that_are_withdrawn_end_within_a_minute_and_new_namespaces_are_asked_for(api: Reviews, client: KubeClient) -> None:
    now, there = 0.0, {"mine"}
    access = OwnTokens(client.of_user, lambda: there, lambda: now)
    assert await seen(access, OWN) == {"mine"}
    api.rights[OWN] = {"mine", "new"}
    there = {"mine", "new"}
    assert await seen(access, OWN) == {"mine", "new"}
    assert api.reviewed == [(OWN, ""), (OWN, "mine"), (OWN, "new")]
    api.rights[OWN] = {"new"}
    now = viewers.KNOWN_SECONDS - 1
    assert await seen(access, OWN) == {"mine", "new"}
    now = viewers.KNOWN_SECONDS
    assert await seen(access, OWN) == {"new"}
    del api.rights[OWN]
    now *= 3
    assert await seen(access, OWN) == "nobody"


async def test_the_number_of_people_and_of_namespaces_is_bounded(api: Reviews, client: KubeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(viewers, "MOST_KNOWN", 2)
    monkeypatch.setattr(viewers, "MOST_NAMESPACES", 3)
    access = OwnTokens(client.of_user, lambda: [f"n{at}" for at in range(9)])
    api.rights[OWN] = {"n0", "n8"}
    assert await seen(access, OWN) == {"n0"}
    assert sorted(name for _, name in api.reviewed) == ["", "n0", "n1", "n2"]
    for token in (NOBODY, OTHER, ADMIN):
        await seen(access, token)
    assert len(access._known) == 2
    api.reviewed.clear()
    await seen(access, OWN)
    assert api.reviewed != []


async def test_a_flood_of_made_up_tokens_is_not_passed_on_and_does_not_end_the_work_of_others(
    api: Reviews, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(viewers, "MOST_REJECTED", 3)
    now = 0.0
    access = OwnTokens(client.of_user, lambda: ["mine"], lambda: now)
    await seen(access, OWN)
    for at in range(3):
        assert await seen(access, f"made-up-token-0123456{at}") == "nobody"
    sent = len(api.reviewed)
    with pytest.raises(AccessError, match="has to wait"):
        await seen(access, "made-up-token-01234569")
    assert len(api.reviewed) == sent
    assert await seen(access, OWN) == {"mine"}
    now = viewers.REJECTED_SECONDS
    assert await seen(access, ADMIN) is None


async def test_a_flood_does_not_lock_out_whose_token_was_good(api: Reviews, client: KubeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(viewers, "MOST_REJECTED", 3)
    now = 0.0
    access = OwnTokens(client.of_user, lambda: ["mine"], lambda: now)

    async def flood() -> None:
        for at in range(4):
            with suppress(AccessError):
                await seen(access, f"made-up-token-0123456{at}")

    await seen(access, OWN)
    await seen(access, OTHER)
    for later in (viewers.KNOWN_SECONDS, 2 * viewers.KNOWN_SECONDS, viewers.REMEMBERED_SECONDS):
        now = later
        await flood()
        assert await seen(access, OWN) == {"mine"}
    # Nobody has come with that one for longer.
    now += viewers.KNOWN_SECONDS
    await flood()
    with pytest.raises(AccessError):
        await seen(access, OTHER)
    # One that has ended is asked about once.
    del api.rights[OWN]
    assert await seen(access, OWN) == "nobody"
    with pytest.raises(AccessError):
        await seen(access, OWN)


async def test_who_sees_all_pods_costs_no_walk_of_them_and_others_one_for_all_at_a_change(api: Reviews, client: KubeClient) -> None:
    walks: list[int] = []
    access = OwnTokens(client.of_user, lambda: walks.append(1) or ["mine"])
    await seen(access, ADMIN)
    await seen(access, ADMIN)
    assert walks == []
    feed = Feed(cluster(), "e")
    await feed.refresh()
    shown = namespaces_shown(feed)
    assert shown() == {"mine", "hidden"}
    assert shown() is shown()
    feed.cluster.set_pod(pod("z", "a", annotations=allocation({"0": {"0": 1}}), mem=1, namespace="fresh"))
    await feed.refresh()
    assert shown() == {"mine", "hidden", "fresh"}


async def test_an_api_server_that_does_not_answer_lets_nobody_in(api: Reviews, client: KubeClient) -> None:
    api.faults += [fail(500, "InternalError", "broken")]
    with pytest.raises(AccessError, match="broken"):
        await OwnTokens(client.of_user, lambda: ["mine"]).viewer(bearer(ADMIN))


async def test_nothing_of_the_dashboards_own_identity_goes_with_the_token_of_a_person(api: Reviews, tmp_path: Path) -> None:
    own = credentials.Credentials(
        lambda: credentials.Loaded("here", api.url, "Bearer the-dashboards-own-token", client_file="/nonexistent.crt", client_key_file="/x")
    )
    made = own.of_user(OWN)
    assert made.authorization() == bearer(OWN)
    assert (made._loaded.client_file, made._loaded.client_key_file, made._loaded.client_pem) == (None, None, None)
    async with KubeClient(own).of_user(OWN) as client:
        await client.get("/api/v1/pods")
    assert api.headers[-1]["Authorization"] == bearer(OWN)
    far = credentials.Credentials(lambda: credentials.Loaded("here", "http://10.0.0.1:8080"))
    with pytest.raises(credentials.CredentialsError, match="https"):
        far.of_user(OWN)


async def test_the_token_is_in_no_log_and_is_not_kept(api: Reviews, client: KubeClient, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    access = OwnTokens(client.of_user, lambda: ["mine"])
    await seen(access, OWN)
    api.faults += [fail(500, "InternalError", "broken")]
    with pytest.raises(AccessError) as error:
        await seen(access, OTHER)
    assert OTHER not in str(error.value)
    assert OWN not in caplog.text
    assert OTHER not in caplog.text
    gc.collect()
    assert not any(token.encode() in repr(access._known).encode() for token in (OWN, OTHER))


# What is left of the page.


def cluster() -> Cluster:
    """Names with "hidden" are not for the person with OWN."""
    bound = [
        pod("p", "a", annotations=allocation({"0": {"0": 3}}), mem=3, namespace="mine"),
        pod("hidden-p", "a", annotations=allocation({"0": {"0": 9}}), mem=9, namespace="hidden"),
        pod("hidden-lost", "a", mem=2, namespace="hidden"),
    ]
    waiting = [
        pending("w", "0/2 nodes are available", namespace="mine", mem=14),
        pending("hidden-w", "0/2 nodes are available", namespace="hidden", mem=14),
    ]
    a = held(node("a", "10.0.0.1", 16, 16), gpu1=[{"uid": "hidden-gone", "pod": "hidden/hidden-gone", "units": 12, "why": "orphaned"}])
    made = read_all([a, node("b", "10.0.0.2", gpus="{")], [*bound, *waiting])
    made._warn("pod hidden/hidden-odd: it cannot be read")
    return made


@asynccontextmanager
async def site(api: Reviews, client: KubeClient, of: Cluster) -> AsyncIterator[tuple[Feed, Callable[..., Any]]]:
    feed = Feed(of, "e")
    await feed.refresh()
    access = OwnTokens(client.of_user, namespaces_shown(feed))
    runner, port = await listen(lambda port: Dashboard(feed, access, Hosts("127.0.0.1", port)), "127.0.0.1", 0)
    try:
        async with aiohttp.ClientSession() as http:

            def get(path: str, token: str = "") -> Any:
                headers = {"Authorization": bearer(token)} if token else {}
                return http.get(f"http://127.0.0.1:{port}{path}", headers=headers)

            yield feed, get
    finally:
        await runner.cleanup()


PATHS = (
    "/api/state",
    *("/api/nodes/a", "/api/nodes/b"),
    *("/api/pods/mine/w", "/api/pods/mine/p", "/api/pods/hidden/hidden-p", "/api/pods/hidden/hidden-w"),
    *("/api/verdicts/uid-w", "/api/verdicts/uid-hidden-w"),
    *("/api/history", "/api/namespaces/mine", "/api/pods/mine/p/events"),
)


async def test_no_answer_names_a_pod_of_another_namespace(api: Reviews, client: KubeClient) -> None:
    of = cluster()
    async with site(api, client, of) as (_, get):
        found: dict[str, Json] = {}
        for path in PATHS:
            async with get(path, OWN) as response:
                body = await response.read()
                assert response.status == 200, path
                assert b"hidden" not in body, path
                found[path] = json.loads(body)
            async with get(path) as response:
                assert (response.status, "of your own for this cluster" in await response.text()) == (401, True)
        rows = {one["name"]: one for one in found["/api/state"]["nodes"]}
        # The sums are those of the cluster.
        assert [gpu[3:5] for gpu in rows["a"]["gpus"]] == [[12, 4], [12, 4]]
        assert [one[:2] for one in rows["a"]["pods"]] == [["mine", "p"]]
        assert found["/api/state"]["sums"]["allocated"] == 24 * 1024
        assert found["/api/state"]["sums"]["pods"] is None
        assert [one["name"] for one in found["/api/state"]["waiting"]] == ["w"]
        assert "one namespace" in found["/api/state"]["warnings"][0]
        assert found["/api/pods/hidden/hidden-p"] == {"pods": []}
        assert found["/api/verdicts/uid-hidden-w"] == {"verdict": "", "copy": ""}
        # What others would have to end is no cure of this person.
        assert "cheapest change: ask for at most 4 GiB" in found["/api/verdicts/uid-w"]["verdict"]
        # Somebody who may list all pods has all of it.
        async with get("/api/state", ADMIN) as response:
            assert b"hidden-p" in await response.read()
        async with get("/api/state", NOBODY) as response:
            state = await response.json()
            assert [one["pods"] for one in state["nodes"]] == [[], []]
            assert "no namespace" in state["warnings"][0]


async def test_events_and_quotas_are_asked_for_with_the_token_of_the_person(api: Reviews, client: KubeClient) -> None:
    async with site(api, client, cluster()) as (_, get), get("/api/pods/hidden/hidden-p/events", OWN) as response:
        await response.read()
        assert (api.requests[-1][1], api.headers[-1]["Authorization"]) == ("/api/v1/namespaces/hidden/events", bearer(OWN))


async def test_differences_are_filtered_and_other_rights_read_the_whole_again(
    api: Reviews, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "HEARTBEAT_SECONDS", 0.05)
    of = cluster()
    async with site(api, client, of) as (feed, get), get("/api/events?since=e.1", OWN) as response:
        for name, namespace in (("hidden-x", "hidden"), ("y", "mine")):
            of.set_pod(pod(name, "a", annotations=allocation({"0": {"0": 1}}), mem=1, namespace=namespace))
        await feed.refresh()
        lines = b""
        while b"event: change" not in lines:
            lines += await response.content.readuntil(b"\n\n")
        assert b'"y"' in lines
        assert b"hidden" not in lines
        # A namespace that is new to the dashboard and the person's own.
        api.rights[OWN] = {"mine", "fresh"}
        of.set_pod(pod("z", "a", annotations=allocation({"0": {"0": 1}}), mem=1, namespace="fresh"))
        await feed.refresh()
        rest = await asyncio.wait_for(response.content.read(), 60)
        assert rest.endswith(b"event: reset\ndata: {}\n\n")


async def test_a_stream_ends_with_its_token(api: Reviews, client: KubeClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "HEARTBEAT_SECONDS", 0.05)
    monkeypatch.setattr(viewers, "KNOWN_SECONDS", 0.2)
    async with site(api, client, cluster()) as (_, get), get("/api/events?since=e.1", OWN) as response:
        await response.content.readuntil(b"\n\n")
        del api.rights[OWN]
        await asyncio.wait_for(response.content.read(), 60)
    async with site(api, client, cluster()) as (_, get), get("/api/state", OWN) as response:
        assert response.status == 401


@pytest.mark.parametrize(
    ("cure", "stays"),
    [
        (Cure("smaller", "ask for at most 4 GiB", number=4), True),
        (Cure("uncordon", "uncordon GPU 7", number=7), True),
        (Cure("uncordon-node", "kubectl uncordon a"), True),
        (Cure("end", "x", ("mine/p",)), True),
        (Cure("end", "x", ("mine/p", "mine/q", "mine/r", "mine/s")), True),
        (Cure("end", "x", ("mine/p", "hidden/q")), False),
        (Cure("end", "x", ("mine/p", "mine/q", "mine/r", "hidden/s")), False),
        (Cure("processes", "x", ("mine/p",)), True),
        (Cure("processes", "x", ("hidden/p",)), False),
        (Cure("processes", "x", ("mine",)), False),
    ],
)
def test_cures_that_name_pods_of_others_are_left_out(cure: Cure, stays: bool) -> None:
    found = visible.verdict(NodeVerdict("a", (), "x", (cure,)), frozenset({"mine"}))
    assert found.cures == ((cure,) if stays else ())


def test_groups_of_others_are_not_named() -> None:
    verdict = NodeVerdict("a", (), "needs 8 GiB", (), kept="hidden", lesser=("hidden/p",), groups=("hidden", "x", "y"))
    found = visible.verdict(verdict, frozenset({"mine"}))
    assert "hidden" not in repr(found)
    assert found.words == "needs 8 GiB; room is reserved for the group of others"
    assert visible.verdict(replace(verdict, lesser=("mine/p",)), frozenset({"mine"})).lesser == ("mine/p",)
    assert Viewer(frozenset({"mine"})).sees("mine")
    assert not Viewer(frozenset({"mine"})).sees("hidden")
