# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The screen of a run over many hosts: a line for each batch and for what hosts have in common, and none for what is as it was.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from ..module_utils._formats.finding import few

_NAMES, _WORDS = 6, 600
#: The kinds of results that are shown, in the order in which they are.
CHANGED, WARNED, FAILED, UNREACHABLE = "changed", "warning", "FAILED", "UNREACHABLE"
_BAD = (FAILED, UNREACHABLE)


@dataclass
class RunSum:
    """Hosts of the whole run, those that were changed, and bad: host to the task that failed, or at which it was out of reach."""

    seen: set[str] = field(default_factory=set)
    changed: set[str] = field(default_factory=set)
    bad: dict[str, str] = field(default_factory=dict)


class Screen:
    """say: prints a line of a kind, "" for a heading. clock: seconds, monotonic."""

    def __init__(self, say: Callable[[str, str], None], clock: Callable[[], float]) -> None:
        self._say, self._clock = say, clock
        self._began = clock()
        self._play: tuple[str, tuple[str, ...]] | None = None
        self._play_began = self._began
        self._batches = self._done = 0
        self._task = ""
        self._order: dict[str, int] = {}
        self._found: dict[tuple[str, str], list[str]] = {}
        self.outcome = RunSum()

    def play(self, name: str, batch: Sequence[str], hosts: Sequence[str]) -> None:
        """A play begins for a batch of its hosts."""
        self.flush()
        if self._play != (name, tuple(hosts)):
            self._play, self._play_began, self._batches, self._done = (name, tuple(hosts)), self._clock(), 0, 0
        self._order.update((host, place) for place, host in enumerate(hosts))
        self._batches += 1
        line = name
        if len(batch) < len(hosts):
            first = self._done + 1
            line += f": batch {self._batches}, hosts {first} to {self._done + len(batch)} of {len(hosts)}{self._left(len(hosts))}"
        elif len(hosts) > 1:
            line += f": {len(hosts)} hosts"
        self._done += len(batch)
        self._say("", f"{duration(self._clock() - self._began)}  {line}")

    def _left(self, hosts: int) -> str:
        """The time that the rest of the play takes at the pace of its first batches."""
        if not self._done:
            return ""
        left = (self._clock() - self._play_began) / self._done * (hosts - self._done)
        return f", about {duration(left)} left"

    def task(self, name: str) -> None:
        """A task begins; what the one before it did is shown."""
        self.flush()
        self._task = name

    def result(self, host: str, kind: str = "", words: str = "", warnings: Sequence[str] = ()) -> None:
        """The result of the present task on a host. kind: "" for one that is not shown."""
        self.outcome.seen.add(host)
        if kind == CHANGED:
            self.outcome.changed.add(host)
        if kind in _BAD:
            self.outcome.bad.setdefault(host, self._task)
        if kind:
            self._found.setdefault((kind, shown(words)), []).append(host)
        for warning in warnings:
            self._found.setdefault((WARNED, shown(warning)), []).append(host)

    def flush(self) -> None:
        """Show what is known of the present task: hosts of which the same is to be said have one line."""
        found, self._found = self._found, {}
        for kind in (CHANGED, WARNED, *_BAD):
            for (which, words), hosts in found.items():
                if which == kind:
                    self._say(kind, f"  {kind}  {self._task}: {self._names(hosts)}{f': {words}' if words else ''}")

    def _names(self, hosts: Collection[str]) -> str:
        """In the order of the inventory; hosts end a task in any."""
        return few(sorted(hosts, key=lambda host: (self._order.get(host, -1), host)), _NAMES)

    def end(self) -> None:
        """The sum of the run."""
        self.flush()
        outcome = self.outcome
        fine = outcome.seen - set(outcome.bad)
        parts = [f"{len(fine - outcome.changed)} of {len(outcome.seen)} hosts as they were", f"{len(fine & outcome.changed)} changed"]
        self._say("", f"{duration(self._clock() - self._began)}  {', '.join(parts)}, {len(outcome.bad)} not done")
        for task, hosts in _by_task(outcome.bad).items():
            self._say(FAILED, f"  not done  {task}: {self._names(hosts)}")


def _by_task(bad: Mapping[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for host, task in bad.items():
        found.setdefault(task, []).append(host)
    return found


def duration(seconds: float) -> str:
    """Minutes and seconds, such as 3:07."""
    minutes, rest = divmod(max(0, round(seconds)), 60)
    return f"{minutes}:{rest:02}"


def shown(words: str) -> str:
    """Words of a host or a module: without control characters, cut to a bound."""
    text = "".join(letter if letter.isprintable() or letter == "\n" else " " for letter in words[: 2 * _WORDS]).strip()
    return text if len(text) <= _WORDS else f"{text[:_WORDS]}…"
