# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Everything that this collection brings to a host, as data: our daemons, and the subjects that change files of others.

Uninstall, report and verify walk these tables; none of them names a daemon or an owner itself.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Collection, Dict, Mapping, Optional, Tuple

from .._cluster.names import CERTIFICATES, DASHBOARD, DASHBOARD_CERTIFICATES, DASHBOARD_PKI, EXTENDER, LEFT_SOCKETS, PLUGIN
from .._host.container_runtimes import KINDS
from .._host.systemd import UNITS

#: The folder of the settings files that units read.
SETTINGS = "/etc/gpushare"
#: Folders of the GPUs with MPS, and in each the tmpfs that its containers have for shared memory.
MPS_FOLDER, SHARED_MEMORY = "/run/gpushare-mps", "shm"
#: The programs of the runtime that kubectl finds by links.
KUBECTL_PLUGINS = ("kubectl-gpushare", "kubectl-inspect-gpushare", "kubectl_complete-gpushare")
_MARK = b"\n# Copyright: gpushare.kubernetes contributors\n"
_HEAD = 512
_WITH_DAEMONS = "uninstall:services"


@dataclass(frozen=True)
class HostDaemon:
    """One of our daemons on a host. units: in the order in which they stop, so that none starts another.

    credentials: names in the folder of settings. state: folders of its own, below /var/lib where they are relative. pki: the folder of its
    certificates below the folder of settings, "" for the one that a variable names. certificates: their names. mounts: patterns of the
    mount points in its folders. sockets: a pattern of their names in kubelet's folder of device plugins. called_by: the owner that makes
    another program call it, and whose part goes first.
    """

    name: str
    units: Tuple[str, ...] = ()
    credentials: Tuple[str, ...] = ()
    state: Tuple[str, ...] = ()
    pki: str = ""
    certificates: Tuple[str, ...] = ()
    mounts: Tuple[str, ...] = ()
    sockets: str = ""
    called_by: str = ""

    @property
    def files(self) -> str:
        """A pattern of the names of its units and settings, with those of units that a host has one of for each GPU."""
        stems = sorted({self.name, *(unit.rpartition(".")[0] for unit in self.units)})
        return rf"(?:{'|'.join(map(re.escape, stems))})[\w@.-]*\.(?:service|socket|timer|path|env)"

    @property
    def settings(self) -> Tuple[str, ...]:
        """The names of the files with its settings."""
        return tuple(unit.replace(".service", ".env") for unit in self.units if unit.endswith(".service"))


@dataclass(frozen=True)
class Owner:
    """A subject by the name of its entries in the journal. folders: in which it may leave a file that it was writing when it was killed.

    step: of the uninstallation, that takes its part out and verifies what runs on it: a role, with its list of tasks after a colon, or a
    module. cure: the way by which a person does that; "" for a subject whose part goes with our daemons.
    """

    step: str
    cure: str = ""
    folders: Tuple[str, ...] = ()


DAEMONS = (
    HostDaemon(
        EXTENDER,
        ("gpushare-pki.timer", "gpushare-pki.service", EXTENDER + ".socket", EXTENDER + "-metrics.socket", EXTENDER + ".service"),
        ("extender.kubeconfig", "extender.token", "extender-metrics.token"),
        (EXTENDER, f"private/{EXTENDER}", "systemd/timers/stamp-gpushare-pki.timer"),
        certificates=CERTIFICATES,
        called_by="scheduler",
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
        sockets=LEFT_SOCKETS,
    ),
    # Its units have the UUIDs of GPUs in their names.
    HostDaemon("gpushare-mps", state=("gpushare-mps", MPS_FOLDER), mounts=(f"{MPS_FOLDER}/*/{SHARED_MEMORY}",)),
    HostDaemon("gpushare-cdi-refresh", ("gpushare-cdi-refresh.path", "gpushare-cdi-refresh.service")),
)
#: In the order in which an uninstallation takes them out: what calls the daemons before them, packages after all that runs on them.
#: An owner's name may go on after a dot: "container_runtime.docker". The longest name that fits counts.
OWNERS: Mapping[str, Owner] = {
    "scheduler": Owner(
        "scheduler", "the role scheduler with gpushare_scheduler_state: absent", ("/etc/kubernetes/manifests", "/etc/kubernetes/gpushare")
    ),
    "nvidia_container_toolkit.cdi": Owner(_WITH_DAEMONS, folders=(UNITS,)),
    "container_runtime": Owner(
        "container_runtime",
        "the role container_runtime with gpushare_container_runtime_state: absent",
        tuple(kind.writes for kind in KINDS.values()),
    ),
    "kubelet": Owner("kubelet:gates", "the playbook kubelet_gates with gpushare_kubelet_state: absent", ("/var/lib/kubelet",)),
    "nvidia_container_toolkit": Owner("nvidia_container_toolkit:restore", "the role nvidia_container_toolkit with tasks_from: restore"),
    "nvidia_driver": Owner("gpushare_driver", "the role nvidia_driver with gpushare_driver_state: absent"),
    # The module takes back what any of its owners changed.
    "packages": Owner("gpushare_packages", "uninstall.yml, whose step for packages has not ended"),
}
_OURS = Owner(_WITH_DAEMONS)
#: The names of our units and of their settings.
NAME = re.compile("|".join(daemon.files for daemon in DAEMONS))


def owner_of(name: str) -> Owner:
    """The row of an entry's owner: that of our daemons, where the table has none."""
    while name not in OWNERS and "." in name:
        name = name.rpartition(".")[0]
    return OWNERS.get(name, _OURS)


def daemons(names: Collection[str] = ()) -> Tuple[HostDaemon, ...]:
    """The daemons of these names; all without any."""
    return tuple(daemon for daemon in DAEMONS if not names or daemon.name in names)


def units(daemons: Tuple[HostDaemon, ...] = DAEMONS) -> Dict[str, HostDaemon]:
    """The units with a fixed name, in the order in which they stop, each with its daemon."""
    return {unit: daemon for daemon in daemons for unit in daemon.units}


def is_ours(path: str, content: Optional[bytes]) -> bool:
    """Whether a whole file is ours, by its name and its first lines: it was not there before us."""
    folder, name = os.path.split(path)
    place = folder in (UNITS, SETTINGS) and NAME.fullmatch(name) is not None
    return place and content is not None and _MARK in b"\n" + content[:_HEAD]
