# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Why a service does not run, kubelet's or the container runtime's: its unit as systemd sees it, with the last words of its last start.
Read-only."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import List, Mapping, Optional, Pattern, Tuple

from .._cluster.names import PLUGIN
from .._formats.credentials import without_credentials
from .._host.host import Host
from .._host.logged import told
from .._host.rancher import KINDS
from .._host.systemd import UNITS, parsed, show_command

_KUBELET = "kubelet.service"
#: The services in which other distributions run kubelet, which their own installation brings.
_OF_OTHERS: Mapping[str, Tuple[str, ...]] = {
    **{name: kind.units for name, kind in KINDS.items()},
    "k0s": ("k0sworker.service", "k0scontroller.service"),
    "microk8s": ("snap.microk8s.daemon-kubelite.service",),
}
#: The device plugin's unit names kubelet's, which gpushare_kubelet_unit may have told it.
_BEFORE = re.compile(r"^Before=([\w@.-]{1,80}\.service)$", re.MULTILINE)
_NAME = re.compile(r"[\w@.-]{1,80}\.service")
_PROPERTIES = ("LoadState", "ActiveState", "SubState", "Result", "InvocationID")
_INVOCATION = re.compile(r"[0-9a-f]{32}")
#: Restarts by systemd, and the last start in µs of CLOCK_MONOTONIC, as /proc/uptime has it in s.
_STARTS = ("NRestarts", "ExecMainStartTimestampMonotonic")
_COUNT, _SECONDS = re.compile(r"\d{1,18}"), re.compile(r"\d{1,12}(?:\.\d+)?")
#: kubelet's own unit restarts it after 10 s; one that fails may need as long for it.
_MANY_STARTS, _STAYS_SECONDS = 3, 60.0
#: A line with which kubelet gives up: klog's errors and fatal ones, and what it prints of its arguments.
COMPLAINT = re.compile(r"[EF]\d{4} |Error:|.*\bfailed to\b|.*unrecognized feature gate")
#: kubelet says so every 20 s of each worker node without a folder for static pods.
_NO_COMPLAINT = "path does not exist, ignoring"
#: A call of the API server that failed. Events are of no use to people.
_OF_SERVER = re.compile(r"E\d{4} (?!.*\bevent\.go:).*\b(?:Get|Post|Put|Patch) \\?\"https?://")
#: The same of container runtimes, which log in the form of logrus, and of programs in Go that end.
COMPLAINT_OF_RUNTIME = re.compile(r".*\blevel=(?:fatal|panic)\b|panic: |fatal error: |.*\bfailed to\b")
_LINES, _SHOWN, _PROXY = 200, 320, 120
_ACTIVE, _MASKED, _NOT_FOUND, _GAVE_UP = "active", "masked", "not-found", "start-limit-hit"
#: Distributions in one program log in both forms.
_COMPLAINT_OF_OTHERS = re.compile(f"{COMPLAINT.pattern}|{COMPLAINT_OF_RUNTIME.pattern}")


@dataclass(frozen=True)
class StoppedUnit:
    """LoadState, ActiveState, SubState and Result of a service, "" without systemd. says: its last complaint since its start, "" while it
    is active."""

    name: str = _KUBELET
    load: str = ""
    active: str = ""
    state: str = ""
    result: str = ""
    says: str = ""

    @property
    def by_hand(self) -> bool:
        """Whether root has stopped it: its last words are those of any day, and no cause."""
        return self.load == _MASKED or (self.active, self.result) == ("inactive", "success")


def failing_kubelet(host: Host, distribution: str, running: bool) -> Optional[StoppedUnit]:
    """kubelet's service where it does not run, or does not stay; None where it stays. running: whether a process of it is there now."""
    return restless(host, distribution) if running else kubelet_unit(host, distribution)


def kubelet_unit(host: Host, distribution: str = "") -> StoppedUnit:
    """Of the services in which this distribution may run kubelet, the one that systemd knows."""
    found = [unit_of(host, name, complaint) for name, complaint in _services(host, distribution)]
    return next((unit for unit in found if unit.load != _NOT_FOUND), found[0])


def restless(host: Host, distribution: str = "") -> Optional[StoppedUnit]:
    """kubelet's service where it ends again and again, and happens to run at this moment; None where it stays."""
    return next(filter(None, (_restless(host, *unit) for unit in _services(host, distribution))), None)


def _restless(host: Host, name: str, complaint: Pattern[str]) -> Optional[StoppedUnit]:
    found = parsed(host.printed(host.program("systemctl"), show_command(name, "LoadState", *_STARTS)[1:]))
    uptime = _SECONDS.match(host.text("/proc/uptime") or "")
    # systemd counts its own restarts only, and forgets them with a start by hand.
    starts, since = (int(found.get(key, "")) if _COUNT.fullmatch(found.get(key, "")) else 0 for key in _STARTS)
    if uptime is None or starts < _MANY_STARTS or float(uptime.group()) - since / 1e6 > _STAYS_SECONDS:
        return None
    says = _last_words(host, f"--unit={name}", complaint, failed=False)
    return StoppedUnit(name, found.get("LoadState", "")[:_SHOWN], "restarting", f"restart {starts}", says=says)


