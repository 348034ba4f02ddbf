# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""From what was asked to the verdicts: which mutants, their tests as they are, then each mutant."""

from __future__ import annotations

import json
import random
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from operator import add
from pathlib import Path
from types import CodeType
from typing import Final

from mutants.generate import Mutant, Source, required_arguments
from mutants.given import read_given
from mutants.notes import Note, read_notes
from mutants.run import Outcome, Task, Workers
from mutants.table import EQUIVALENT, KILLED, SURVIVED, TIMEOUT, Verdict, per_file, score, survivors
from mutants.targets import ROOT, TARGETS, code_of_ours

VERDICTS: Final = "verdicts.json"
_WORTH_A_TRACE: Final = 8  # mutants of one file
_LEAST_TIMEOUT: Final = 10.0
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
    taken: list[Case] = []
    for place in range(max((len(of_file) for of_file in by_file.values()), default=0)):
        taken += [of_file[place] for of_file in by_file.values() if place < len(of_file)]
    return taken[: asked.sample], []


def _case(source: Source, mutant: Mutant, equivalent: set[tuple[str, str, str, str]]) -> Case:
    return Case(mutant, source.path, lambda: source.mutated(mutant), mutant.key in equivalent)


def chosen(asked: Asked) -> list[Mutant]:
    return [case.mutant for case in cases(sources(asked.files), asked, read_notes())[0]]


def run(asked: Asked, scratch: Path, jobs: int) -> Report:
    found, lost = cases(sources(asked.files), asked, read_notes())
    report = execute(found, TARGETS, ROOT, scratch, jobs)
    report.lost = lost
    return report


def execute(found: Sequence[Case], targets: Mapping[str, tuple[str, ...]], root: Path, scratch: Path, jobs: int) -> Report:
    """Every case's verdict; the tests of a source run without a mutant first."""
    report = Report()
    report.verdicts = [Verdict(case.mutant, EQUIVALENT) for case in found if case.is_equivalent]
    to_run = [case for case in found if not case.is_equivalent]
    workers = Workers(root, scratch, jobs)
    groups: dict[tuple[str, ...], list[Case]] = {}
    for case in to_run:
        groups.setdefault(targets[case.mutant.file], []).append(case)
    for tests, of_tests in groups.items():
        _Group(tests, of_tests, workers, report).begin()
    workers.run(_Teller(report, len(found), len({case.mutant.file for case in to_run}), scratch).tick)
    report.save(scratch / VERDICTS)
    return report


class _Group:
    """The runs of the sources that have the same tests: as they are, traced where that pays, then every mutant."""

    def __init__(self, tests: tuple[str, ...], found: Sequence[Case], workers: Workers, report: Report) -> None:
        self._tests, self._cases, self._workers, self._report = tests, found, workers, report
        self._plain = Outcome(0, 0.0)

    def begin(self) -> None:
        self._workers.add([Task(self._tests, self._have_plain)])

    def _have_plain(self, outcome: Outcome) -> None:
        self._plain = outcome
        for file in {case.mutant.file for case in self._cases}:
            self._report.seconds[file] = (outcome.seconds, outcome.cpu_seconds)
        self._report.total = tuple(map(add, self._report.total, (outcome.seconds, outcome.cpu_seconds)))
        if not outcome.passed:
            self._report.failed[" ".join(self._tests)] = outcome.output[-3000:]
        elif len(self._cases) >= _WORTH_A_TRACE:
            paths = tuple(sorted({case.path for case in self._cases}))
            self._workers.add([Task(self._tests, self._have_trace, trace=paths)], first=True)
        else:
            self._mutants({})

    def _have_trace(self, outcome: Outcome) -> None:
        self._mutants(outcome.lines if outcome.passed else {})

    def _mutants(self, lines: Mapping[str, Mapping[str, Sequence[int]]]) -> None:
        sets = {path: {test: set(of_test) for test, of_test in of_path.items()} for path, of_path in lines.items()}
        timeout = max(_LEAST_TIMEOUT, 5 * self._plain.seconds)
        for case in self._cases:
            order = self._order(case.mutant, sets.get(str(case.path)))
            if not order:
                self._report.verdicts.append(Verdict(case.mutant, SURVIVED, "no test comes by"))
                continue
            done = _Done(self._report, case.mutant)
            self._workers.add([Task(self._tests, done, case.path, case.code, order, timeout)])

    def _order(self, mutant: Mutant, lines: Mapping[str, set[int]] | None) -> list[str]:
        """The tests that can tell, those of the fastest file first, and the fastest first among them."""
        times = self._plain.durations
        tests = list(times)
        if lines is not None:
            meant = set(range(mutant.line, mutant.last_line + 1))
            near = {test for test, of_test in lines.items() if of_test & meant}
            if "" not in near:
                tests = [test for test in tests if test in near or test.partition("::")[0] in near]
        of_file: dict[str, float] = {}
        for test in tests:
            of_file[test.partition("::")[0]] = of_file.get(test.partition("::")[0], 0.0) + times[test]
        return sorted(tests, key=lambda test: (of_file[test.partition("::")[0]], test.partition("::")[0], times[test]))


@dataclass(frozen=True)
class _Done:
    report: Report
    mutant: Mutant

    def __call__(self, outcome: Outcome) -> None:
        fate = TIMEOUT if outcome.timed_out else SURVIVED if outcome.passed else KILLED
        self.report.verdicts.append(Verdict(self.mutant, fate, outcome.failed))


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
