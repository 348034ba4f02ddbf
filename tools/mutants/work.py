# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""From what was asked to the verdicts: which mutants, their tests as they are, then each mutant."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from operator import add
from pathlib import Path
from types import CodeType
from typing import Final

from mutants.generate import Mutant, Source, required_arguments
from mutants.given import read_given
from mutants.notes import Note, read_notes
from mutants.run import Outcome, Task, Workers
from mutants.table import EQUIVALENT, KILLED, SURVIVED, TIMEOUT, Verdict, per_file, score, survivors
from mutants.targets import ROOT, NearAndFar, code_of_ours, is_named_after, targets

VERDICTS: Final = "verdicts.json"
_WORTH_A_TRACE: Final = 8  # mutants of one file
_LEAST_TIMEOUT: Final = 10.0
_FIRST: Final = 3  # test files
_SAY_EVERY: Final = 15.0


@dataclass(frozen=True)
class Asked:
    files: tuple[str, ...]
    sample: int | None = None
    seed: int = 1
    given: str | None = None


@dataclass(frozen=True)
class Case:
    """A mutant and how to get its code."""

    mutant: Mutant
    path: Path
    code: Callable[[], CodeType]
    is_equivalent: bool = False


@dataclass
class Report:
    verdicts: list[Verdict] = field(default_factory=list)
    seconds: dict[str, tuple[float, float]] = field(default_factory=dict)
    total: tuple[float, ...] = (0.0, 0.0)  # files may share their tests
    failed: dict[str, str] = field(default_factory=dict)
    lost: list[str] = field(default_factory=list)

    @property
    def sound(self) -> bool:
        return not self.failed and not self.lost

    @property
    def score(self) -> float:
        return score(self.verdicts)

    def save(self, path: Path) -> None:
        path.write_text(json.dumps([asdict(one) for one in self.verdicts], indent=1) + "\n")

    def words(self, with_survivors: bool) -> str:
        parts = [per_file(self.verdicts, self.seconds, self.total)]
        if with_survivors:
            parts.insert(0, survivors(self.verdicts))
        parts += [f"{tests} fail without a mutant\n{output}" for tests, output in self.failed.items()]
        parts += [f"not found in the sources: {line}" for line in self.lost]
        return "\n\n".join(parts)


def sources(files: Iterable[str], root: Path = ROOT, ours: Sequence[Path] | None = None) -> list[Source]:
    required = required_arguments(code_of_ours() if ours is None else ours)
    return [Source(file, root / file, required) for file in files]


def cases(found: Sequence[Source], asked: Asked, notes: Iterable[Note]) -> tuple[list[Case], list[str]]:
    """What to run, and lines of a given table that match nothing."""
    keys = {note.key for note in notes}
    if asked.given is not None:
        given, lost = read_given(asked.given, found)
        equal = {source.dump(mutant) for source in found for mutant in source.mutants if mutant.key in keys}
        return [Case(one.mutant, one.path, one.code, one.dump in equal) for one in given], lost
    by_file = {source.file: [_case(source, mutant, keys) for mutant in source.mutants] for source in found}
    if asked.sample is None:
        return [case for of_file in by_file.values() for case in of_file], []
    for file, of_file in by_file.items():
        random.Random(f"{asked.seed} {file}").shuffle(of_file)
    # A sample that is smaller than a round must not be of the first folders alone.
    order = list(by_file.values())
    random.Random(asked.seed).shuffle(order)
    taken: list[Case] = []
    for place in range(max((len(of_file) for of_file in order), default=0)):
        taken += [of_file[place] for of_file in order if place < len(of_file)]
    return taken[: asked.sample], []


def _case(source: Source, mutant: Mutant, equivalent: set[tuple[str, str, str, str]]) -> Case:
    return Case(mutant, source.path, lambda: source.mutated(mutant), mutant.key in equivalent)


def chosen(asked: Asked) -> list[Mutant]:
    return [case.mutant for case in cases(sources(asked.files), asked, read_notes())[0]]


def run(asked: Asked, scratch: Path, jobs: int) -> Report:
    found, lost = cases(sources(asked.files), asked, read_notes())
    report = execute(found, targets(), ROOT, scratch, jobs)
    report.lost = lost
    return report


def execute(found: Sequence[Case], targets: Mapping[str, NearAndFar], root: Path, scratch: Path, jobs: int) -> Report:
    """Every case's verdict; the tests run without a mutant first."""
    report = Report()
    report.verdicts = [Verdict(case.mutant, EQUIVALENT) for case in found if case.is_equivalent]
    to_run = [case for case in found if not case.is_equivalent]
    workers = Workers(root, scratch, jobs)
    planner = _Planner(to_run, targets, workers, report)
    planner.begin()
    workers.run(_Teller(report, len(found), len({case.mutant.file for case in to_run}), scratch).tick)
    report.save(scratch / VERDICTS)
    return report


