# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The cluster of the tests with several control planes: a lab instance of its own, installed by site.yml, removed at the end.

GPUSHARE_HA_LAB=NAME uses an instance that is up instead, and leaves it. GPUSHARE_HA_OUT=FILE writes what the kills cost as JSON.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import pytest

from e2e.cluster import Cluster
from ha.burst import Fall, Room
from ha.planes import log_every_answer, until_whole

ORDER = ("test_install", "test_leader_killed", "test_one_down")
Say = Callable[[str], None]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: ORDER.index(item.path.stem))


@pytest.fixture(scope="session")
def say(pytestconfig: pytest.Config) -> Say:
    """Prints a line with the seconds since the start, past pytest's capture."""
    capture = pytestconfig.pluginmanager.getplugin("capturemanager")
    started = time.monotonic()

    def line(text: str) -> None:
        with capture.global_and_fixture_disabled():
            print(f"\n[{time.monotonic() - started:4.0f} s] {text}", flush=True)

    return line


@pytest.fixture(scope="session")
def cluster(say: Say) -> Iterator[Cluster]:
    """Three control planes and two GPU nodes, installed."""
    borrowed = os.environ.get("GPUSHARE_HA_LAB")
    cluster = Cluster(borrowed or "ha")
    try:
        if not borrowed:
            say("up")
            cluster.lab("up", "--control-planes", "3", seconds=1800)
        say("site.yml")
        cluster.playbook(seconds=900)
        log_every_answer(cluster)
        until_whole(cluster)
        say("installed")
        yield cluster
    finally:
        if not borrowed:
            say("down")
            cluster.lab("down", seconds=300)


@pytest.fixture(scope="module")
def room(cluster: Cluster) -> Iterator[Room]:
    """Cards for a burst of pods beside those of the two real nodes."""
    cluster.clear()
    with Room(cluster) as room:
        yield room


@pytest.fixture(scope="module")
def falls(say: Say) -> Iterator[list[Fall]]:
    """What each kill has cost; told at the end."""
    falls: list[Fall] = []
    yield falls
    say("kills of the leader:\n" + "\n".join(map(str, falls)))
    if out := os.environ.get("GPUSHARE_HA_OUT"):
        Path(out).write_text(json.dumps([asdict(fall) for fall in falls], indent=2) + "\n")
