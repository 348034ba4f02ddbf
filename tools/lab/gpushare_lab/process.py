# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Progress lines, child processes and waiting, with errors that say what to look at."""

from __future__ import annotations

import contextlib
import itertools
import os
import shlex
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any, TypeVar

T = TypeVar("T")

_STARTED = time.monotonic()
_PRINTING = threading.Lock()
_SHORT = 100
_CHILDREN: set[subprocess.Popen[bytes]] = set()


class LabError(Exception):
    """What was found, what was expected, what to do: printed to the user as it is."""


class Steps:
    """What is under way in each thread, so that it can be named when nothing else has been said for a while.

    ``clock`` gives seconds; a line is due ``every_s`` after the last one.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, every_s: float = 20.0) -> None:
        self._clock, self.every_s = clock, every_s
        self._said = clock()
        self._changing = threading.Lock()
        self._open: dict[int, list[tuple[str, float]]] = {}

    @contextlib.contextmanager
    def under_way(self, what: str) -> Iterator[None]:
        """For the time of a step that may be long."""
        mine, step = threading.get_ident(), (what, self._clock())
        with self._changing:
            self._open.setdefault(mine, []).append(step)
        try:
            yield
        finally:
            with self._changing:
                self._open[mine].pop()
                if not self._open[mine]:
                    del self._open[mine]

    def said(self) -> None:
        """Something was printed."""
        self._said = self._clock()

    def line(self) -> str | None:
        """The line that is due now, None if none is: in each thread the innermost step that is as old as a line may be."""
        now = self._clock()
        if now - self._said < self.every_s:
            return None
        with self._changing:
            steps = [next((step for step in reversed(stack) if now - step[1] >= self.every_s), stack[-1]) for stack in self._open.values()]
        # A thread that only waits for others has nothing to tell beside theirs.
        long = [step for step in steps if now - step[1] >= self.every_s] or steps
        return "; ".join(f"still: {what}, {now - since:.0f} s" for what, since in long) or "still at work"

    def until_due(self) -> float:
        """Seconds until a line may be due."""
        return max(0.0, self._said + self.every_s - self._clock())


_STEPS = Steps()
under_way = _STEPS.under_way


@contextlib.contextmanager
def ticking() -> Iterator[None]:
    """Tell what is under way whenever nothing else has been said for 20 s."""
    ended = threading.Event()

    def tick() -> None:
        while not ended.wait(_STEPS.until_due() or 0.1):
            if line := _STEPS.line():
                say(line)

    _STEPS.said()
    thread = threading.Thread(target=tick, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def say(text: str) -> None:
    """Print one progress line with the seconds since the start, to standard error."""
    with _PRINTING:
        _STEPS.said()
        print(f"[{time.monotonic() - _STARTED:6.1f}s] {text}", file=sys.stderr, flush=True)


def tail(text: str, lines: int = 15) -> str:
    """The last lines of a text, each indented, for quoting in an error."""
    return "\n".join(f"    {line}" for line in text.rstrip().splitlines()[-lines:])


def end_at_signal(number: int, _frame: object) -> None:
    """Signal handler: end the children too, at once; what is half done is for the next `up` or `down`."""
    for child in list(_CHILDREN):
        child.terminate()
    print("lab: interrupted; the next `up` or `down` cleans up", file=sys.stderr)
    os._exit(128 + number)


def _call(argv: Sequence[str], *, data: bytes | None = None, timeout_s: float | None = None, **options: Any) -> tuple[int, bytes, bytes]:
    """Run a child that ends with this process; returns exit code, standard output and standard error."""
    with subprocess.Popen(argv, **options) as child:
        _CHILDREN.add(child)
        try:
            out, err = child.communicate(data, timeout=timeout_s)
        except BaseException:
            child.kill()
            raise
        finally:
            _CHILDREN.discard(child)
    return child.returncode, out or b"", err or b""


def _in_short(argv: Sequence[str]) -> str:
    """A command for a line of progress: what it does, without its options, which are long and may be secret."""
    words = itertools.takewhile(lambda word: not word.startswith("--"), argv[1:])
    text = " ".join(" ".join([Path(argv[0]).name, *words]).split())
    return text if len(text) <= _SHORT else f"{text[: _SHORT - 1]}…"


def run(
    argv: Sequence[str | Path],
    *,
    stdin: str | bytes | IO[bytes] | None = None,
    env: Mapping[str, str] | None = None,
    check: bool = True,
    timeout_s: float | None = 300,
    what: str = "",
) -> subprocess.CompletedProcess[str]:
    """Run a command and return its text output; a failure is a LabError with the command's own words.

    ``stdin`` is text, bytes or an open binary file; without it the command reads nothing. ``what``: how the command is named.
    """
    words = [str(word) for word in argv]
    named = what or shlex.join(words)
    data = stdin.encode() if isinstance(stdin, str) else stdin if isinstance(stdin, bytes) else None
    source = subprocess.DEVNULL if stdin is None else subprocess.PIPE if data is not None else stdin
    pipes: dict[str, Any] = {"stdin": source, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    try:
        with under_way(what or _in_short(words)):
            code, out, err = _call(words, data=data, timeout_s=timeout_s, env=env, **pipes)
    except FileNotFoundError as error:
        raise LabError(f"{words[0]} is not installed: run `lab prepare`, which installs what is missing") from error
    except subprocess.TimeoutExpired as error:
        raise LabError(f"{named}\n  did not end within {timeout_s:g} s") from error
    result = subprocess.CompletedProcess(words, code, out.decode(errors="replace"), err.decode(errors="replace"))
    if check and result.returncode != 0:
        said = tail(result.stderr or result.stdout) or "    (it said nothing)"
        raise LabError(f"{named}\n  ended with exit code {result.returncode} and said:\n{said}")
    return result


def run_logged(what: str, argv: Sequence[str | Path], log: Path, *, env: Mapping[str, str] | None = None, cwd: Path | None = None) -> None:
    """Run a long command with its output in ``log``; a failure quotes the log's end and names the file."""
    with log.open("ab") as sink:
        sink.write(f"+ {shlex.join(map(str, argv))}\n".encode())
        sink.flush()
        pipes: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": sink, "stderr": sink}
        with under_way(f"{what}, see {log}"):
            code, _, _ = _call([str(word) for word in argv], env=env, cwd=cwd, **pipes)
    if code != 0:
        raise LabError(f"{what} failed with exit code {code}; the end of {log}:\n{tail(log.read_text(errors='replace'), 25)}")


