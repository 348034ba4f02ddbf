# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A finding: something that is not as it should be, and what to do. preflight, verify and the modules on hosts have this one form of it.

Pure.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import Dict, Iterable, List

ERROR, WARNING, NOTE = "error", "warning", "note"
#: In the place of a host.
NO_HOST = "cluster"


@dataclass(frozen=True)
class Finding:
    """One finding. check: its stable code, by which preflight also accepts it; host: its inventory name, "" for the cluster as a whole.

    because: the check of the finding that it follows from, "" for a cause. subject: a part of the host, where that is said by itself.
    """

    check: str
    found: str
    expected: str
    cure: str
    severity: str = ERROR
    host: str = ""
    because: str = ""
    subject: str = ""

    def __str__(self) -> str:
        return f"found {self.found}; expected {self.expected}; {self.cure}"

    def line(self, hosts: str = "") -> str:
        """All of it on one line. hosts: those of which it is said."""
        words = f"{hosts or self.host or NO_HOST}: {self.check}: {self}"
        return f"{words} (follows from {self.because})" if self.because else words

    def as_dict(self) -> Dict[str, str]:
        """For a report."""
        return {name: value for name, value in asdict(self).items() if name != "subject"}


class HostFindings:
    """Collects the findings of one host; "" is the cluster."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.list: List[Finding] = []

    def add(self, finding: Finding, **changes: str) -> None:
        """A finding that was made without a host."""
        self.list.append(replace(finding, host=self.host, **changes))

    def error(self, check: str, found: str, expected: str, cure: str, subject: str = "") -> None:
        self.list.append(Finding(check, found, expected, cure, ERROR, self.host, subject=subject))

    def warn(self, check: str, found: str, expected: str, cure: str, subject: str = "") -> None:
        self.list.append(Finding(check, found, expected, cure, WARNING, self.host, subject=subject))

    def note(self, check: str, found: str, expected: str, cure: str) -> None:
        self.list.append(Finding(check, found, expected, cure, NOTE, self.host))


def few(names: Iterable[str], most: int = 4) -> str:
    """The first ones of many in a finding, and how many more there are."""
    listed = list(names)
    return ", ".join(listed[:most]) + (f" and {len(listed) - most} more" if len(listed) > most else "")
