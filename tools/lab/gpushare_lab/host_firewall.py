# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Chains that podman makes for all networks and never removes: the last instance to go does, if the lab brought them."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Sequence
from pathlib import Path

from .process import run, say

#: podman's chain of one network; where there is one, somebody's containers still use the common chains.
_OF_A_NETWORK = re.compile(r"NETAVARK-[0-9A-F]{13}\b")


def podman_rules(saved: str) -> list[list[str]]:
    """``[table, line]`` of each chain and rule in the output of iptables-save that is podman's."""
    found, table = [], ""
    for line in saved.splitlines():
        if line.startswith("*"):
            table = line[1:]
        elif "NETAVARK" in line:
            found.append([table, re.sub(r" \[\d+:\d+\]$", "", line)])
    return found


def removals(before: Sequence[Sequence[str]], now: Sequence[Sequence[str]]) -> list[list[str]]:
    """The iptables calls that remove what came since ``before``: rules first, then chains; none while in use."""
    if any(_OF_A_NETWORK.search(line) for _, line in now):
        return []
    known = {(table, line) for table, line in before}
    added = [(table, line) for table, line in now if (table, line) not in known]
    calls = [["-t", table, "-D", *shlex.split(line)[1:]] for table, line in added if line.startswith("-A ")]
    return calls + [["-t", table, "-X", line[1:].split()[0]] for table, line in added if line.startswith(":")]


def prepare(record: Path) -> None:
    """Write down what there is before the first instance."""
    if not record.exists():
        partial = record.with_suffix(".partial")
        partial.write_text(json.dumps(_present()) + "\n")
        partial.rename(record)


def restore(record: Path) -> None:
    """Remove what podman left because of the lab, and forget the record."""
    if not record.exists():
        return
    calls = removals(json.loads(record.read_text()), _present())
    for call in calls:
        run(["iptables", "-w", *call])
    if calls:
        say("firewall: removed the chains that podman leaves behind")
    record.unlink()


def _present() -> list[list[str]]:
    return podman_rules(run(["iptables-save"]).stdout)
