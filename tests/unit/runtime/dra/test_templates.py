# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Every namespace has the template, whatever happens to one of them; nothing else is ever written."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gpushare_runtime.daemon.runner import Status
from gpushare_runtime.dra import templates
from gpushare_runtime.dra.templates import Templates, parse_arguments, template
from unit.fakes.runtime.kube.fake_api import FakeApi, connected, fail, serving, until


def at(namespace: str) -> str:
    return f"/apis/resource.k8s.io/v1/namespaces/{namespace}/resourceclaimtemplates/gpushare"


async def namespace(api: FakeApi, name: str, **metadata: Any) -> None:
    await api.put(f"/api/v1/namespaces/{name}", {"metadata": {"name": name, **metadata}})


def have(api: FakeApi) -> set[str]:
    return {path.split("/")[5] for path in api.objects if path.endswith("/resourceclaimtemplates/gpushare")}


@asynccontextmanager
async def daemon(api: FakeApi, folder: Path, number: int = 1) -> AsyncIterator[Status]:
    status = Status(required=())
    async with connected(api, folder) as client:
        parts = [part for _ in range(number) for part in Templates(client, status).parts()]
        tasks = [asyncio.ensure_future(part) for part in parts]
        try:
            yield status
        finally:
            for task in tasks:
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task


async def test_namespaces_that_are_there_and_that_come_get_the_template(tmp_path: Path) -> None:
    async with serving(FakeApi()) as api:
        for name in ("default", "kube-system"):
            await namespace(api, name)
        await namespace(api, "ending", deletionTimestamp="2026-11-29T10:00:00Z")
        async with daemon(api, tmp_path):
            await until(lambda: have(api) == {"default", "kube-system"})
            await namespace(api, "new")
            await until(lambda: have(api) == {"default", "kube-system", "new"})
            assert api.objects[at("new")]["spec"] == template("new")["spec"]
            # Whoever deletes it: it comes back.
            await api.remove(at("default"))
            await until(lambda: "default" in have(api))
        assert {method for method, _, _ in api.requests} == {"GET", "POST"}


@pytest.mark.parametrize("is_new", [True, False])
async def test_a_namespace_that_comes_or_a_template_that_goes_is_enough(is_new: bool, tmp_path: Path) -> None:
    """No other change wakes it, and no time."""
    async with serving(FakeApi()) as api:
        await namespace(api, "default")
        await api.put(at("default"), {"metadata": {"name": "gpushare", "namespace": "default"}})
        async with daemon(api, tmp_path) as status:
            await until(lambda: "1 namespaces have theirs" in status.report()[1])
            await (namespace(api, "new") if is_new else api.remove(at("default")))
            await until(lambda: have(api) == ({"default", "new"} if is_new else {"default"}))


async def test_two_at_once_do_no_harm(tmp_path: Path) -> None:
    async with serving(FakeApi()) as api:
        names = {f"n{number}" for number in range(20)}
        for name in names:
            await namespace(api, name)
        async with daemon(api, tmp_path, 2) as status:
            await until(lambda: have(api) == names)
            await until(lambda: "20 namespaces have theirs" in status.report()[1])


async def test_a_namespace_that_takes_none_holds_up_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "_RETRY_SECONDS", 0.05)
    async with serving(FakeApi()) as api:
        refused: list[str] = []

        async def reject(request: Any) -> Any:
            if request.method == "POST" and "/namespaces/full/" in request.path and len(refused) < 3:
                refused.append(request.path)
                return await fail(403, "Forbidden", "exceeded quota")(request)
            return None

        api.faults = _Always(reject)
        await namespace(api, "full")
        await namespace(api, "other")
        async with daemon(api, tmp_path) as status:
            await until(lambda: "1 of 2 namespaces have none (full): exceeded quota" in status.report()[1])
            assert "other" in have(api)
            await until(lambda: have(api) == {"full", "other"} and status.report()[0])


class _Always(list):  # type: ignore[type-arg]
    """One fault for every request."""

    def __init__(self, fault: Any) -> None:
        super().__init__([fault])

    def pop(self, _: Any = 0) -> Any:
        return self[0]


def test_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.delenv("LOG_LEVEL", raising=False)
    found = parse_arguments(["--health-listen=0.0.0.0:9443"])
    assert (found.kubeconfig, found.health_listen, found.log_level) == (None, ("0.0.0.0", 9443), "info")
    with pytest.raises(SystemExit):
        parse_arguments(["--health-listen=here"])
