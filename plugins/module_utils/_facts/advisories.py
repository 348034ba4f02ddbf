# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The vulnerabilities of NVIDIA's container toolkit and of its Linux driver for data centre GPUs, and the releases without them.

Data: from NVIDIA's security bulletins, https://github.com/NVIDIA/product-security, column "Updated Version"; of the driver the rows "Tesla"
for Linux. To bring it up to date, read the bulletins since the day that `looked_up.py` of preflight has, add their rows here, raise the
minimum of the toolkit, date it there, and run `python tools/reference.py --write`.
"""

from __future__ import annotations

from typing import NamedTuple, Optional, Sequence

from .._formats.finding import few
from .._formats.versions import newer, numbers
from .driver_branches import NEW_FEATURE, branch

#: The oldest version of the toolkit without any of them.
TOOLKIT_MINIMUM = "1.19.1"


class ToolkitAdvisory(NamedTuple):
    """cves: of one bulletin. fixed_in: the first version without them. bulletin: its number at NVIDIA. published: its day."""

    cves: Sequence[str]
    fixed_in: str
    bulletin: int
    published: str


class DriverAdvisory(NamedTuple):
    """worst: the vulnerability with the highest score. score: its CVSS base score. more: how many others the bulletin has. fixed_in: the
    first version of each branch without them. An older branch that is not named gets no fix."""

    worst: str
    score: float
    more: int
    fixed_in: Sequence[str]
    bulletin: int
    published: str


#: By which a container reaches its host. The newest first.
TOOLKIT = (
    ToolkitAdvisory(("CVE-2026-24260",), "1.19.1", 5850, "2026-06-30"),
    ToolkitAdvisory(("CVE-2025-23266", "CVE-2025-23267"), "1.17.8", 5659, "2025-07-15"),
    ToolkitAdvisory(("CVE-2025-23359",), "1.17.4", 5616, "2025-02-11"),
    ToolkitAdvisory(("CVE-2024-0135", "CVE-2024-0136", "CVE-2024-0137"), "1.17.1", 5599, "2025-01-14"),
    ToolkitAdvisory(("CVE-2024-0134",), "1.17.0", 5585, "2024-11-05"),
    ToolkitAdvisory(("CVE-2024-0132", "CVE-2024-0133"), "1.16.2", 5582, "2024-09-25"),
)
#: By which a process with a GPU attacks the kernel. The newest first.
DRIVER = (
    # 79 for the display driver on Linux, by their descriptions: the others are of Windows and of the vGPU manager.
    DriverAdvisory("CVE-2026-47601", 7.8, 78, ("580.178.04", "595.91.07", "610.57.04", "615.71.09"), 5861, "2026-09-30"),
    DriverAdvisory("CVE-2026-24187", 8.8, 10, ("535.309.01", "580.159.03", "595.71.05"), 5821, "2026-05-19"),
    DriverAdvisory("CVE-2025-33219", 7.8, 1, ("535.288.01", "570.211.01", "580.126.09", "590.48.01"), 5747, "2026-01-28"),
    DriverAdvisory("CVE-2025-23280", 7.0, 5, ("535.274.02", "570.195.03", "580.95.05"), 5703, "2025-10-09"),
    DriverAdvisory("CVE-2025-23279", 7.0, 1, ("535.261.03", "570.172.08"), 5670, "2025-07-24"),
    DriverAdvisory("CVE-2025-23244", 7.8, 0, ("535.247.01", "550.163.01", "570.133.07", "575.51.02"), 5630, "2025-04-24"),
    DriverAdvisory("CVE-2024-0150", 7.1, 4, ("535.230.02", "550.144.03", "570.86.15"), 5614, "2025-01-16"),
    DriverAdvisory("CVE-2024-0126", 8.2, 0, ("535.216.01", "550.127.05"), 5586, "2024-10-22"),
    DriverAdvisory("CVE-2024-0090", 7.8, 2, ("470.256.02", "535.183.01", "550.90.07"), 5551, "2024-06-06"),
)


def open_in_toolkit(version: str) -> str:
    """A message about what a version is vulnerable to, the newest first; "" for nothing that is known."""
    due = [advisory for advisory in TOOLKIT if newer(advisory.fixed_in, version)]
    return few((f"{cve} (fixed in {advisory.fixed_in})" for advisory in due for cve in advisory.cves), 3)


class Vulnerable(NamedTuple):
    """A message about what a driver is vulnerable to, and what it should be instead."""

    to: str
    fixed: str


def open_in_driver(version: str) -> Optional[Vulnerable]:
    """None for nothing that is known."""
    have = numbers(version)
    if have is None:
        return None
    open_ = [advisory for advisory in DRIVER if _is_open(have[0], version, advisory)]
    if not open_:
        return None
    newest = open_[0]
    more = sum(1 + advisory.more for advisory in open_) - 1
    words = f"{newest.worst} (CVSS {newest.score:g})" + (f" and {more} more known vulnerabilities" if more else "")
    own = next((fixed for fixed in newest.fixed_in if _branch(fixed) == have[0]), "")
    if own:
        return Vulnerable(words, f"{own} or newer")
    later = [fixed for fixed in newest.fixed_in if _branch(fixed) > have[0]]
    # NVIDIA drops a new-feature branch within months, so another one is better to settle on.
    later = [fixed for fixed in later if not _is_brief(fixed)] or later
    return Vulnerable(words, f"{' or '.join(later)}, or newer: the branch {have[0]} got no fix")


def _is_open(branch: int, version: str, advisory: DriverAdvisory) -> bool:
    own = next((fixed for fixed in advisory.fixed_in if _branch(fixed) == branch), None)
    return newer(own, version) if own else branch < max(map(_branch, advisory.fixed_in))


def _is_brief(version: str) -> bool:
    known = branch(_branch(version))
    return known is not None and known.kind == NEW_FEATURE


def _branch(version: str) -> int:
    return (numbers(version) or (0,))[0]
