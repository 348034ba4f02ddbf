# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What a step finds: checks with what was found and expected, measured values, and why something is not possible here.

The file is written anew after every change, so that a step which hangs or crashes leaves what it had found.
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

RAN: Final = "ran"
FAILED: Final = "failed"
NOT_POSSIBLE: Final = "not possible here"
_LONGEST: Final = 2000


class NotPossible(Exception):
    """The machine lacks what this needs; the text says what was found and what is expected."""


@dataclass(frozen=True)
class Check:
    """outcome: RAN where found is as expected, FAILED, or NOT_POSSIBLE with the reason as `found`."""

    name: str
    outcome: str
    found: str
    expected: str = ""


@dataclass
class Findings:
    """Of one step. error: why the step ended early; impossible: why it could not even begin."""

    file: Path | None = None
    checks: list[Check] = field(default_factory=list)
    values: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    impossible: str = ""

    def check(self, name: str, found: object, expected: object, good: bool | None = None) -> bool:
        """good: whether found is as expected; None where the two must be equal."""
        fits = found == expected if good is None else good
        self._add(Check(name, RAN if fits else FAILED, str(found)[:_LONGEST], str(expected)[:_LONGEST]))
        return fits

    def cannot(self, name: str, why: object) -> None:
        """This check is not possible here."""
        self._add(Check(name, NOT_POSSIBLE, str(why)[:_LONGEST]))

    def value(self, name: str, value: Any) -> None:
        self.values[name] = value
        self.save()

    def _add(self, check: Check) -> None:
        self.checks.append(check)
        self.save()

    def save(self) -> None:
        if self.file:
            kept = {
                "checks": [asdict(one) for one in self.checks],
                "values": self.values,
                "error": self.error,
                "impossible": self.impossible,
            }
            write_atomically(self.file, json.dumps(kept))

    @classmethod
    def read(cls, file: Path) -> Findings:
        """Those of a step that has ended, however; empty without any."""
        if not file.exists():
            return cls()
        kept = json.loads(file.read_text())
        checks = [Check(**one) for one in kept["checks"]]
        return cls(None, checks, kept["values"], kept["error"], kept["impossible"])

    @property
    def outcome(self) -> str:
        """FAILED if anything failed; NOT_POSSIBLE if nothing was possible."""
        if self.error or any(one.outcome == FAILED for one in self.checks):
            return FAILED
        return RAN if any(one.outcome == RAN for one in self.checks) else NOT_POSSIBLE


def write_atomically(file: Path, text: str) -> None:
    """A reader sees the file before or after, never half."""
    made = file.with_name(f".{file.name}.{os.getpid()}")
    made.write_text(text)
    made.replace(file)
