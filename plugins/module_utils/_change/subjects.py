# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Everything that this collection brings to a host, as data: our daemons, and the subjects that change files of others.

Uninstall, report and verify walk these tables; none of them names a daemon or an owner itself.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Dict, Mapping, Optional, Tuple

from .._cluster.names import CERTIFICATES, DASHBOARD, DASHBOARD_CERTIFICATES, DASHBOARD_PKI, EXTENDER, PLUGIN
from .._host.systemd import UNITS

#: The folder of the settings files that units read.
SETTINGS = "/etc/gpushare"
_MARK = b"\n# Copyright: gpushare.kubernetes contributors\n"
_HEAD = 512


@dataclass(frozen=True)
class HostDaemon:
    """One of our daemons on a host. units: in the order in which they stop, so that none starts another.

    credentials: names in the folder of settings. state: paths below /var/lib. pki: the folder of its certificates below the folder of
    settings, "" for the one that a variable names. certificates: their names.
    """

    name: str
    units: Tuple[str, ...] = ()
    credentials: Tuple[str, ...] = ()
    state: Tuple[str, ...] = ()
    pki: str = ""
    certificates: Tuple[str, ...] = ()

    @property
    def settings(self) -> Tuple[str, ...]:
        """The names of the files with its settings."""
        return tuple(unit.replace(".service", ".env") for unit in self.units if unit.endswith(".service"))


@dataclass(frozen=True)
class Owner:
    """A subject by the name of its entries in the journal. folders: in which it may leave a file that it was writing when it was killed.

    cure: the way by which its own module takes its part out, because what runs on the files must be verified with them; "" for a subject
    whose part goes with our daemons.
    """

    cure: str = ""
    folders: Tuple[str, ...] = ()


DAEMONS = (
    HostDaemon(
        EXTENDER,
        ("gpushare-pki.timer", "gpushare-pki.service", EXTENDER + ".socket", EXTENDER + "-metrics.socket", EXTENDER + ".service"),
        ("extender.kubeconfig", "extender.token", "extender-metrics.token"),
        (EXTENDER, f"private/{EXTENDER}", "systemd/timers/stamp-gpushare-pki.timer"),
        certificates=CERTIFICATES,
    ),
    HostDaemon(
        DASHBOARD,
        ("gpushare-dashboard-pki.timer", "gpushare-dashboard-pki.service", DASHBOARD + ".socket", DASHBOARD + ".service"),
        ("dashboard.kubeconfig", "dashboard.token", "dashboard-viewer.token"),
        (DASHBOARD, f"private/{DASHBOARD}", "systemd/timers/stamp-gpushare-dashboard-pki.timer"),
        DASHBOARD_PKI,
        DASHBOARD_CERTIFICATES,
    ),
    HostDaemon(
        PLUGIN,
        (PLUGIN + "-metrics.socket", PLUGIN + ".service"),
        ("device-plugin.kubeconfig", "device-plugin.token", "device-plugin-metrics.token"),
        (PLUGIN,),
    ),
    # Its units have the UUIDs of GPUs in their names.
    HostDaemon("gpushare-mps", state=("gpushare-mps",)),
    HostDaemon("gpushare-cdi-refresh", ("gpushare-cdi-refresh.path", "gpushare-cdi-refresh.service")),
)
#: An owner's name may go on after a dot: "container_runtime.docker". The longest name that fits counts.
OWNERS: Mapping[str, Owner] = {
    "scheduler": Owner(
        "the role scheduler with gpushare_scheduler_state: absent", ("/etc/kubernetes/manifests", "/etc/kubernetes/gpushare")
    ),
    "kubelet": Owner("the playbook kubelet_gates with gpushare_kubelet_state: absent", ("/var/lib/kubelet",)),
    "container_runtime": Owner(
        "the role container_runtime with gpushare_container_runtime_state: absent",
        ("/etc/containerd/conf.d", "/etc/docker", "/etc/crio/crio.conf.d"),
    ),
    "nvidia_driver": Owner("the role nvidia_driver with gpushare_driver_state: absent"),
    "nvidia_container_toolkit": Owner("the role nvidia_container_toolkit with tasks_from: restore"),
    "nvidia_container_toolkit.cdi": Owner(folders=(UNITS,)),
    # The module gpushare_packages takes back what any of its owners changed.
    "packages": Owner("uninstall.yml, whose step for packages has not ended"),
}
_OURS = Owner()
_STEMS = sorted({daemon.name for daemon in DAEMONS} | {unit.rpartition(".")[0] for daemon in DAEMONS for unit in daemon.units})
#: The names of our units and of their settings, with those of units that a host has one of for each GPU.
NAME = re.compile(rf"(?:{'|'.join(map(re.escape, _STEMS))})[\w@.-]*\.(?:service|socket|timer|path|env)")


def owner_of(name: str) -> Owner:
    """The row of an entry's owner: that of our daemons, where the table has none."""
    while name not in OWNERS and "." in name:
        name = name.rpartition(".")[0]
    return OWNERS.get(name, _OURS)


def units(daemons: Tuple[HostDaemon, ...] = DAEMONS) -> Dict[str, HostDaemon]:
    """The units with a fixed name, in the order in which they stop, each with its daemon."""
    return {unit: daemon for daemon in daemons for unit in daemon.units}


def is_ours(path: str, content: Optional[bytes]) -> bool:
    """Whether a whole file is ours, by its name and its first lines: it was not there before us."""
    folder, name = os.path.split(path)
    place = folder in (UNITS, SETTINGS) and NAME.fullmatch(name) is not None
    return place and content is not None and _MARK in b"\n" + content[:_HEAD]
