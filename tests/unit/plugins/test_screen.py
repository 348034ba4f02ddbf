# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The screen of a run over many hosts, without Ansible."""

from __future__ import annotations

from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._screen import CHANGED, FAILED, UNREACHABLE, Screen, duration

from unit.golden import Golden

HOSTS = [f"gpu{number:03}" for number in range(1, 201)]


class World:
    def __init__(self) -> None:
        self.now, self.lines = 0.0, []  # type: float, list[str]
        self.screen = Screen(lambda kind, line: self.lines.append(line), lambda: self.now)


def test_the_time_left_is_that_of_the_hosts_that_are_left() -> None:
    world = World()
    world.screen.play("Configure", HOSTS[:50], HOSTS)
    world.now = 100.0
    world.screen.play("Configure", HOSTS[50:100], HOSTS)
    world.now = 300.0
    world.screen.play("Configure", HOSTS[100:], HOSTS)
    world.screen.play("Verify", HOSTS, HOSTS)
    assert world.lines == [
        "0:00  Configure: batch 1, hosts 1 to 50 of 200",
        "1:40  Configure: batch 2, hosts 51 to 100 of 200, about 5:00 left",
        "5:00  Configure: batch 3, hosts 101 to 200 of 200, about 5:00 left",
        "5:00  Verify: 200 hosts",
    ]


def test_two_hundred_hosts_need_one_line_for_what_they_share_and_each_cause_its_own(golden: Golden) -> None:
    world = World()
    world.screen.task("Restart")
    for number, host in enumerate(HOSTS):
        kind, words = (UNREACHABLE, "no route") if number == 7 else (FAILED, f"disk {number}") if number in (3, 4) else (CHANGED, "")
        world.screen.result(host, kind, words, ["old"] if number % 100 == 0 else [])
    world.screen.task("Check")
    for host in HOSTS[:3]:
        world.screen.result(host)
    world.screen.end()
    golden("\n".join(world.lines))


def test_words_of_a_host_are_bounded_and_cannot_command_the_terminal() -> None:
    world = World()
    world.screen.task("Read")
    world.screen.result("a", FAILED, "\x1b[2J" + 10_000 * "x")
    world.screen.end()
    assert "\x1b" not in world.lines[0]
    assert len(world.lines[0]) < 700


def test_durations() -> None:
    assert [duration(seconds) for seconds in (-1, 0, 59.6, 3600)] == ["0:00", "0:00", "1:00", "60:00"]
