# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""--watch: what it prints when the cluster changes, by format."""

from __future__ import annotations

import asyncio
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import yaml
from rich.console import Console

from gpushare_runtime.kubectl_gpushare.api import fill
from gpushare_runtime.kubectl_gpushare.cluster import Cluster
from gpushare_runtime.kubectl_gpushare.live import follow
from gpushare_runtime.kubectl_gpushare.output import Format
from gpushare_runtime.kubectl_gpushare.views import Selection
from unit.fakes.runtime.core.ledger_schema import check
from unit.fakes.runtime.kube.fake_api import FakeApi, connected, serving
from unit.fakes.runtime.kubectl_gpushare.command import fill_api
from unit.fakes.runtime.kubectl_gpushare.objects import node, pod


class Recorded(io.StringIO):
    """What was printed, and when something new was."""

    def __init__(self, terminal: bool) -> None:
        super().__init__()
        self.terminal = terminal
        self.news = asyncio.Event()

    def isatty(self) -> bool:
        return self.terminal

    def write(self, text: str) -> int:
        self.news.set()
        return super().write(text)

    async def until(self, text: str) -> None:
        async with asyncio.timeout(30):
            while text not in self.getvalue():
                self.news.clear()
                await self.news.wait()


@asynccontextmanager
async def watching(api: FakeApi, tmp_path: Path, form: Format, view: str = "pods", terminal: bool = False) -> AsyncIterator[Recorded]:
    out, cluster = Recorded(terminal), Cluster()
    console = Console(file=out, force_terminal=terminal, width=100, height=30)
    async with connected(api, tmp_path) as client:
        read = await fill(client, cluster, "", "default")
        task = asyncio.ensure_future(follow(client, cluster, read, view, Selection(), form, console))
        try:
            yield out
        finally:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)


def test_watch_prints_the_rows_that_change(tmp_path: Path) -> None:
    async def go() -> str:
        async with serving(FakeApi()) as api:
            await fill_api(api)
            async with watching(api, tmp_path, Format()) as out:
                await out.until("pending")
                await api.put("/api/v1/namespaces/team/pods/w", pod("w", "gpu1", gpu=1, mem=2, namespace="team"))
                await out.until("w     gpu1")
                await api.remove("/api/v1/namespaces/default/pods/p")
                await api.put("/api/v1/namespaces/team/pods/n", pod("n", "gpu1", gpu=1, mem=1, namespace="team"))
                await out.until("n     gpu1")
                return out.getvalue()

    lines = [line.split() for line in asyncio.run(go()).splitlines()]
    assert [(line[1], line[2]) for line in lines] == [
        ("NAME", "NODE"),
        ("p", "gpu1"),
        ("t", "gpu1"),
        ("w", "-"),
        ("w", "gpu1"),
        ("n", "gpu1"),
    ]


async def two_nodes(form: Format, folder: Path) -> str:
    async with serving(FakeApi()) as api:
        await fill_api(api)
        async with watching(api, folder, form, "nodes") as out:
            await out.until("gpu1")
            await api.put("/api/v1/nodes/gpu2", node("gpu2", "10.0.0.2", 8))
            await out.until("gpu2")
            return out.getvalue()


@pytest.mark.parametrize(
    ("form", "lines"),
    [
        (Format("name"), [["node/gpu1"], ["node/gpu2"]]),
        (Format(headers=False), [["gpu1", "2/2"], ["gpu2", "1/1"]]),
        (Format("wide"), [["NAME", "GPUS"], ["gpu1", "2/2"], ["gpu2", "1/1"]]),
    ],
)
def test_watch_prints_names_or_rows_without_headers_or_wider_ones(form: Format, lines: list[list[str]], tmp_path: Path) -> None:
    said = asyncio.run(two_nodes(form, tmp_path)).splitlines()
    assert [line.split()[:2] for line in said] == lines
    assert ("Tesla T4" in said[-1]) == (form.name == "wide")


def test_watch_as_yaml_prints_a_whole_document_each_time(tmp_path: Path) -> None:
    documents = list(yaml.safe_load_all(asyncio.run(two_nodes(Format("yaml"), tmp_path))))
    assert [[one["name"] for one in document["nodes"]] for document in documents] == [["gpu1"], ["gpu1", "gpu2"]]


def test_watch_as_json_prints_a_document_a_line(tmp_path: Path) -> None:
    async def go() -> str:
        async with serving(FakeApi()) as api:
            await fill_api(api)
            async with watching(api, tmp_path, Format("json"), "nodes") as out:
                await out.until("\n")
                await api.put("/api/v1/nodes/gpu2", node("gpu2", "10.0.0.2", 8))
                await out.until("gpu2")
                await api.remove("/api/v1/nodes/gpu2")
                async with asyncio.timeout(30):
                    while out.getvalue().count("\n") < 3:
                        out.news.clear()
                        await out.news.wait()
                return out.getvalue()

    documents = [json.loads(line) for line in asyncio.run(go()).splitlines()]
    for document in documents:
        check(document)
    assert [[one["name"] for one in document["nodes"]] for document in documents] == [["gpu1"], ["gpu1", "gpu2"], ["gpu1"]]


def test_on_a_terminal_a_screen_follows(tmp_path: Path) -> None:
    async def go() -> str:
        async with serving(FakeApi()) as api:
            await fill_api(api)
            async with watching(api, tmp_path, Format(), "nodes", terminal=True) as out:
                await out.until("6/16")
                await api.remove("/api/v1/namespaces/default/pods/p")
                await out.until("2 of 32 GiB")
                await api.cut()
                await api.put("/api/v1/nodes/gpu3", node("gpu3", "10.0.0.3", 8))
                await out.until("gpu3")
            return out.getvalue()

    text = asyncio.run(go())
    assert "Ctrl-C ends" in text
    # The alternate screen is entered, and left at the end.
    assert ("\x1b[?1049h" in text, "\x1b[?1049l" in text) == (True, True)
