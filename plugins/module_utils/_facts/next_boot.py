# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The kernel that boots next, and the driver's packages that the host upgrades by itself.

Read-only.
"""

from __future__ import annotations

import re
from typing import Tuple

from .._host.host import Host

_MOST_KERNELS, _MOST_PACKAGES = 64, 400
_MODULES = ("/lib/modules", "/usr/lib/modules")
_APT = "/etc/apt/apt.conf.d"
_UNATTENDED = re.compile(r'^\s*APT::Periodic::Unattended-Upgrade\s+"?([0-9]{1,4}|always)"?\s*;', re.MULTILINE)


def kernels(host: Host) -> Tuple[str, ...]:
    """The releases of the kernels that have modules on this host, sorted by name."""
    found = {name for folder in _MODULES for name in host.names(folder)}
    return tuple(sorted(found))[:_MOST_KERNELS]


def next_kernel(host: Host) -> str:
    """The release of the newest installed kernel of the running one's flavour."""
    # A folder that a removed kernel left behind has none of the kernel's own files.
    own, running = "modules.builtin", host.release
    found = [release for release in kernels(host) if _flavour(release) == _flavour(running)]
    found = [release for release in found if any(host.exists(f"{folder}/{release}/{own}") for folder in _MODULES)]
    return max([*found, running], key=_order)


def has_headers(host: Host, release: str) -> bool:
    """Whether a module can be built for the kernel of this release."""
    folders = (f"/lib/modules/{release}/build", f"/usr/src/linux-headers-{release}", f"/usr/src/kernels/{release}")
    return any(host.exists(f"{folder}/Makefile") for folder in folders)


def upgraded_alone(host: Host) -> Tuple[str, ...]:
    """The installed driver packages that unattended-upgrades may upgrade under running pods: those without a hold."""
    texts = [host.text(f"{_APT}/{name}") or "" for name in host.names(_APT)]
    # As apt reads them: the last one counts.
    set_to = [found for text in texts for found in _UNATTENDED.findall(text)]
    if not set_to or set_to[-1] == "0" or host.program("unattended-upgrade") is None:
        return ()
    arguments = ["--show", "--showformat", "${db:Status-Want}\t${db:Status-Status}\t${Package}\n", "*nvidia*"]
    outcome = host.ask(host.program("dpkg-query"), arguments)
    rows = [line.split("\t") for line in (outcome.out if outcome is not None else "").splitlines()[:_MOST_PACKAGES]]
    found = [row[2] for row in rows if len(row) == 3 and row[0] == "install" and row[1] == "installed"]
    return tuple(sorted(name for name in found if "container" not in name))


def _order(release: str) -> Tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"[0-9]+", release))


def _flavour(release: str) -> str:
    return re.sub(r"[0-9.]+", "", release)
