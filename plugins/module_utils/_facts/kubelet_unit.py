# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Why no kubelet runs: its service as systemd sees it, with the last words of its last start. Read-only."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Tuple

from .._cluster.names import PLUGIN
from .._host.host import Host
from .._host.systemd import UNITS, parsed, show_command

_KUBELET = "kubelet.service"
#: The device plugin's unit names kubelet's, which gpushare_kubelet_unit may have told it.
_BEFORE = re.compile(r"^Before=([\w@.-]{1,80}\.service)$", re.MULTILINE)
_NAME = re.compile(r"[\w@.-]{1,80}\.service")
_PROPERTIES = ("LoadState", "ActiveState", "SubState", "Result", "InvocationID")
_INVOCATION = re.compile(r"[0-9a-f]{32}")
#: A line with which kubelet gives up: klog's errors and fatal ones, and what it prints of its arguments.
COMPLAINT = re.compile(r"[EF]\d{4} |Error:|.*\bfailed to\b|.*unrecognized feature gate")
_LINES, _SHOWN = 200, 240
_MASKED, _GAVE_UP = "masked", "start-limit-hit"


@dataclass(frozen=True)
class StoppedKubelet:
    """LoadState, ActiveState, SubState and Result of the service, "" without systemd; says: its last complaint since its start."""

    name: str = _KUBELET
    load: str = ""
    active: str = ""
    state: str = ""
    result: str = ""
    says: str = ""


def kubelet_unit(host: Host) -> StoppedKubelet:
    named = _BEFORE.search(host.text(f"{UNITS}/{PLUGIN}.service") or "")
    name = named.group(1) if named else _KUBELET
    found = parsed(host.printed(host.program("systemctl"), show_command(name, *_PROPERTIES)[1:]))
    load, active, state, result = (found.get(key, "")[:_SHOWN] for key in _PROPERTIES[:4])
    return StoppedKubelet(name, load, active, state, result, _last_words(host, found.get("InvocationID", "")))


def stopped(unit: StoppedKubelet) -> Tuple[str, str]:
    """(what was found, the cure) of a host on which no kubelet runs. The host's root decides what it says there."""
    name = unit.name if _NAME.fullmatch(unit.name) else _KUBELET
    short, says = name.rpartition(".")[0], _line(unit.says)
    masked = unit.load == _MASKED
    how = ", ".join(filter(None, [unit.state, unit.result if unit.result != "success" else "", _MASKED if masked else ""]))
    seen = _line(f"no kubelet that runs ({name} {unit.active}: {how})") if unit.active else "no kubelet that runs"
    seen += f"; its last words: {says}" if says else ""
    if masked:
        return seen, f"systemctl unmask {short}; systemctl start {short}"
    if unit.load == "not-found":
        return seen, f"install kubelet's package, which brings {name}; then: systemctl enable --now {short}"
    first = f"systemctl reset-failed {short}; " if unit.result == _GAVE_UP else ""
    return seen, f"{first}systemctl restart {short}" + ("; if it does not stay, correct what its last words name" if says else "")


def _last_words(host: Host, invocation: str) -> str:
    if not _INVOCATION.fullmatch(invocation):
        return ""
    words = ["-q", "-o", "cat", "-n", str(_LINES), f"_SYSTEMD_INVOCATION_ID={invocation}"]
    lines = host.printed(host.program("journalctl"), words).splitlines()
    last = next((line for line in reversed(lines) if COMPLAINT.match(line)), lines[-1] if lines else "")
    return _line(last)


def _line(text: str) -> str:
    text = " ".join("".join(letter if letter.isprintable() else " " for letter in text[: 4 * _SHOWN]).split())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"
