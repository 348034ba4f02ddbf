# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The cluster of the tests with several control planes. GPUSHARE_HA_OUT=FILE writes what the kills cost as JSON."""

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
from labs import THREE_PLANES, Labs

Say = Callable[[str], None]


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
def cluster(labs: Labs) -> Cluster:
    """Three control planes and two GPU nodes, installed."""

    def install(cluster: Cluster) -> None:
        cluster.playbook(seconds=1800)
        log_every_answer(cluster)

    cluster = labs.installed(THREE_PLANES, install)
    until_whole(cluster)
    return cluster


@pytest.fixture(scope="module")
def room(cluster: Cluster) -> Iterator[Room]:
    """GPUs for a burst of pods beside those of the two real nodes."""
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
