# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A daemon's own token: from the seed, renewed, kept on disk, healed by a new seed; against an API server over HTTP."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from gpushare_runtime.kube.backoff import Backoff
from gpushare_runtime.kube.client import KubeClient, KubeError
from gpushare_runtime.kube.credentials import load
from gpushare_runtime.kube.service_account import TokenFiles, TokenRenewer, parse_token
from gpushare_runtime.settings.extender import ExtenderConfig
from unit.fakes.runtime.kube.fake_api import fail, kubeconfig, serving, stays, until
from unit.fakes.runtime.kube.tokens import START, TokenApi, jwt

HOUR = 3600.0
WEEK = 604800


class World:
    """A renewer that runs, and its surroundings."""

    def __init__(self, api: TokenApi, directory: Path) -> None:
        self.api = api
        self.files = TokenFiles(directory / "seed", directory / "own" / "token", WEEK)
        self.files.own.parent.mkdir(exist_ok=True)
        self.ahead = 0.0
        self.clock_reads = 0
        self.reports: list[tuple[bool, str]] = []
        self.renewer: TokenRenewer
        self.client: KubeClient

    def _clock(self) -> float:
        self.clock_reads += 1
        return self.api.now + self.ahead

    async def stays(self, condition: Callable[[], object]) -> None:
        """A condition holds while the renewer reads its clock again and again."""
        await stays(condition, lambda: self.clock_reads, 20)

    @property
    def own(self) -> str:
        return self.files.own.read_text().strip() if self.files.own.exists() else ""

    def seed(self, text: str) -> str:
        self.files.seed.write_text(f"{text}\n")
        return text

    @property
    def in_use(self) -> str:
        return (self.renewer.authorization() or "").removeprefix("Bearer ")

    def renewed(self) -> bool:
        """Whether the token in use is good for longer. Time goes on: a try that failed after the clock was set is made again."""
        self.api.now += 60
        return parse_token(self.in_use).due > self.api.now

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        file = self.files.seed.parent / "kubeconfig"
        file.write_text(kubeconfig(self.api.url))
        self.renewer = TokenRenewer(self.files, clock=self._clock, since=lambda: self.api.now - START, tick=0.01, backoff=Backoff(10, 300))
        async with KubeClient(load(str(file), tokens=self.renewer)) as client:
            self.client = client
            task = asyncio.create_task(self.renewer.run(client, lambda ok, words: self.reports.append((ok, words))))
            try:
                yield
            finally:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task


@asynccontextmanager
async def world(directory: Path) -> AsyncIterator[World]:
    async with serving(TokenApi()) as api:
        assert isinstance(api, TokenApi)
        yield World(api, directory)