def until(
    what: str, deadline_s: float, probe: Callable[[], T | None], *, why_not: Callable[[], str] = lambda: "", every_s: float = 0.2
) -> T:
    """Poll ``probe`` until it returns something true; after the deadline raise with what ``why_not`` tells."""
    end = time.monotonic() + deadline_s
    with under_way(f"waiting for {what}"):
        while True:
            if found := probe():
                return found
            if time.monotonic() >= end:
                raise LabError(f"waited {deadline_s:g} s for: {what}\n{why_not()}".rstrip())
            time.sleep(every_s)


def in_parallel(work: Callable[[T], Any], items: Iterable[T]) -> None:
    """Do the work on every item at once; afterwards raise the first error there was, if any."""
    items = list(items)
    if not items:
        return
    with ThreadPoolExecutor(len(items)) as pool:
        futures = [pool.submit(work, item) for item in items]
    errors = [error for future in futures if (error := future.exception())]
    for error in errors[1:]:
        say(f"also failed: {error}")
    if errors:
        raise errors[0]


def environment(**changes: str | None) -> dict[str, str]:
    """The caller's environment with some variables set, or removed where the value is None."""
    env = dict(os.environ)
    for key, value in changes.items():
        if value is None:
            env.pop(key, None)
        else:
            env[key] = value
    return env
