# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Findings of verify: what they are made of, which of them only follow from another one, and the verdict.

Private to this collection. Pure. The codes (`check`) are stable: monitoring may read them in the report.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ansible_collections.gpushare.kubernetes.plugins.module_utils._formats.finding import ERROR, NOTE, WARNING, Finding
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._preflight.report import blocks, count, grouped, problems

VERSION = 1
_SEVERITIES = (ERROR, WARNING, NOTE)

# Everywhere in the cluster, or on the finding's own host only.
_ANY, _SAME = "any", "same"
_NO_PLUGIN = (
    ("driver_mismatch", _SAME),
    ("driver_problem", _SAME),
    ("gpu_lost", _SAME),
    ("runtime_missing", _SAME),
    ("plugin_missing", _SAME),
    ("plugin_stopped", _SAME),
    ("plugin_not_registered", _SAME),
    ("second_plugin", _SAME),
    ("node_not_ready", _SAME),
    ("kubelet_stopped", _SAME),
)
_NO_API = (
    *(("rbac_differs", _ANY), ("policy_differs", _ANY)),
    *((f"token_{what}", _SAME) for what in ("unreadable", "foreign", "expired", "missing", "rejected", "forbidden")),
)
_NO_EXTENDER = (
    ("runtime_missing", _SAME),
    ("certificate_wrong", _SAME),
    ("certificate_expired", _SAME),
    ("extender_missing", _SAME),
    ("extender_down", _SAME),
)
_NO_CALL = (
    *((code, _ANY) for code in ("extender_missing", "extender_down", "extender_not_synced", "certificate_wrong", "certificate_expired")),
    *(
        (code, _ANY)
        for code in (
            "scheduler_not_configured",
            "extender_not_called",
            "extender_entry_differs",
            "extender_address_wrong",
            "stale_scheduler_file",
        )
    ),
    *((code, _ANY) for code in ("scheduler_older_than_file", "scheduler_stopped")),
)

#: Code to the codes that explain it: (code, where). The first one that was found is named as the cause.
FOLLOWS_FROM: Mapping[str, tuple[tuple[str, str], ...]] = {
    "not_checked": (("runtime_differs", _SAME),),
    "plugin_stopped": (("driver_mismatch", _SAME), ("driver_problem", _SAME), ("runtime_missing", _SAME), ("kubelet_stopped", _SAME)),
    "plugin_missing": (("runtime_missing", _SAME),),
    "plugin_older_than_file": (("plugin_stopped", _SAME),),
    "plugin_not_registered": (
        ("driver_mismatch", _SAME),
        ("driver_problem", _SAME),
        ("second_plugin", _SAME),
        ("plugin_stopped", _SAME),
        ("kubelet_stopped", _SAME),
    ),
    "token_forbidden": (("rbac_differs", _ANY),),
    "token_missing": (("token_unreadable", _SAME),),
    "token_expired": (("state_not_kept", _SAME),),
    "plugin_not_synced": _NO_API,
    "files_changed": (("runtime_missing", _SAME),),
    "annotation_wrong": (("unit_overridden", _SAME), ("files_changed", _SAME), *_NO_PLUGIN, *_NO_API),
    "wrong_gpu_count": (("gpu_missing", _SAME), *_NO_PLUGIN, *_NO_API),
    "capacity_short": (*_NO_PLUGIN, ("wrong_gpu_count", _SAME)),
    "capacity_over": (*_NO_PLUGIN, ("wrong_gpu_count", _SAME)),
    "gpu_unusable": (*_NO_PLUGIN, ("gpu_unhealthy", _SAME)),
    "gpu_unhealthy": (("driver_mismatch", _SAME), ("driver_problem", _SAME), ("gpu_lost", _SAME), ("gpu_failing", _SAME)),
    "gpu_lost": (("driver_mismatch", _SAME),),
    "cdi_stale": tuple((code, _SAME) for code in ("driver_mismatch", "driver_problem", "gpu_lost", "gpu_missing", "gpu_device_missing")),
    "gpu_device_missing": (("gpu_lost", _SAME), ("gpu_missing", _SAME)),
    "gpu_missing": (("driver_mismatch", _SAME), ("driver_problem", _SAME), ("gpu_lost", _SAME)),
    "node_not_ready": (("kubelet_stopped", _SAME), ("default_runtime_not_running", _SAME), ("runtime_silent", _SAME)),
    "certificate_wrong": (("runtime_missing", _SAME),),
    "extender_missing": (("runtime_missing", _SAME),),
    "extender_down": (*((code, _SAME) for code in ("runtime_missing", "port_taken", "certificate_wrong", "certificate_expired")),),
    "extender_older_than_file": (("extender_down", _SAME),),
    "extender_not_synced": (*_NO_EXTENDER, *_NO_API),
    "extender_address_wrong": (("extender_down", _SAME), ("extender_missing", _SAME), ("stale_scheduler_file", _SAME)),
    "extender_not_called": (("stale_scheduler_file", _SAME),),
    "dashboard_missing": (("runtime_missing", _SAME),),
    "dashboard_down": (("runtime_missing", _SAME), ("certificate_expired", _SAME), ("port_taken", _SAME), *_NO_API),
    "dashboard_older_than_file": (("dashboard_down", _SAME),),
    "dashboard_not_synced": _NO_API,
    "scheduler_older_than_file": (("stale_scheduler_file", _SAME),),
    "scheduler_stopped": (("stale_scheduler_file", _SAME),),
    "probe_not_scheduled": (*_NO_CALL, *_NO_PLUGIN, *_NO_API),
    "probe_not_running": (*_NO_PLUGIN, ("cdi_stale", _SAME), ("default_runtime_not_running", _SAME), *_NO_CALL),
    "probe_not_called": _NO_CALL,
    "wrong_gpu": (("default_runtime_not_running", _SAME), ("second_plugin", _SAME)),
    # The API repeats kubelet's last word about its containers.
    "container_not_seen": (("runtime_silent", _SAME), ("node_not_ready", _SAME), ("kubelet_stopped", _SAME)),
}