def kubelet_complaint(host: Host) -> str:
    """The last complaint of a kubelet that runs, "" for none: why its node is not Ready, it logs again and again."""
    return _last_words(host, f"--unit={name_of_kubelet(host)}", COMPLAINT, failed=False)


def unreached(host: Host) -> str:
    """The last complaint of a kubelet that runs about a call of its API server, "" for none: it logs many others in consequence."""
    return _last_words(host, f"--unit={name_of_kubelet(host)}", _OF_SERVER, failed=False)


def proxy_of_kubelet(host: Host) -> str:
    """The proxy that kubelet's environment has for https, without its password; "" for none."""
    process = host.process("kubelet")
    environment = (host.text(f"/proc/{process.pid}/environ") or "").split("\0") if process is not None else []
    values = [value for name, _equals, value in (entry.partition("=") for entry in environment) if name.upper() == "HTTPS_PROXY"]
    return told(without_credentials(values[0]), _PROXY) if values else ""


def unit_of(host: Host, name: str, complaint: Pattern[str]) -> StoppedUnit:
    """The service of this name. complaint: matches a line with which its program gives up."""
    found = parsed(host.printed(host.program("systemctl"), show_command(name, *_PROPERTIES)[1:]))
    load, active, state, result = (found.get(key, "")[:_SHOWN] for key in _PROPERTIES[:4])
    invocation = found.get("InvocationID", "")
    says = ""
    if active != _ACTIVE and _INVOCATION.fullmatch(invocation):
        says = _last_words(host, f"_SYSTEMD_INVOCATION_ID={invocation}", complaint, failed=result != "success")
    return StoppedUnit(name, load, active, state, result, says)


def stopped(unit: StoppedUnit) -> Tuple[str, str]:
    """(what was found, the cure) of a host on which no kubelet runs. The host's root decides what it says there."""
    name = _named(unit, _KUBELET)
    how = ", ".join(filter(None, [unit.state, unit.result if unit.result != "success" else "", _MASKED if unit.load == _MASKED else ""]))
    seen = told(f"no kubelet that runs ({name} {unit.active}: {how})", _SHOWN) if unit.active else "no kubelet that runs"
    return seen + last_words(unit), start_again(unit, _KUBELET)


def last_words(unit: StoppedUnit) -> str:
    """For the end of what was found, "" without any."""
    says = told(unit.says, _SHOWN)
    return f"; its last words: {says}" if says else ""


def complained(says: str) -> str:
    """For the end of what was found of a kubelet that runs, "" where it has not complained."""
    words = told(says, _SHOWN)
    return f"; kubelet's last complaint: {words}" if words else ""


def start_again(unit: StoppedUnit, default: str) -> str:
    """The cure of a service that does not run. default: its name, where the host's root calls it what cannot be."""
    name = _named(unit, default)
    short = name.rpartition(".")[0]
    if unit.load == _MASKED:
        return f"systemctl unmask {short}; systemctl start {short}"
    other = next((distribution for distribution, units in _OF_OTHERS.items() if name in units), "")
    if unit.load == _NOT_FOUND and other:
        return f"start the service of {other}: systemctl list-units --all '*{other}*' names it"
    if unit.load == _NOT_FOUND:
        return f"install the package that brings {name}; then: systemctl enable --now {short}"
    first = f"systemctl reset-failed {short}; " if unit.result == _GAVE_UP else ""
    return f"{first}systemctl restart {short}" + ("; if it does not stay, correct what its last words name" if last_words(unit) else "")


def _services(host: Host, distribution: str) -> List[Tuple[str, Pattern[str]]]:
    others = _OF_OTHERS.get(distribution)
    return [(name, _COMPLAINT_OF_OTHERS) for name in others] if others else [(name_of_kubelet(host), COMPLAINT)]


def name_of_kubelet(host: Host) -> str:
    """Its service."""
    named = _BEFORE.search(host.text(f"{UNITS}/{PLUGIN}.service") or "")
    return named.group(1) if named else _KUBELET


def _named(unit: StoppedUnit, default: str) -> str:
    return unit.name if _NAME.fullmatch(unit.name) else default


def _last_words(host: Host, which: str, complaint: Pattern[str], *, failed: bool) -> str:
    """which: the journal's entries. failed: otherwise its last line is that of a program that was told to end."""
    words = ["-q", "-o", "cat", "-n", str(_LINES), which]
    printed = host.printed(host.program("journalctl"), words).splitlines()
    lines = [line for line in printed if line.strip() and _NO_COMPLAINT not in line]
    last = next((line for line in reversed(lines) if complaint.match(line)), lines[-1] if lines and failed else "")
    return told(last, _SHOWN)
