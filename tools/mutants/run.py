# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Runs tests on mutated code: one fork of this process each, which has imported everything but the code under test.

A child compiles the mutant in place of its module, and runs pytest in itself, in a folder of its own. Of a file with many mutants the
tests are traced first: then a mutant meets only the tests that come by its lines. The results are the same every time: hypothesis
chooses its examples by the test, and keeps none. What a test starts as another process sees no mutant.
"""

from __future__ import annotations

import gc
import importlib
import importlib.abc
import importlib.machinery
import json
import os
import resource
import select
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any, Final

import hypothesis
import pytest

PASSED: Final = 0
_PLUGINS: Final = ("_hypothesis_pytestplugin", "pytest_timeout")
_MEMORY: Final = 8 << 30


@dataclass(frozen=True)
class Task:
    """What one child runs.

    order: the tests to run, in this order, or None for all of `tests`; path and code: of a mutant; trace: files whose lines are noted.
    """

    tests: tuple[str, ...]
    done: Callable[[Outcome], None]
    path: Path | None = None
    code: Callable[[], CodeType] | None = None
    order: Sequence[str] | None = None
    timeout: float = 600.0
    trace: tuple[Path, ...] = ()


@dataclass
class Outcome:
    exit_code: int
    seconds: float
    timed_out: bool = False
    cpu_seconds: float = 0.0
    failed: str = ""
    durations: dict[str, float] = field(default_factory=dict)
    lines: dict[str, dict[str, list[int]]] = field(default_factory=dict)  # path to test to lines
    modules: list[str] = field(default_factory=list)
    output: str = ""

    @property
    def passed(self) -> bool:
        return self.exit_code == PASSED and not self.timed_out


@dataclass
class _Child:
    task: Task
    pid: int
    pipe: int
    folder: Path
    deadline: float
    started: float
    said: bytes = b""
    timed_out: bool = False


class Workers:
    """Up to `jobs` children at a time; `add` from a task's `done` too."""

    def __init__(self, root: Path, scratch: Path, jobs: int) -> None:
        self._root, self._scratch, self._jobs = root, scratch, jobs
        self._waiting: deque[Task] = deque()
        self._running: dict[int, _Child] = {}
        self._count = 0

    def add(self, tasks: Iterable[Task], *, first: bool = False) -> None:
        for task in tasks:
            if first:
                self._waiting.appendleft(task)
            else:
                self._waiting.append(task)

    def run(self, tick: Callable[[], None]) -> None:
        prepare(self._scratch)
        try:
            while self._waiting or self._running:
                while self._waiting and len(self._running) < self._jobs:
                    self._start(self._waiting.popleft())
                self._wait()
                tick()
        finally:
            for child in self._running.values():
                _kill(child.pid)

    def _start(self, task: Task) -> None:
        self._count += 1
        folder = self._scratch / str(self._count)
        folder.mkdir()
        ours, theirs = os.pipe()
        gc.freeze()  # a child need not look at what it got from here
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            os.close(ours)
            _child(task, self._root, folder, theirs)
        os.close(theirs)
        now = time.monotonic()
        self._running[ours] = _Child(task, pid, ours, folder, now + task.timeout, now)

    def _wait(self) -> None:
        now = time.monotonic()
        until = min((one.deadline for one in self._running.values()), default=now)
        ready, _, _ = select.select(list(self._running), [], [], max(0.0, min(until - now, 1.0)))
        for pipe in ready:
            child = self._running[pipe]
            said = os.read(pipe, 1 << 20)
            child.said += said
            if not said:
                self._ended(child)
        for child in list(self._running.values()):
            if time.monotonic() > child.deadline and not child.timed_out:
                child.timed_out = True
                _kill(child.pid)
                self._ended(child)

    def _ended(self, child: _Child) -> None:
        del self._running[child.pipe]
        os.close(child.pipe)
        _, status = os.waitpid(child.pid, 0)
        _kill(child.pid)  # what its tests have left
        seconds = time.monotonic() - child.started
        outcome = Outcome(-1, seconds, child.timed_out)
        if os.WIFEXITED(status) and not child.timed_out and child.said:
            outcome = Outcome(**json.loads(child.said))
        elif not child.timed_out:
            outcome.failed = f"the process ended with status {status}"
        if child.task.code is None:
            outcome.output = (child.folder / "log").read_text(errors="replace")
        subprocess.run(["rm", "-rf", child.folder], check=False)
        self._preload(outcome.modules)
        child.task.done(outcome)

    def _preload(self, modules: Iterable[str]) -> None:
        """What unmutated tests have imported and is not of this repository: later children have it already."""
        for name in modules:
            # `_asyncio` before `asyncio` is there twice, and knows no current task. Others of this kind come with their modules too.
            if name not in sys.modules and not name.startswith("_"):
                with suppress(Exception):
                    importlib.import_module(name)


def prepare(scratch: Path) -> None:
    """Settings that all children have in common."""
    os.environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
    # A child has another folder, and a process that its test starts must find the same modules, as another user too.
    os.environ["PYTHONPATH"] = os.pathsep.join(map(os.path.abspath, filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))))
    scratch.chmod(0o711)
    os.environ["HYPOTHESIS_STORAGE_DIRECTORY"] = str(scratch / "hypothesis")
    os.environ["ANSIBLE_HOME"] = str(scratch / "ansible")  # Ansible makes a folder there when it is imported
    os.environ.pop("CI", None)
    sys.pycache_prefix = os.environ["PYTHONPYCACHEPREFIX"] = str(scratch / "pycache")
    sys.dont_write_bytecode = False  # there, and read by the next child
    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    hypothesis.settings.register_profile("mutants", derandomize=True, database=None, phases=phases, deadline=None)
    hypothesis.settings.load_profile("mutants")
    for name in _PLUGINS:
        with suppress(ImportError):
            importlib.import_module(name)


