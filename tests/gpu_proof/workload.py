# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A program that uses the GPU, as the steps see it: a process that takes one command a line and answers each with one JSON object.

    hold MIB              allocates so much at once                       {"allocated_mib": …, "error": …}
    allocate STEP MOST    allocates until it may not                      {"allocated_mib": …, "error": …}
    managed MIB           writes so much managed memory                   {"allocated_mib": …, "error": …}
    memory                what the driver reports of the GPU's memory     {"free_mib": …, "total_mib": …, "error": …}
    user UID              goes on as this user                            {"error": …}
    kinds                 what it can compute                             {"kinds": […], "framework": …, "error": …}
    work KIND SECONDS     computes                                        {"units": …, "seconds": …, "error": …}
    spin                  computes for seconds, and answers meanwhile       {"error": …}
    fault                 writes to an address that is not its own        {"error": …}

error: the driver's name of it, "" for none. The programs are in programs/; CI has one of its own.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final

START_SECONDS: Final = 60.0
_JOIN: Final = ("sh", "-c", 'echo $$ > "$0" && exec "$@"')


class Program:
    """group: the control group in which it begins, None for this process's own."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], group: Path | None = None) -> None:
        self._errors: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115
        # Not by code between fork and exec: threads of gRPC may hold locks.
        joined = [*_JOIN, str(group / "cgroup.procs")] if group else []
        self._process = subprocess.Popen(
            [*joined, *command],
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
        )
        self._answers: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def lives(self) -> bool:
        return self._process.poll() is None

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._answers.put(line)
        self._answers.put("")

    def send(self, *words: object) -> None:
        """A command whose answer is taken later."""
        with contextlib.suppress(OSError):
            assert self._process.stdin is not None
            self._process.stdin.write(" ".join(map(str, words)) + "\n")
            self._process.stdin.flush()

    def answer(self, seconds: float = START_SECONDS) -> dict[str, Any]:
        """To the oldest command; one with an error if the program ends, or takes longer."""
        try:
            while line := self._answers.get(timeout=seconds):
                with contextlib.suppress(ValueError):
                    found = json.loads(line)
                    if isinstance(found, dict) and "error" in found:
                        return found
            # For whoever asks again.
            self._answers.put("")
            self._process.wait(5)
        except queue.Empty:
            return _failed(f"no answer within {seconds:g} s")
        except subprocess.TimeoutExpired:
            return _failed("it closed its output")
        self._errors.seek(0)
        last = (self._errors.read().strip().splitlines() or ["it printed nothing"])[-1]
        return _failed(f"it ended with {self._process.returncode}: {last[:200]}")

    def ask(self, *words: object, seconds: float = START_SECONDS) -> dict[str, Any]:
        self.send(*words)
        return self.answer(seconds)

    def end(self) -> None:
        """As it wants."""
        with contextlib.suppress(OSError):
            if self._process.stdin:
                self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self.kill()

    def kill(self) -> None:
        """As the kernel does."""
        self._process.kill()
        self._process.wait(10)


def _failed(why: str) -> dict[str, Any]:
    return {"allocated_mib": 0, "units": 0, "seconds": 0.0, "kinds": [], "framework": "", "error": why}


@contextlib.contextmanager
def programs(command: Sequence[str], count: int, environment: Mapping[str, str], groups: Sequence[Path] = ()) -> Iterator[list[Program]]:
    """So many of them, started at once; they end with the block. groups: one for each."""
    started: list[Program] = []
    try:
        for number in range(count):
            started.append(Program(command, environment, groups[number] if groups else None))
        yield started
    finally:
        for one in started:
            with contextlib.suppress(OSError, subprocess.TimeoutExpired):
                one.end()
