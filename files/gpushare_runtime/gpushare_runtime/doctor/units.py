# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Whether the daemons run as their units say, from files of the runtime that are as they were installed."""

from __future__ import annotations

import base64
import csv
import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gpushare_runtime.doctor.findings import SITE, Findings
from gpushare_runtime.doctor.host import DASHBOARD, EXTENDER, PLUGIN, DaemonUnit

# How the codes of a daemon begin, and the code for one that does not run.
_CODES: Final = {PLUGIN: ("plugin", "plugin_stopped"), EXTENDER: ("extender", "extender_down"), DASHBOARD: ("dashboard", "dashboard_down")}
# Of a damaged installation so many files are named.
_NAMED: Final = 5


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


def judge_files(found: Findings, environment: Path) -> None:
    """Whether the runtime's files are as pip recorded them when it installed them."""
    damaged, count = [], 0
    for packages in environment.glob("lib/python3*/site-packages"):
        for path, wanted in _recorded(packages):
            count += 1
            if _hash(packages / path) != wanted:
                damaged.append(path)
    cure = f"rm -r {environment}; then {SITE}: it is built again from the wheel"
    if damaged:
        more = len(damaged) - _NAMED
        seen = f"{', '.join(damaged[:_NAMED])}{f' and {more} more' if more > 0 else ''} in {environment} changed since it was installed"
        found.error("runtime_differs", seen, "the wheel's own files", cure)
    elif not count:
        found.error("runtime_differs", f"no record of the installed files in {environment}", "pip's, with their hashes", cure)


def _recorded(packages: Path) -> Iterator[tuple[str, str]]:
    """(path, hash) of each file of our package that the record has a hash of."""
    for record in packages.glob("gpushare_runtime-*.dist-info/RECORD"):
        for row in csv.reader(record.read_text("utf-8", "replace").splitlines()):
            if len(row) == 3 and row[1].startswith("sha256=") and ".py" in row[0]:
                yield row[0], row[1].removeprefix("sha256=")


def _hash(path: Path) -> str:
    """As pip writes it; "" for a file that cannot be read."""
    try:
        return base64.urlsafe_b64encode(hashlib.sha256(path.read_bytes()).digest()).rstrip(b"=").decode()
    except OSError:
        return ""
