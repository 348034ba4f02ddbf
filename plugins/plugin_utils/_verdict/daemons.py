# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The findings of verify about one host's daemons: the runtime that they were installed from, and what gpushare-doctor found.

Pure: what gpushare_verify_host saw in, findings out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ...module_utils._cluster.names import DASHBOARD
from .doctor import Doctor
from .findings import VerifyFindings

SITE = "run site.yml again"


@dataclass(frozen=True)
class ReleaseHashes:
    """Hashes (hexadecimal SHA-256) of what this collection installs; kubectl's plugin is on control planes."""

    wheel_sha256: str
    requirements_sha256: str
    kubectl_requirements_sha256: str


def judge_runtime(found: VerifyFindings, runtime: Mapping[str, Any], wanted: ReleaseHashes, *, plane: bool) -> None:
    """Whether the runtime in use was made from what this collection ships; the doctor judges its files."""
    if not runtime["environment"]:
        found.say("runtime_missing", "no runtime in use", "the link to it in gpushare_install_dir", SITE)
        return
    where = runtime["environment"]
    if runtime["wheel_sha256"] != wanted.wheel_sha256:
        seen = f"{where} made from wheel {runtime['wheel_sha256'][:12] or 'unknown'} (version {runtime['version'] or 'unknown'})"
        found.say("runtime_differs", seen, f"wheel {wanted.wheel_sha256[:12]}, this collection's", SITE)
    elif runtime["requirements_sha256"] != (wanted.kubectl_requirements_sha256 if plane else wanted.requirements_sha256):
        seen = f"{where} made from other locked requirements"
        found.say("runtime_differs", seen, "those of this collection", SITE)


def judge_doctor(found: VerifyFindings, doctor: Doctor, environment: str) -> None:
    """The findings of the host's doctor, or that it could not be asked. environment: the runtime in use; without one, that is said."""
    found.list += doctor.findings
    if doctor.problem and environment:
        cure = doctor.cure or f"rm -r {environment}; then {SITE}: the runtime is built again"
        cure += "; then run verify again"
        found.say("not_checked", f"nothing of the daemons, because {doctor.problem}", "the findings of gpushare-doctor", cure)


def judge_files(found: VerifyFindings, files: Mapping[str, Any]) -> None:
    """Whether what runs the daemons is what the roles have written, and the journal knows of it."""
    diff = "site.yml --check --diff shows the lines"
    if files["changed"]:
        seen = f"{', '.join(files['changed'])} changed or removed by others"
        found.say("files_changed", seen, "the files as the roles wrote them, which the next restart reads", f"{diff}; {SITE}")
    wrong = [drop_in for drop_in in files["drop_ins"] if drop_in["starts"] or drop_in["stops"]]
    others = [drop_in["path"] for drop_in in files["drop_ins"] if drop_in not in wrong]
    if wrong:
        paths = " ".join(drop_in["path"] for drop_in in wrong)
        cure = f"rm {paths}; then {SITE}: it reloads systemd where that hurts no container, and restarts the daemon"
        words = (f"{drop_in['path']} ({', '.join(drop_in['stops'])})" if drop_in["stops"] else drop_in["path"] for drop_in in wrong)
        seen = f"drop-ins that start something else, or may stop what is started: {', '.join(words)}"
        found.say("unit_overridden", seen, "the unit as the role wrote it", cure)
    if others:
        cure = "keep it if it is yours and wanted, else remove it and run site.yml again"
        found.say("unit_extended", f"drop-ins of our units: {', '.join(others)}", "none", cure)
    if files["problem"] or files["unrecorded"]:
        seen = files["problem"] or f"no entry of {', '.join(files['unrecorded'])} in the journal"
        cure = f"{SITE}: it notes its files again" if not files["problem"] else "do what the message states, then " + SITE
        found.say("journal_lost", seen, "an entry of each file of ours in /var/lib/gpushare/journal, by which uninstall.yml goes", cure)


def judge_dashboard(found: VerifyFindings, doctor: Doctor, *, wanted: bool) -> None:
    """Whether a host without the dashboard has none; the doctor judges one that shall be there."""
    if DASHBOARD in doctor.daemons and not wanted:
        cure = "set gpushare_dashboard_state: absent for this host and run site.yml, or present to keep it"
        found.say("dashboard_unexpected", f"the unit {DASHBOARD}.service", "none, because gpushare_dashboard_state is not present", cure)


def judge_metrics(found: VerifyFindings, doctor: Doctor, name: str, wanted: str) -> None:
    """Whether a daemon that runs serves its metrics where it is to; "" for nowhere."""
    daemon = doctor.daemons.get(name)
    if daemon is not None and daemon.runs and daemon.metrics != wanted:
        is_, shall = (f"metrics of {name} on {address}" if address else f"no metrics of {name}" for address in (daemon.metrics, wanted))
        found.say("metrics_wrong", is_, shall, SITE)