def _kill(group: int) -> None:
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(group, signal.SIGKILL)


def _child(task: Task, root: Path, folder: Path, pipe: int) -> None:
    status = 1
    try:
        os.setsid()
        log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        os.chdir(folder)
        os.environ["TMPDIR"] = str(folder)
        outcome = _run(task, root, folder)
        with os.fdopen(pipe, "w") as out:
            json.dump(vars(outcome), out)
        status = 0
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def _run(task: Task, root: Path, folder: Path) -> Outcome:
    if task.code is not None and task.path is not None:
        sys.meta_path.insert(0, _Finder(task.path, task.code()))
    watch = _Watch(task, root)
    files = task.tests if task.order is None else tuple(dict.fromkeys(name.partition("::")[0] for name in task.order))
    arguments = ["-x", "-q", "-o", "addopts=", "--import-mode=importlib", "--assert=plain", "--tb=short"]
    arguments += ["-p", "no:cacheprovider", "--rootdir", str(root), "-c", str(root / "pyproject.toml"), "--basetemp", str(folder / "t")]
    arguments += ["-p", "no:unraisableexception", "-p", "no:threadexception", "-p", "no:faulthandler", "-p", "no:doctest"]
    for name in _PLUGINS:
        arguments += ["-p", name]
    started = time.monotonic()
    if task.trace:
        threading.settrace(watch.called)
        sys.settrace(watch.called)
    code = int(pytest.main([*arguments, *(str(root / file) for file in files)], plugins=[watch]))
    sys.settrace(None)
    used = sum(times[0] + times[1] for times in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))
    outcome = Outcome(code, time.monotonic() - started, cpu_seconds=used, failed=watch.failed, durations=watch.durations)
    if task.code is None:
        outcome.lines = {path: {test: sorted(lines) for test, lines in of_path.items()} for path, of_path in watch.lines.items()}
        outcome.modules = [name for name, module in sorted(sys.modules.items()) if not _is_ours(module, root)]
    return outcome


def _is_ours(module: ModuleType, root: Path) -> bool:
    file = getattr(module, "__file__", None)
    if file is None:
        return getattr(module, "__spec__", None) is None or module.__spec__.origin != "built-in"  # type: ignore[union-attr]
    return root in Path(file).parents and root / ".venv" not in Path(file).parents


class _Watch:
    """Plugin of pytest: which tests run and in which order, how long they took, which failed, and which lines of the file they met."""

    def __init__(self, task: Task, root: Path) -> None:
        self._root, self._order, self._trace = root, task.order, task.trace
        self._names: dict[str, str] = {}  # a file as its code names it, to the path in the task
        self._paths = {os.path.realpath(path): str(path) for path in task.trace}
        self._now = ""
        self.failed = ""
        self.durations: dict[str, float] = {}
        self.lines: dict[str, dict[str, set[int]]] = {str(path): {} for path in task.trace}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        if self._order is not None:
            place = {name: index for index, name in enumerate(self._order)}
            items[:] = sorted((one for one in items if one.nodeid in place), key=lambda one: place[one.nodeid])

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        if self._trace:
            _forget(self._root)
            self._now = item.nodeid.partition("::")[0]

    def pytest_runtest_call(self, item: pytest.Item) -> None:
        self._now = item.nodeid

    def pytest_runtest_teardown(self, item: pytest.Item) -> None:
        self._now = item.nodeid.partition("::")[0]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.durations[report.nodeid] = self.durations.get(report.nodeid, 0.0) + report.duration
        if report.failed:
            self.failed = self.failed or report.nodeid

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self.failed = self.failed or report.nodeid

    def called(self, frame: FrameType, event: str, argument: Any) -> Any:
        name = frame.f_code.co_filename
        if name not in self._names:
            self._names[name] = self._paths.get(os.path.realpath(name), "")
        if not self._names[name]:
            return None
        lines = self.lines[self._names[name]].setdefault(self._now, set())
        lines.add(frame.f_lineno)

        def line(inner: FrameType, event: str, argument: Any) -> Any:
            lines.add(inner.f_lineno)
            return line

        return line


def _forget(root: Path) -> None:
    """Empty what functions have remembered: else only the first test would come by their lines."""
    for module in list(sys.modules.values()):
        if _is_ours(module, root):
            for value in list(vars(module).values()):
                if hasattr(value, "cache_clear") and callable(value):
                    with suppress(Exception):
                        value.cache_clear()


class _Finder(importlib.abc.MetaPathFinder):
    """Finds the mutated file as Python would, with other code."""

    def __init__(self, path: Path, code: CodeType) -> None:
        self._path, self._code = os.path.realpath(path), code

    def find_spec(self, name: str, path: Sequence[str] | None, target: ModuleType | None = None) -> importlib.machinery.ModuleSpec | None:
        if name.rpartition(".")[2] != Path(self._path).stem and Path(self._path).stem != "__init__":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.origin is None or os.path.realpath(spec.origin) != self._path:
            return None
        spec.loader = _Loader(name, spec.origin, self._code)
        return spec


class _Loader(importlib.machinery.SourceFileLoader):
    def __init__(self, name: str, path: str, code: CodeType) -> None:
        super().__init__(name, path)
        self._mutated = code

    def get_code(self, fullname: str) -> CodeType:
        return self._mutated
