# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The findings of the doctor: codes with what was found, what was expected and what to do, as JSON for verify and as text for people."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from gpushare_runtime import __version__

ERROR: Final = "error"
WARNING: Final = "warning"
VERSION: Final = 1
"""Of the form of the JSON."""

SITE: Final = "run site.yml again"
"""The cure of whatever the playbook has written and somebody has changed."""


@dataclass(frozen=True)
class DoctorFinding:
    """check: a stable code, the same as in the report of verify; severity: ERROR or WARNING."""

    check: str
    severity: str
    found: str
    expected: str
    cure: str


@dataclass
class Findings:
    """The findings, in the order in which they were made. The rest is for verify, which knows the inventory, the GPUs and other hosts.

    daemons: those with a unit. health: the extender's counters. strangers: who listens on sockets of other device plugins.
    registered: resource to the GPUs that kubelet has recorded.
    """

    findings: list[DoctorFinding] = field(default_factory=list)
    daemons: dict[str, dict[str, Any]] = field(default_factory=dict)
    health: dict[str, Any] | None = None
    strangers: list[dict[str, Any]] = field(default_factory=list)
    registered: dict[str, list[str]] = field(default_factory=dict)

    def error(self, check: str, found: str, expected: str, cure: str) -> None:
        self.findings.append(DoctorFinding(check, ERROR, found, expected, cure))

    def warn(self, check: str, found: str, expected: str, cure: str) -> None:
        self.findings.append(DoctorFinding(check, WARNING, found, expected, cure))

    def as_json(self) -> str:
        return json.dumps({"v": VERSION, "version": __version__, **asdict(self)})

    def as_text(self) -> str:
        lines = [
            f"{name}: {daemon['active']} ({daemon['state']}), PID {daemon['pid']}, {daemon['says'] or 'no status'}"
            for name, daemon in self.daemons.items()
        ]
        for finding in self.findings:
            mark = "✗" if finding.severity == ERROR else "!"
            parts = [
                f"{mark} {finding.check}",
                f"    found     {finding.found}",
                f"    expected  {finding.expected}",
                f"    do        {finding.cure}",
            ]
            lines += ["", *parts]
        return "\n".join([*lines, "", f"findings: {len(self.findings)}"])
