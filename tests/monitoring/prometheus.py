# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A real Prometheus: Debian's programs, a server that scrapes given addresses with our rules, and what it answers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import aiohttp
import yaml

from gpushare_lab import debian
from gpushare_lab.prepare import the_cache
from tree import REPOSITORY

RULES: Final = REPOSITORY / "docs/operate/monitoring/rules.yml"
EXTENDER: Final = "gpushare-extender"
PLUGIN: Final = "gpushare-device-plugin"


def program(name: str) -> Path:
    """`prometheus` or `promtool`."""
    return debian.prometheus(the_cache()) / name


def rules_that_fire_at_once(text: str) -> str:
    """The rules without their waits: what holds at one evaluation fires at the next."""
    return re.sub(r"for: \d+[smh]", "for: 0s", text)


class Prometheus:
    """Of one server that runs."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self.url = url
        self._session = session

    async def get(self, path: str, **params: str) -> Any:
        """`data` of an answer. AssertionError with Prometheus' own reason if it is an error."""
        async with self._session.get(f"{self.url}/api/v1/{path}", params=params) as response:
            answer = await response.json()
        assert answer["status"] == "success", f"{path} {params}: {answer.get('error')}"
        return answer["data"]

    async def query(self, expression: str) -> list[tuple[Mapping[str, str], float]]:
        """(labels, value) of each series now."""
        data = await self.get("query", query=expression)
        return [(one["metric"], float(one["value"][1])) for one in data["result"]]

    async def firing(self) -> dict[str, Mapping[str, Any]]:
        """Alert → one of those that fire."""
        return {one["labels"]["alertname"]: one for one in (await self.get("alerts"))["alerts"] if one["state"] == "firing"}

    async def until(self, what: str, holds: Callable[[], Any], seconds: float = 60) -> Any:
        """What `await holds()` returns once it is true. AssertionError after that time."""
        end, found = time.monotonic() + seconds, await holds()
        while not found and time.monotonic() < end:
            await asyncio.sleep(0.2)
            found = await holds()
        assert found, f"{what}: not after {seconds:.0f} s; firing: {sorted(await self.firing())}"
        return found


def configuration(targets: Mapping[str, list[str]], rules: Path, more: Sequence[Mapping[str, Any]] = ()) -> dict[str, Any]:
    """targets: of each job, addresses with ports; more: further jobs."""
    jobs = [*({"job_name": job, "static_configs": [{"targets": addresses}]} for job, addresses in targets.items()), *more]
    every = {"scrape_interval": "1s", "scrape_timeout": "1s", "evaluation_interval": "1s"}
    return {"global": every, "rule_files": [str(rules)], "scrape_configs": jobs}


@asynccontextmanager
async def serving(
    folder: Path, targets: Mapping[str, list[str]], port: int, rules: str | None = None, more: Sequence[Mapping[str, Any]] = ()
) -> AsyncIterator[Prometheus]:
    """A server that scrapes every second, as `configuration` has it. rules: their text; None for those of the repository."""
    (folder / "rules.yml").write_text(RULES.read_text() if rules is None else rules)
    (folder / "prometheus.yml").write_text(yaml.safe_dump(configuration(targets, folder / "rules.yml", more)))
    with (folder / "prometheus.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            program("prometheus"),
            f"--config.file={folder}/prometheus.yml",
            f"--storage.tsdb.path={folder}/data",
            f"--web.listen-address=127.0.0.1:{port}",
            stdout=log,
            stderr=log,
        )
    try:
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=20)) as session:
            server = Prometheus(f"http://127.0.0.1:{port}", session)
            for _ in range(600):
                assert process.returncode is None, (folder / "prometheus.log").read_text()[-2000:]
                with contextlib.suppress(aiohttp.ClientConnectionError, aiohttp.ContentTypeError, json.JSONDecodeError):
                    await server.get("status/runtimeinfo")
                    break
                await asyncio.sleep(0.1)
            yield server
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()
