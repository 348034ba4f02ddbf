# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Findings of verify: what they are made of, which of them only follow from another one, and the verdict.

Pure. The codes (`check`) are stable: monitoring may read them in the report. links.py has those of verify and the doctor; CHECKS lists
them with those of preflight. docs/reference/codes.md is made of it, docs/operate/troubleshooting.md has a row for each.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ...module_utils._formats.finding import ERROR, NOTE, WARNING, Finding
from .._report import blocks, count, grouped, problems
from .links import BESIDE, LINKS, VERIFY, beside, kinds, link_of

VERSION = 1
_SEVERITIES = (ERROR, WARNING, NOTE)
#: A program that makes findings.
PREFLIGHT = "preflight"
# (severities of a finding, programs that make it) to its codes; those of verify and the doctor stand at their links.
_CODES = {
    ((ERROR,), (PREFLIGHT,)): (
        "api backend become bundle clusters control_plane controller deploy_mode facts groups identity image isolation kubernetes "
        "memory_unit namespace node_names packages port rights scheduler toolkit unreachable"
    ),
    ((ERROR, WARNING), (PREFLIGHT,)): (
        "clock disk distribution driver gpus kubelet managers node operator os policies python runtime scheduler_nodes strategy variables"
    ),
    ((WARNING,), (PREFLIGHT,)): "kernel_headers machine_id secure_boot selinux",
    ((NOTE,), (PREFLIGHT,)): "driver_branch old_facts",
}
#: Code to (severities, programs).
CHECKS = {**{code: key for key, codes in _CODES.items() for code in codes.split()}, **kinds()}
#: Code of verify or the doctor to its link.
LINK_OF = link_of()

#: Errors of the cluster, or of a control plane, with which a pod gets its GPU all the same.
PASSABLE = frozenset(["controllers_not_leading", "files_exposed", "policies_not_enforced", "policy_differs", *beside()])
# "*": on any host, not on that of the finding only.
_NO_PLUGIN = (
    "driver_mismatch driver_problem gpu_lost runtime_missing plugin_missing plugin_stopped plugin_not_registered second_plugin "
    "node_not_ready kubelet_stopped"
)
_NO_API = "rbac_differs* policy_differs* token_unreadable token_foreign token_expired token_missing token_rejected token_forbidden"
_NO_EXTENDER = "runtime_missing certificate_wrong certificate_expired extender_missing extender_down"
_NO_CALL = (
    "extender_missing* extender_down* extender_not_synced* certificate_wrong* certificate_expired* scheduler_not_configured* "
    "extender_not_called* extender_of_others* extender_entry_differs* extender_address_wrong* stale_scheduler_file* "
    "scheduler_older_than_file* scheduler_stopped* control_plane_certificate* scheduler_not_leading*"
)
#: With the strategy cdi the device plugin takes a GPU out of use that no CDI spec gives. Ids in use stay.
_NO_SPEC = "cdi_missing cdi_stale cdi_twice"
#: Code to the codes that explain it. The first one that was found is named as the cause.
FOLLOWS_FROM = {
    "not_checked": "runtime_differs",
    "policies_not_enforced": "policy_differs",
    "plugin_stopped": "disk_full driver_mismatch driver_problem runtime_missing unit_overridden kubelet_stopped",
    "plugin_missing": "runtime_missing",
    "plugin_older_than_file": "plugin_stopped",
    "plugin_not_registered": "driver_mismatch driver_problem second_plugin plugin_stopped kubelet_stopped",
    "token_forbidden": "rbac_differs*",
    "token_missing": "token_unreadable",
    "token_expired": "state_not_kept",
    "plugin_not_synced": _NO_API,
    "files_changed": "runtime_missing",
    "annotation_wrong": f"unit_overridden files_changed {_NO_PLUGIN} {_NO_API}",
    "wrong_gpu_count": f"gpu_missing gpu_without_memory {_NO_PLUGIN} {_NO_API}",
    "capacity_short": f"{_NO_PLUGIN} wrong_gpu_count {_NO_SPEC}",
    "capacity_over": f"{_NO_PLUGIN} wrong_gpu_count gpu_gone gpu_unhealthy {_NO_SPEC}",
    "gpu_unusable": f"{_NO_PLUGIN} gpu_unhealthy {_NO_SPEC}",
    "gpu_unhealthy": "driver_mismatch driver_problem gpu_lost gpu_failing",
    "gpu_gone": "gpu_missing gpu_lost driver_problem",
    "gpu_lost": "driver_mismatch",
    "cdi_stale": "cdi_twice driver_mismatch driver_problem gpu_lost gpu_missing gpu_device_missing cdi_missing",
    "gpu_device_missing": "gpu_lost gpu_missing",
    "gpu_missing": "driver_mismatch driver_problem gpu_lost",
    "node_not_ready": "disk_full kubelet_stopped kubelet_certificate default_runtime_not_running runtime_silent cgroup_drivers_differ",
    "certificate_wrong": "runtime_missing",
    "extender_missing": "runtime_missing",
    "extender_down": "disk_full runtime_missing unit_overridden port_taken certificate_wrong certificate_expired",
    "extender_older_than_file": "extender_down",
    "extender_not_synced": f"{_NO_EXTENDER} {_NO_API}",
    "extender_address_wrong": "extender_down extender_missing stale_scheduler_file",
    "extender_not_called": "stale_scheduler_file",
    "dashboard_missing": "runtime_missing",
    "dashboard_down": f"runtime_missing unit_overridden certificate_expired port_taken {_NO_API}",
    "dashboard_older_than_file": "dashboard_down",
    "dashboard_not_synced": _NO_API,
    "scheduler_not_leading": "control_plane_certificate* scheduler_stopped* scheduler_not_configured* scheduler_older_than_file*",
    "controllers_not_leading": "control_plane_certificate*",
    "scheduler_older_than_file": "stale_scheduler_file extender_of_others",
    "scheduler_stopped": "stale_scheduler_file",
    "probe_not_scheduled": f"{_NO_CALL} {_NO_PLUGIN} {_NO_API}",
    "probe_not_running": (
        f"{_NO_PLUGIN} {_NO_SPEC} disk_full default_runtime_not_running cgroup_drivers_differ sandbox_image_missing {_NO_CALL}"
    ),
    "probe_not_called": _NO_CALL,
    "not_proven": "sandbox_image_missing",
    "wrong_gpu": "default_runtime_not_running second_plugin",
    # The API repeats kubelet's last word about its containers.
    "container_not_seen": "runtime_silent node_not_ready kubelet_stopped",
}