@dataclass(frozen=True)
class Verdict:
    """All findings, causes first. ok: none of them is an error."""

    findings: tuple[Finding, ...]
    looked_at: Mapping[str, Any]

    @property
    def ok(self) -> bool:
        return not any(finding.severity == ERROR for finding in self.findings)

    @property
    def causes(self) -> tuple[Finding, ...]:
        """The errors that do not follow from another one."""
        return tuple(finding for finding in self.findings if finding.severity == ERROR and not finding.because)

    def as_dict(self) -> dict[str, Any]:
        """The report."""
        findings = [finding.as_dict() for finding in self.findings]
        return {"v": VERSION, "ok": self.ok, "findings": findings, "looked_at": dict(self.looked_at)}

    @property
    def summary(self) -> str:
        """On one line: what was verified, or how many problems there are."""
        errors = [finding for finding in self.findings if finding.severity == ERROR]
        if not errors:
            return "verified: " + ", ".join(f"{number} {what[:-1] if number == 1 else what}" for what, number in self.looked_at.items())
        after = len(errors) - len(self.causes)
        also = f", and {count(after, 'finding')} that follow{'s' if after == 1 else ''} from {'it' if problems(errors) == 1 else 'them'}"
        return count(problems(errors), "problem") + (also if after else "")

    @property
    def words(self) -> str:
        """For people: the summary, then a block for each problem."""
        errors = [finding for finding in self.findings if finding.severity == ERROR]
        return "\n\n".join([self.summary, *([blocks(errors)] if errors else [])])


def verdict(findings: Iterable[Finding], looked_at: Mapping[str, Any]) -> Verdict:
    """Merge what says the same of one host, mark what only follows, and sort: errors first, causes before what follows."""
    marked = mark(merge(findings))
    order = sorted(marked, key=lambda one: (_SEVERITIES.index(one.severity), bool(one.because), one.host, one.check))
    return Verdict(tuple(order), looked_at)


def merge(findings: Iterable[Finding]) -> list[Finding]:
    """One finding for each host and code: what was found and expected stands side by side, and the first cure is tried first."""
    groups = grouped(findings, "host", "check", "severity")
    return [replace(same[0], found=_joined(one.found for one in same), expected=_joined(one.expected for one in same)) for same in groups]


def mark(findings: Sequence[Finding]) -> list[Finding]:
    """Name the cause of each finding that has one among the others."""
    errors = {(one.host, one.check) for one in findings if one.severity == ERROR}
    anywhere = {check for _host, check in errors}

    def cause(one: Finding) -> str:
        for code, where in FOLLOWS_FROM.get(one.check, ()):
            if (one.host, code) in errors or (where == _ANY and code in anywhere):
                return code
        return ""

    return [replace(one, because=cause(one)) for one in findings]


def _joined(words: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(words))
