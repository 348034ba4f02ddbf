# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Whatever comes, and however many at once: no GPU is over-booked, no container is without its limit, stuck, or on a wrong GPU.

The model is storm/play.py. GPUSHARE_FULL=1: 22 worlds instead of 3.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Set
from pathlib import Path
from typing import Any

import pytest

from unit.runtime.device_plugin.storm import plugin as of_plugin
from unit.runtime.device_plugin.storm.play import play
from unit.runtime.device_plugin.storm.plugin import Plugin
from unit.runtime.device_plugin.storm.troubles import FROZEN
from unit.runtime.device_plugin.storm.world import World

TESTS = Path(__file__).parents[3]
WORLDS = 22 if os.environ.get("GPUSHARE_FULL") == "1" else 3
# A world takes 4 seconds of CPU. What a test waits for is the machine's load: the limit is for a world that does not end.
pytestmark = pytest.mark.timeout(600 * WORLDS)


def test_nothing_goes_wrong_in_any_of_the_worlds(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = tmp_path / "found.json"
    # The order of Python's sets is part of the course of events.
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-m", "unit.runtime.device_plugin.storm", "1", str(WORLDS), "--json", str(found)]
    ended = subprocess.run(command, cwd=TESTS, env=environment, capture_output=True, text=True)
    with capsys.disabled():
        print("\n" + ended.stdout)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    counts = json.loads(found.read_text())
    assert counts["faults"] == {}
    # What was put to the test.
    assert counts["admitted"] >= 100 * WORLDS
    assert counts["starts"] >= 130 * WORLDS
    assert min(counts[name] for name in ("crash_all", "lost_checkpoint", "plugin_restart", "kubelet_restart", "lists", "resize")) >= WORLDS
    # kubelet does not bear two requests at once. A resize without a request, while the plugin waits for others, nobody tells it. So it
    # dies in every second world; without turns 4 times in the first three.
    assert counts.get("kubelet died", 0) <= WORLDS


def test_a_kubelet_that_is_frozen_now_and_then_goes_on_with_the_plugin() -> None:
    world = play(1, troubles=FROZEN)
    assert (world.faults, world.counts["already connected"]) == ([], 0)
    assert world.counts["asked while frozen"] >= 10
    assert is_registered(world)


def is_registered(world: World) -> bool:
    """Whether kubelet asks the process that runs when all is quiet, for both resources."""
    assert world.kubelet is not None
    return [plugin is world.plugin for plugin, _ in world.kubelet.endpoints.values()] == [True, True]


class OneSocket(Plugin):
    """Each registration has the same socket."""

    def _new_socket(self, resource: str) -> str:
        return resource


def test_the_check_notices_sockets_that_registrations_share() -> None:
    world = play(1, troubles=FROZEN, make_plugin=OneSocket)
    assert world.counts["already connected"] > 100
    assert not is_registered(world)


class Forgetful(Plugin):
    """Without a look at the processes."""

    def __init__(self, world: World) -> None:
        live, world.live = world.live, self._none  # type: ignore[method-assign]
        super().__init__(world)
        world.live = live  # type: ignore[method-assign]

    def _none(self, uids: Set[str]) -> set[str]:
        return set()


def test_the_check_notices_a_plugin_that_forgets_processes() -> None:
    # In this world a pod that was deleted by force keeps its memory while others are admitted.
    assert any(fault.startswith("OVER") for seed in (12, 15, 18) for fault in play(seed, make_plugin=Forgetful).faults)


class Unlimited(Plugin):
    """Without a limit before a start."""

    def __init__(self, world: World) -> None:
        super().__init__(world)

        async def nothing(*_: Any) -> None: ...

        for service in self.services.values():
            service._before_start = nothing


def test_the_check_notices_a_plugin_that_does_not_limit_before_a_start() -> None:
    assert any(fault.startswith("LIMIT") for seed in range(4) for fault in play(seed, make_plugin=Unlimited).faults)


def test_the_check_notices_what_no_annotation_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(of_plugin.Assigner, "_due", lambda *_: {})
    assert any(fault.startswith("GPU") for seed in range(3) for fault in play(seed).faults)