class VerifyFindings:
    """Collects the findings of verify about one host; "" is the cluster. A code has the severity that CHECKS has for it."""

    def __init__(self, host: str) -> None:
        self.host = host
        self.list: list[Finding] = []

    def add(self, finding: Finding, **changes: str) -> None:
        """A finding that was made without a host, and perhaps with another severity."""
        self.list.append(_graded(replace(finding, host=self.host, **changes)))

    def say(self, check: str, found: str, expected: str, cure: str, severity: str = "") -> None:
        """severity: only of a code that has several."""
        self.list.append(of_verify(check, found, expected, cure, self.host, severity))


def of_verify(check: str, found: str, expected: str, cure: str, host: str = "", severity: str = "") -> Finding:
    """A finding of verify. LookupError for a code that is not verify's in CHECKS, or that has not this severity there."""
    return _graded(Finding(check, found, expected, cure, severity, host))


def _graded(finding: Finding) -> Finding:
    severities, programs = CHECKS[finding.check]
    severity = severities[0] if len(severities) == 1 else finding.severity
    if VERIFY not in programs or severity not in severities:
        raise LookupError(f"a finding {finding.check} of severity {finding.severity!r} from verify")
    return replace(finding, severity=severity)


@dataclass(frozen=True)
class Verdict:
    """All findings, causes first. ok: none of them is an error."""

    findings: tuple[Finding, ...]
    looked_at: Mapping[str, Any]

    @property
    def errors(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.severity == ERROR]

    @property
    def ok(self) -> bool:
        return not self.errors

    @property
    def causes(self) -> tuple[Finding, ...]:
        """The errors that do not follow from another one."""
        return tuple(finding for finding in self.errors if not finding.because)

    def as_dict(self) -> dict[str, Any]:
        findings = [dict(finding.as_dict(), link=LINK_OF.get(finding.check, "")) for finding in self.findings]
        return {"v": VERSION, "ok": self.ok, "findings": findings, "looked_at": dict(self.looked_at)}

    @property
    def summary(self) -> str:
        """On one line: what was verified, or how many problems there are."""
        errors = self.errors
        if not errors:
            return "verified: " + ", ".join(f"{number} {what[:-1] if number == 1 else what}" for what, number in self.looked_at.items())
        after = len(errors) - len(self.causes)
        also = f", and {count(after, 'finding')} that follow{'s' if after == 1 else ''} from {'it' if problems(errors) == 1 else 'them'}"
        return count(problems(errors), "problem") + (also if after else "")

    @property
    def chain(self) -> str:
        """The first link of the chain that an error breaks, and those before it; "" where none is broken."""
        broken, names = {LINK_OF.get(finding.check) for finding in self.causes}, [link.name for link in LINKS]
        names = names[: names.index(BESIDE)]
        first = next((place for place, name in enumerate(names) if name in broken), None)
        if first is None:
            return ""
        before = f"The links before it have no error: {', '.join(names[:first])}." if first else "It is the first one."
        return f"The chain from a pod to its GPU breaks at the link {names[first]!r}. {before}"

    @property
    def words(self) -> str:
        """For people: the summary, the broken link, then a block for each problem."""
        return "\n\n".join(filter(None, [self.summary, self.chain, blocks(self.errors) if self.errors else ""]))


def verdict(findings: Iterable[Finding], looked_at: Mapping[str, Any]) -> Verdict:
    """Merge what says the same of one host, mark what only follows, and sort: errors first, causes before what follows."""
    marked = mark(merge(findings))
    order = sorted(marked, key=lambda finding: (_SEVERITIES.index(finding.severity), bool(finding.because), finding.host, finding.check))
    return Verdict(tuple(order), looked_at)


def merge(findings: Iterable[Finding]) -> list[Finding]:
    """One finding for each host and code: what was found and expected stands side by side, and the first cure is tried first."""
    groups = grouped(findings, "host", "check", "severity")
    return [
        replace(same[0], found=_joined(finding.found for finding in same), expected=_joined(finding.expected for finding in same))
        for same in groups
    ]


def mark(findings: Sequence[Finding]) -> list[Finding]:
    """Name the cause of each finding that has one among the others."""
    errors = {(finding.host, finding.check) for finding in findings if finding.severity == ERROR}
    anywhere = {check for _host, check in errors}

    def cause(finding: Finding) -> str:
        for word in FOLLOWS_FROM.get(finding.check, "").split():
            code = word.rstrip("*")
            if (finding.host, code) in errors or (word != code and code in anywhere):
                return code
        return ""

    return [replace(finding, because=cause(finding)) for finding in findings]


def _joined(words: Iterable[str]) -> str:
    return ", ".join(dict.fromkeys(words))
