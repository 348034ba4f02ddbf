# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Whether the daemons run as their units say, and what starts others at their time is on."""

from __future__ import annotations

from typing import Final

from gpushare_runtime.doctor.findings import SITE, Findings
from gpushare_runtime.doctor.host import DASHBOARD, EXTENDER, PLUGIN, UNITS, DaemonUnit, HostReader

# How the codes of a daemon begin, and the code for one that does not run.
_CODES: Final = {PLUGIN: ("plugin", "plugin_stopped"), EXTENDER: ("extender", "extender_down"), DASHBOARD: ("dashboard", "dashboard_down")}
TRIGGERS: Final = {
    EXTENDER: ("gpushare-pki.timer", "nothing renews the certificates of extender and scheduler before they expire"),
    DASHBOARD: ("gpushare-dashboard-pki.timer", "nothing renews the certificate of the dashboard before it expires"),
    PLUGIN: ("gpushare-cdi-refresh.path", "the CDI spec does not follow the driver"),
}
"""Units of ours that start another one at its time, by the daemon that needs it: (unit, what does not happen without it)."""
# The result by which systemd knows how a process ended (systemd.exec(5), $SERVICE_RESULT): its meaning, and the next step.
_KILLED: Final = {
    "oom-kill": (
        "the kernel ended it for lack of memory",
        "systemctl show {name} -p MemoryMax -p DropInPaths names its limit, dmesg the one of the host",
    ),
    "signal": (
        "a signal ended it",
        "dmesg names one of the kernel; systemctl show {name} -p MemoryMax -p DropInPaths names a limit that others have set",
    ),
    "core-dump": ("it crashed", "coredumpctl info {name} has the place"),
    "timeout": (
        "it was not ready, or did not end, in its time",
        "systemctl show {name} -p TimeoutStartUSec -p DropInPaths names the limit",
    ),
    "watchdog": ("it hung, and systemd ended it", "is the host overloaded, or the driver silent (nvidia-smi)?"),
    "resources": ("systemd could not start it for lack of something", "df -h; df -i /run; systemctl status {name}"),
    "start-limit-hit": ("systemd has given up after too many starts", "systemctl reset-failed {name}"),
}
_MASKED: Final = "masked"


def judge_unit(found: Findings, unit: DaemonUnit, environment: str) -> bool:
    """Whether the daemon runs. environment: the folder of the runtime in use."""
    short, down = _CODES[unit.name]
    name, log = f"{unit.name}.service", f"journalctl -u {unit.name} -n 50"
    if unit.text is None:
        masked = unit.load == _MASKED
        seen = f"no unit {name}{', but a mask in its place' if masked else ''}"
        found.error(f"{short}_missing", seen, "it, as site.yml writes it", f"systemctl unmask {unit.name}; then {SITE}" if masked else SITE)
        return False
    if unit.active == "activating" and unit.state == "start" and unit.says:
        return True  # it runs, is not ready, and says why: that is judged by what it does
    if unit.active != "active":
        why, look = _KILLED.get(unit.result, ("", ""))
        words = [
            unit.state or "no state",
            *([f"{unit.result}: {why}"] if why else []),
            *([f"its last words: {unit.says}"] if unit.says else []),
        ]
        cure = f"systemctl restart {unit.name}; if it does not stay: {look.format(name=unit.name) + '; ' if look else ''}{log}"
        if unit.load == _MASKED:
            cure = f"systemctl unmask {unit.name}; systemctl restart {unit.name}"
            words.append("masked, so that nothing can start it")
        found.error(down, f"{name} {unit.active} ({', '.join(words)})", "it to run", cure)
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


def judge_trigger(found: Findings, host: HostReader, unit: DaemonUnit) -> None:
    """Whether the unit that does something for this daemon at its time is on. One whose file is gone, the journal of files names."""
    name, without = TRIGGERS[unit.name]
    if host.read(f"{UNITS}/{name}") is None:
        return
    active, at_boot = host.at_boot(name)
    if active != "active" or not at_boot.startswith("enabled"):
        seen = f"{name} {active} ({at_boot or 'not enabled'}): {without}"
        found.warn("trigger_stopped", seen, "it active and enabled", f"systemctl enable --now {name}")