class _Planner:
    """The runs of each test file as it is, traced where that pays, and those of the mutants that wait for it.

    The tests near a source are run first. The far ones are run where a mutant of it lives.
    """

    def __init__(self, found: Sequence[Case], targets: Mapping[str, NearAndFar], workers: Workers, report: Report) -> None:
        self._workers, self._report, self._targets = workers, report, targets
        self._cases: dict[str, list[Case]] = {}
        for case in found:
            self._cases.setdefault(case.mutant.file, []).append(case)
        self._sources: dict[str, list[str]] = {}
        for source in self._cases:
            for test in targets[source].all:
                self._sources.setdefault(test, []).append(source)
        self._plain: dict[str, Outcome] = {}
        self._traced: dict[str, Outcome] = {}
        self._asked: set[str] = set()
        self._known: set[str] = set()
        self._waiting: list[tuple[set[str], Callable[[], None]]] = []

    def begin(self) -> None:
        for source in self._cases:
            self._after(self._targets[source].near, partial(self._mutants, source))

    def _after(self, tests: Collection[str], then: Callable[[], None]) -> None:
        """Call it when these have run without a mutant."""
        missing = set(tests) - self._known
        if not missing:
            then()
            return
        self._waiting.append((missing, then))
        self._workers.add([Task((test,), partial(self._have_plain, test)) for test in tests if test not in self._asked])
        self._asked.update(tests)

    def _have_plain(self, test: str, outcome: Outcome) -> None:
        self._plain[test] = outcome
        self._report.total = tuple(map(add, self._report.total, (outcome.seconds, outcome.cpu_seconds)))
        sources = self._sources[test]
        if not outcome.passed:
            self._report.failed[test] = outcome.output[-3000:]
        elif sum(len(self._cases[source]) for source in sources) >= _WORTH_A_TRACE:
            paths = tuple(sorted({case.path for source in sources for case in self._cases[source]}))
            self._workers.add([Task((test,), partial(self._have_trace, test), trace=paths)], first=True)
        else:
            self._ended(test)

    def _have_trace(self, test: str, outcome: Outcome) -> None:
        if outcome.passed:
            self._traced[test] = outcome
        self._ended(test)

    def _ended(self, test: str) -> None:
        self._known.add(test)
        for missing, _ in self._waiting:
            missing.discard(test)
        ready = [then for missing, then in self._waiting if not missing]
        self._waiting = [one for one in self._waiting if one[0]]
        for then in ready:
            then()

    def _mutants(self, source: str) -> None:
        self._report.seconds[source] = self._times(self._targets[source].near)
        for case in self._cases[source]:
            self._hunt(case, self._targets[source].near, partial(self._far, case))

    def _far(self, case: Case, met: bool) -> None:
        """The near tests let it live, or, where it is not `met`, none of them comes by."""
        source, far = case.mutant.file, self._targets[case.mutant.file].far

        def hunt() -> None:
            self._report.seconds[source] = self._times(self._targets[source].all)
            self._hunt(case, far, lambda again: self._lives(case, met or again))

        self._after(far, hunt)

    def _lives(self, case: Case, met: bool) -> None:
        self._report.verdicts.append(Verdict(case.mutant, SURVIVED, "" if met else "no test comes by"))

    def _hunt(self, case: Case, tests: Sequence[str], lives: Callable[[bool], None]) -> None:
        files = self._order(case, tests)
        if not files:
            lives(False)
            return
        timeout = max(_LEAST_TIMEOUT, 5 * self._times(tests)[0])
        _Hunt(case, [files[:_FIRST], files[_FIRST:]], timeout, self._workers, self._report, partial(lives, True)).begin()

    def _times(self, tests: Iterable[str]) -> tuple[float, float]:
        plain = [self._plain[test] for test in tests]
        return sum(outcome.seconds for outcome in plain), sum(outcome.cpu_seconds for outcome in plain)

    def _order(self, case: Case, tests: Sequence[str]) -> list[list[str]]:
        """The tests that can tell, file by file: those of the source's own name first, then the fastest; the fastest test first."""
        chosen = {test: names for test in tests if (names := self._coming_by(test, case))}
        times = {test: self._plain[test].durations for test in chosen}
        files = sorted(
            chosen, key=lambda test: (not is_named_after(test, case.mutant.file), sum(times[test][name] for name in chosen[test]))
        )
        return [sorted(chosen[test], key=times[test].__getitem__) for test in files]

    def _coming_by(self, test: str, case: Case) -> list[str]:
        """The tests of a file that come by the lines of a mutant; all of them where that is not known."""
        names = list(self._plain[test].durations)
        if test not in self._traced:
            return names
        meant = set(range(case.mutant.line, case.mutant.last_line + 1))
        near = {name for name, lines in self._traced[test].lines.get(str(case.path), {}).items() if meant.intersection(lines)}
        return names if {"", test} & near else [name for name in names if name in near]


@dataclass
class _Hunt:
    """The runs of one mutant: pytest imports all files of a run before the first test, so most mutants are spared all but a few."""

    case: Case
    stages: list[list[list[str]]]
    timeout: float
    workers: Workers
    report: Report
    lives: Callable[[], None]

    def begin(self) -> None:
        files, *self.stages = self.stages
        order = [name for names in files for name in names]
        tests = tuple(names[0].partition("::")[0] for names in files)
        self.workers.add([Task(tests, self._ended, self.case.path, self.case.code, order, self.timeout)], first=True)

    def _ended(self, outcome: Outcome) -> None:
        if not outcome.passed:
            self.report.verdicts.append(Verdict(self.case.mutant, TIMEOUT if outcome.timed_out else KILLED, outcome.failed))
        elif any(self.stages):
            self.begin()
        else:
            self.lives()


class _Teller:
    def __init__(self, report: Report, count: int, files: int, scratch: Path) -> None:
        self._report, self._count, self._files, self._scratch = report, count, files, scratch
        self._began = self._said = time.monotonic()

    def tick(self) -> None:
        now = time.monotonic()
        if now - self._said >= _SAY_EVERY:
            self._said = now
            self._report.save(self._scratch / VERDICTS)
            done, alive = len(self._report.verdicts), sum(one.fate == SURVIVED for one in self._report.verdicts)
            words = f"{now - self._began:.0f} s: {done} of {self._count} mutants, {alive} survived"
            if len(self._report.seconds) < self._files:
                words += f"; first without one: the tests of {len(self._report.seconds)} of {self._files} files"
            print(words, flush=True)
