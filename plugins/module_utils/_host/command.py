# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Runs a command that only answers a question, and never waits longer than it was told.

AnsibleModule.run_command has no time limit, and a command that hangs inside the NVIDIA driver cannot even be killed: it is left behind, and
the answer is that it did not answer.
"""

from __future__ import annotations

import os
import signal
import subprocess
from dataclasses import dataclass
from typing import Callable, List, Optional, Tuple

_AFTER_KILL = 1.0
#: Acts on a host, as AnsibleModule.run_command does: argv to (exit status, standard output, standard error).
Run = Callable[[List[str]], Tuple[int, str, str]]
#: The same, with what it reads from its standard input.
RunWithInput = Callable[[List[str], Optional[str]], Tuple[int, str, str]]


@dataclass(frozen=True)
class Outcome:
    """The answer of a command. status: its exit status, negative for a signal; None if it could not start or did not end.

    timed_out: the seconds that it was given, if it did not end within them.
    """

    argv: List[str]
    status: Optional[int]
    out: str = ""
    err: str = ""
    timed_out: Optional[float] = None

    @property
    def ok(self) -> bool:
        return self.status == 0

    @property
    def words(self) -> str:
        """All that it printed, on one line, without what would not help a reader."""
        return " ".join((self.out + " " + self.err).split())[:500]


#: Asks a question that must be answered within so many seconds.
RunWithin = Callable[[List[str], float], Outcome]


def run(argv: List[str], timeout: float) -> Outcome:
    """Run it with English messages and no input. Never raises, never takes much longer than `timeout` seconds."""
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=dict(os.environ, LC_ALL="C", LANG="C"),
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        return Outcome(argv, None, err=str(error))
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        _kill(process)
        return Outcome(argv, None, timed_out=timeout)
    return Outcome(argv, process.returncode, out.decode("utf-8", "replace"), err.decode("utf-8", "replace"))


def _kill(process: "subprocess.Popen[bytes]") -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=_AFTER_KILL)
    except (OSError, subprocess.TimeoutExpired):
        pass
