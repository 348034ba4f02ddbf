# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What a run of a playbook did, by the lines of tests/callback/gpushare_results.py."""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CALLBACKS = Path(__file__).resolve().parent / "callback"
# Ansible's words, from 2.21 on, for a key of a result that it reserves for itself.
_RESERVED = re.compile(
    r"Value for result key \S+ of type \S+ was \w+|Removed reserved key \S+|Passing `\w+` to `exit_json`|Task result `\w+` was"
)


@dataclass(frozen=True)
class Results:
    """The events of one run, in their order."""

    events: tuple[dict[str, Any], ...]

    @classmethod
    def read(cls, path: Path) -> Results:
        """Of the file that `environment` named. ValueError where the run has not come to its end."""
        events = tuple(json.loads(line) for line in path.read_text().splitlines())
        if not events or events[-1]["event"] != "end":
            raise ValueError(f"{path} has {len(events)} events and no end: the run was broken off, or its callback was not loaded")
        return cls(events)

    @property
    def controller_seconds(self) -> float:
        """CPU seconds of Ansible and what it started on the controller."""
        return float(self.events[-1]["controller_seconds"])

    @property
    def reads(self) -> int:
        """How often all variables of a host were read for a template or plugin of another one."""
        return len(self._of("read"))

    def by_task(self) -> dict[tuple[str, str], float]:
        """CPU seconds on the controller from the start of each task to that of the next, by play and task, those of one name together.

        A process of a host that has ended late counts for the next task.
        """
        starts, found = [e for e in self.events if e["event"] in ("task", "end")], Counter[tuple[str, str]]()
        for one, after in itertools.pairwise(starts):
            found[one["play"], one["task"]] += after["controller_seconds"] - one["controller_seconds"]
        return dict(found)

    def changes(self) -> Counter[tuple[str, str, str]]:
        """(host, play, task) that reported a change, and how often."""
        return Counter((e["host"], e["play"], e["task"]) for e in self._of("result") if e["changed"])

    def modules(self, host: str) -> list[str]:
        """The executions of modules that a host pays for, as "task: module"."""
        return [f"{e['task']}: {e['module']}" for e in self._of("module") if payer(e) == host]

    def tasks(self, host: str) -> list[str]:
        """The results of tasks that a host pays for, skipped ones and includes too, as "task: status"."""
        return [f"{e['task']}: {e['status']}" for e in self._of("result") if payer(e) == host]

    def _of(self, event: str) -> list[dict[str, Any]]:
        return [e for e in self.events if e["event"] == event]


def reserved_keys(output: str) -> list[str]:
    """What Ansible says about keys of results that it reserves, in all that a run of it has printed."""
    return _RESERVED.findall(" ".join(output.split()))


def payer(event: dict[str, Any]) -> str:
    """The host that an event grows with.

    A task that each host delegates runs once per host: that host pays. One that runs once for all is the delegate's.
    """
    return str(event["delegate"] if event["run_once"] and event["delegate"] else event["host"])


def environment(path: Path) -> dict[str, str]:
    """What `ansible-playbook` must have in its environment to write its results to `path`."""
    path.unlink(missing_ok=True)
    return {"ANSIBLE_CALLBACK_PLUGINS": str(CALLBACKS), "ANSIBLE_CALLBACKS_ENABLED": "gpushare_results", "GPUSHARE_RESULTS": str(path)}
