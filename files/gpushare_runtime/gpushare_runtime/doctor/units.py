# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Whether the daemons run as their units say."""

from __future__ import annotations

from typing import Final

from gpushare_runtime.doctor.findings import SITE, Findings
from gpushare_runtime.doctor.host import DASHBOARD, EXTENDER, PLUGIN, DaemonUnit

# How the codes of a daemon begin, and the code for one that does not run.
_CODES: Final = {PLUGIN: ("plugin", "plugin_stopped"), EXTENDER: ("extender", "extender_down"), DASHBOARD: ("dashboard", "dashboard_down")}


def judge_unit(found: Findings, unit: DaemonUnit, environment: str) -> bool:
    """Whether the daemon runs. environment: the folder of the runtime in use."""
    short, down = _CODES[unit.name]
    name, log = f"{unit.name}.service", f"journalctl -u {unit.name} -n 50"
    if unit.text is None:
        found.error(f"{short}_missing", f"no unit {name}", "it, as site.yml writes it", SITE)
        return False
    if unit.active == "activating" and unit.state == "start" and unit.says:
        return True  # it runs, is not ready, and says why: that is judged by what it does
    if unit.active != "active":
        words = f", its last words: {unit.says}" if unit.says else ""
        seen = f"{name} {unit.active} ({unit.state or 'no state'}{words})"
        found.error(down, seen, "it to run", f"systemctl restart {unit.name}; if it does not stay: {log}")
        return False
    if unit.file_stamp != unit.stamp:
        seen = f"{name} running from other files than those on the disk"
        cure = f"{SITE}, or: systemctl restart {unit.name}"
        found.error(f"{short}_older_than_file", seen, "the process that its unit file starts", cure)
    elif unit.arguments and not unit.arguments[0].startswith(f"{environment}/"):
        found.error("runtime_differs", f"{name} running {unit.arguments[0]}", f"a program of the runtime in use, {environment}", SITE)
    if not unit.enabled:
        found.warn(f"{short}_not_at_boot", f"{name} not enabled", "it started at boot", f"systemctl enable {unit.name}")
    return True