async def test_the_seed_becomes_an_own_token_at_once(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        seed = here.seed(here.api.give(HOUR))
        async with here.running():
            assert here.in_use == seed
            assert here.renewer.expires == parse_token(seed).expires
            await until(lambda: here.own)
            await until(lambda: here.in_use == here.own)
            assert here.own != seed
            assert here.files.own.stat().st_mode & 0o777 == 0o600
            assert here.files.own.read_bytes().endswith(b"\n")
            assert here.api.asked[0]["spec"] == {"expirationSeconds": WEEK}
            await until(lambda: here.reports)
            assert here.reports == [(True, "good until 2027-01-22T08:00:00Z")]
            await here.client.get("/api/v1/pods")
            assert here.api.headers[-1]["Authorization"] == f"Bearer {here.own}"
        assert len(here.api.asked) == 1
        async with here.running():
            # After a restart the own token is used, the seed no more.
            assert here.in_use == here.own
            await until(lambda: len(here.reports) == 2)
            assert len(here.api.asked) == 1


async def test_renewed_when_a_third_of_its_life_is_over(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        here.seed(here.api.give(HOUR))
        async with here.running():
            await until(lambda: here.own)
            first = here.own
            here.api.now += WEEK / 3 - 1
            await here.stays(lambda: here.own == first)
            here.api.now += 1
            await until(lambda: here.own != first)
            await until(lambda: here.in_use == here.own)
            assert len(here.api.asked) == 2


async def test_a_clock_that_was_days_ahead_for_a_moment_stops_no_renewal(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The host's clock, before it was set after a start: the fresh token seems to have ended, and the next try lies days ahead."""
    async with world(tmp_path) as here:
        here.seed(here.api.give(HOUR))
        here.ahead = 30 * 24 * HOUR
        async with here.running():
            await until(lambda: "a token that ended at 2027-01-22T08:00:00Z; expected one for the future" in caplog.text)
            here.ahead = 0.0
            here.api.now += 20
            await until(lambda: here.own)
            first = here.own
            here.api.now += WEEK / 3
            await until(lambda: here.own != first)


async def test_a_failure_is_said_and_tried_again_later(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    def failures() -> int:
        return sum("the request for a new token failed" in record.getMessage() for record in caplog.records)

    async with world(tmp_path) as here:
        seed = here.seed(here.api.give(HOUR))
        forbidden = fail(403, "Forbidden", "serviceaccounts is forbidden")
        here.api.faults = [forbidden, fail(500), forbidden]
        async with here.running():
            await until(lambda: here.reports)
            assert not here.reports[0][0]
            assert "serviceaccounts is forbidden (403 Forbidden) (its Role should let it create serviceaccounts/token" in here.reports[0][1]
            # The seed works for its hour: that is no reason to reject work.
            assert (here.renewer.problem(), here.in_use) == ("", seed)
            await here.stays(lambda: len(here.api.faults) == 2)
            for failed in (2, 3):
                # Time goes on only when the failure before has been taken note of: the next try is so long after that.
                here.api.now += 50
                await until(lambda failed=failed: failures() == failed)  # type: ignore[misc]
            assert here.api.faults == []
            here.api.now += 50
            await until(lambda: here.own)
            await until(lambda: here.reports[-1][0])


async def test_a_token_that_cannot_be_kept_is_used_and_not_asked_for_again(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        seed = here.seed(here.api.give(HOUR))
        here.files.own.parent.rmdir()
        async with here.running():
            await until(lambda: here.reports)
            assert "cannot be kept in" in here.reports[0][1]
            assert "No such file or directory; make the folder writable, or free space" in here.reports[0][1]
            assert here.in_use != seed
            here.files.own.parent.mkdir()
            here.api.now += 10
            await until(lambda: here.own)
            assert here.in_use == here.own
            assert len(here.api.asked) == 1


async def test_a_token_that_is_never_kept_is_renewed_all_the_same(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        here.seed(here.api.give(HOUR))
        here.files.own.parent.rmdir()
        async with here.running():
            for day in range(1, 15):
                here.api.now = START + day * 24 * HOUR
                await until(here.renewed)
            assert here.renewer.problem() == ""
            assert not here.reports[-1][0]


async def test_a_failure_is_forgotten_when_nothing_is_due_any_more(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        here.files.own.write_text(here.api.give(WEEK))
        async with here.running():
            await until(lambda: here.reports)
            here.api.faults = [fail(403, "Forbidden", "no right to tokens")]
            here.renewer.unauthorized(f"Bearer {here.own}")
            await until(lambda: not here.reports[-1][0])
            await until(lambda: here.reports[-1][0])
            assert (here.api.asked, here.api.faults) == ([], [])


async def test_a_host_that_was_off_for_long_waits_for_a_seed(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        here.seed(here.api.give(HOUR))
        here.files.own.write_text(here.api.give(WEEK))
        here.api.good.clear()
        here.api.now += 2 * WEEK
        async with here.running():
            await until(lambda: here.reports)
            well, words = here.reports[0]
            assert not well
            assert words.startswith(f"no token works: {here.files.own} has expired at 2027-01-22T08:00:00Z; the seed ")
            assert "seed has expired at 2027-01-15T09:00:00Z; the next run of the playbook site.yml for this host writes" in words
            assert here.renewer.problem() == words
            with pytest.raises(KubeError, match="401"):
                await here.client.get("/api/v1/pods")
            here.seed(here.api.give(HOUR))
            await until(lambda: here.own in here.api.good)
            await until(lambda: here.reports[-1][0])
            assert here.renewer.problem() == ""
            await here.client.get("/api/v1/pods")


async def test_a_deleted_account_is_said_and_healed_by_a_new_seed(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        here.seed(here.api.give(HOUR))
        async with here.running():
            await until(lambda: here.reports)
            here.api.now += HOUR
            here.api.good.clear()
            with pytest.raises(KubeError, match="401"):
                await here.client.get("/api/v1/pods")
            assert "own/token is rejected by the API server (401); the seed" in here.renewer.problem()
            await until(lambda: not here.reports[-1][0])
            here.seed(here.api.give(HOUR))
            await until(lambda: here.reports[-1][0])
            assert here.own in here.api.good


async def test_a_rejected_token_gives_way_to_the_other_within_the_same_request(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        here.seed(here.api.give(HOUR))
        here.api.now += 1
        here.files.own.write_text(jwt(here.api.now, here.api.now + WEEK, jti="of another cluster"))
        async with here.running():
            assert (await here.client.get("/api/v1/pods"))["items"] == []
            await until(lambda: here.own in here.api.good)


async def test_a_passing_401_is_forgotten(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        own = here.api.give(WEEK)
        here.files.own.write_text(own)
        async with here.running():
            await until(lambda: here.reports)
            here.api.good.clear()
            here.api.faults = [fail(403, "Forbidden", "no right to tokens")]
            with pytest.raises(KubeError, match="401"):
                await here.client.get("/api/v1/pods")
            assert "is rejected" in here.renewer.problem()
            here.api.good.add(own)
            here.api.now += 20
            await until(lambda: here.renewer.problem() == "")


async def test_a_late_401_to_an_old_token_says_nothing_about_the_new_one(tmp_path: Path) -> None:
    async with world(tmp_path) as here:
        seed = here.seed(here.api.give(HOUR))
        async with here.running():
            await until(lambda: here.in_use == here.own != "")
            here.renewer.unauthorized(f"Bearer {seed}")
            assert (here.in_use, here.renewer.problem()) == (here.own, "")


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({}, "an object without status.token"),
        ({"status": {"token": "x"}}, "1 characters that are not a token"),
        (
            {"status": {"token": jwt(0, 1)}},
            "a token that ended at 1970-01-01T00:00:01Z; expected one for the future: compare this host's clock",
        ),
    ],
)
async def test_an_answer_that_is_no_token(tmp_path: Path, answer: dict[str, Any], said: str) -> None:
    async def odd(_: web.Request) -> web.StreamResponse:
        return web.json_response(answer, status=201)

    async with world(tmp_path) as here:
        seed = here.seed(here.api.give(HOUR))
        here.api.faults = [odd]
        async with here.running():
            await until(lambda: here.reports)
            assert said in here.reports[0][1]
            assert (here.in_use, here.own) == (seed, "")


def test_no_token_at_all(tmp_path: Path) -> None:
    renewer = TokenRenewer(TokenFiles(tmp_path / "seed", tmp_path / "own", WEEK))
    assert renewer.authorization() is None
    assert f"{tmp_path}/own is missing; the seed {tmp_path}/seed is missing" in renewer.problem()


def test_the_files_of_a_token() -> None:
    assert TokenFiles.of(ExtenderConfig()) is None
    own = ExtenderConfig(seed_token_file=Path("/s"), token_file=Path("/t"), token_seconds=600)
    assert TokenFiles.of(own) == TokenFiles(Path("/s"), Path("/t"), 600)
