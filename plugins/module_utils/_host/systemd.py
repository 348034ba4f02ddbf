# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The facts that systemd knows of a unit: the one reader of `systemctl show`.

The caller of the command differs (a module, or with a time limit), its output does not.
"""

from __future__ import annotations

import shlex
import time
from typing import Dict, List, Optional

from .command import Run

#: Where an administrator's units are, and ours.
UNITS = "/etc/systemd/system"


def show_command(unit: str, *properties: str, program: str = "systemctl") -> List[str]:
    """The call that asks for these properties of a unit."""
    return [program, "show", unit, f"--property={','.join(properties)}"]


def parsed(printed: str) -> Dict[str, str]:
    """Property to its value."""
    lines = (line.partition("=") for line in printed.splitlines())
    return {key: value for key, equals, value in lines if equals}


def show(run: Run, unit: str, *properties: str) -> Dict[str, str]:
    """The facts that systemd knows of a unit, also of one that there is not; {} where there is no systemd."""
    _status, out, _err = run(show_command(unit, *properties))
    return parsed(out)


def unix_time(monotonic: Optional[str]) -> float:
    """The Unix time of a moment that systemd gives in microseconds since the host's start, as ExecMainStartTimestampMonotonic.

    A busy host may stop this process between two clocks, which would make the moment earlier: the latest of several counts.
    """
    return max(time.time() - time.monotonic() for attempt in range(5)) + int(monotonic or 0) / 1e6


def environment(text: str) -> Dict[str, str]:
    """An environment file, or os-release, which has the same form: KEY=VALUE lines, with quotes."""
    found = {}
    for line in text.splitlines():
        key, equals, value = line.strip().partition("=")
        if equals and not key.startswith(("#", ";")):
            try:
                found[key] = " ".join(shlex.split(value))
            except ValueError:
                found[key] = value.strip("\"'")
    return found
