# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Everything that this collection brings to a host, as data: our daemons, and the subjects that change files of others.

Preflight, the batches of GPU nodes, verify, report and uninstall walk these tables; none of them names a daemon or an owner itself. In
playbooks and roles, the lookup plugin `subjects` has them.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any, Collection, Dict, Iterator, Mapping, Optional, Tuple

from .._cluster.names import CERTIFICATES, DASHBOARD, DASHBOARD_CERTIFICATES, DASHBOARD_PKI, EXTENDER, LEFT_SOCKETS, PLUGIN
from .._formats.versions import newer
from .._host.container_runtimes import KINDS
from .._host.systemd import UNITS

#: The folder of the settings files: those that units read, and those that daemons read.
SETTINGS = "/etc/gpushare"
#: The end of the name of a daemon's own file of settings.
CONFIG = ".yaml"
#: Folders of the GPUs with MPS, and in each the tmpfs that its containers have for shared memory.
MPS_FOLDER, SHARED_MEMORY = "/run/gpushare-mps", "shm"
#: The programs of the runtime that kubectl finds by links.
KUBECTL_PLUGINS = ("kubectl-gpushare", "kubectl-inspect-gpushare", "kubectl_complete-gpushare")
_MARK = b"\n# Copyright: gpushare.kubernetes contributors\n"
_HEAD = 512
_WITH_DAEMONS = "uninstall:services"
#: The groups of hosts that have a subject.
CONTROL_PLANES, GPU_NODES = "control planes", "GPU nodes"
#: The facts of a host without which a role cannot plan there: any, kubeadm's kubelet that runs, its container runtime as well, kubeadm's
#: control plane.
HOST, KUBELET, RUNTIME, CONTROL_PLANE = "host", "kubelet", "runtime", "control_plane"
#: The value of gpushare_toolkit_state and the like with which a role leaves nothing to the host's administrator.
_MANAGED = "managed"
_AS_SERVICES = ("gpushare_deploy_mode", "systemd")
_PACKAGED, _WITHOUT_TOOLKIT = ("gpushare_toolkit_state", _MANAGED), ("gpushare_toolkit_state", "unmanaged")


@dataclass(frozen=True)
class HostDaemon:
    """A daemon of ours on a host. units: in the order in which they stop, so that none starts another.

    credentials: names in the folder of settings. state: folders of its own, below /var/lib where they are relative. pki: the folder of its
    certificates below the folder of settings, "" for the one that a variable names. certificates: their names. mounts: patterns of the
    mount points in its folders. sockets: a pattern of their names in kubelet's folder of device plugins. called_by: the owner that makes
    another program call it, and whose part goes first. role: the role that runs it, which registers its answer as `__ROLE`. configured:
    whether its settings are a file of its own.
    """

    name: str
    role: str = ""
    units: Tuple[str, ...] = ()
    credentials: Tuple[str, ...] = ()
    state: Tuple[str, ...] = ()
    pki: str = ""
    certificates: Tuple[str, ...] = ()
    mounts: Tuple[str, ...] = ()
    sockets: str = ""
    called_by: str = ""
    configured: bool = False

    @property
    def files(self) -> str:
        """A pattern of the names of its units and settings, with those of units that a host has one of for each GPU."""
        stems = sorted({self.name, *(unit.rpartition(".")[0] for unit in self.units)})
        return rf"(?:{'|'.join(map(re.escape, stems))})[\w@.-]*\.(?:service|socket|timer|path|env|yaml)"

    @property
    def settings(self) -> Tuple[str, ...]:
        """The names of the files with its settings."""
        of_units = tuple(unit.replace(".service", ".env") for unit in self.units if unit.endswith(".service"))
        return (*of_units, self.name + CONFIG) if self.configured else of_units


@dataclass(frozen=True)
class Plan:
    """A plan of preflight for a subject.

    operation: by which the host plans while its facts are gathered, of `_operations/table.py`. Without one, and where a variable has the
    value that `alone` has for it, preflight includes the entry point for its plan alone, with `__gpushare_plan_only`.

    tasks: the entry point, which registers its answer as `__ROLE`, or as `__ROLE_PART` where it brings a part of its own. check: the name
    in preflight's report of a host on which there is no plan, "" for none. needs: the facts of the host. settings: variables of
    the inventory, each with the value for which it is due. below: the release of kubelet from which on nothing is due. chooses: whether its
    answer has the device strategy of the host.
    """

    tasks: str
    check: str = ""
    part: str = ""
    needs: str = RUNTIME
    settings: Tuple[Tuple[str, str], ...] = ()
    below: str = ""
    chooses: bool = False
    operation: str = ""
    alone: Tuple[Tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Owner:
    """A subject by the name of its entries in the journal. folders: in which it may leave a file that it was writing when it was killed.

    step: of the uninstallation, that takes its part out and verifies what runs on it: a role, with its list of tasks after a colon, or a
    module. cure: the way by which a person does that; "" for a subject whose part goes with our daemons.

    A subject that a role of its own name brings to hosts has an order, too, in which roles plan and are installed; 0 for the others. group:
    whose hosts have it, "" for all. plans: how preflight learns of its changes. install: the role's entry point that a batch of GPU nodes
    includes where a change is due, "" where a playbook includes the role itself. idle: the variable, with its default, that keeps the role
    out. With another value the role always runs. follows: the variable, with its value, for which the role runs again after a change of the
    driver.
    """

    step: str
    cure: str = ""
    folders: Tuple[str, ...] = ()
    order: int = 0
    group: str = ""
    plans: Tuple[Plan, ...] = ()
    install: str = ""
    idle: Tuple[str, str] = ("", "")
    follows: Tuple[str, str] = ("", "")


DAEMONS = (
    HostDaemon(
        EXTENDER,
        "extender",
        ("gpushare-pki.timer", "gpushare-pki.service", EXTENDER + ".socket", EXTENDER + "-metrics.socket", EXTENDER + ".service"),
        ("extender.kubeconfig", "extender.token", "extender-metrics.token"),
        (EXTENDER, f"private/{EXTENDER}", "systemd/timers/stamp-gpushare-pki.timer"),
        certificates=CERTIFICATES,
        called_by="scheduler",
        configured=True,
    ),
    HostDaemon(
        DASHBOARD,
        "dashboard",
        ("gpushare-dashboard-pki.timer", "gpushare-dashboard-pki.service", DASHBOARD + ".socket", DASHBOARD + ".service"),
        ("dashboard.kubeconfig", "dashboard.token", "dashboard-viewer.token"),
        (DASHBOARD, f"private/{DASHBOARD}", "systemd/timers/stamp-gpushare-dashboard-pki.timer"),
        DASHBOARD_PKI,
        DASHBOARD_CERTIFICATES,
        configured=True,
    ),
    HostDaemon(
        PLUGIN,
        "device_plugin",
        (PLUGIN + "-metrics.socket", PLUGIN + ".service"),
        ("device-plugin.kubeconfig", "device-plugin.token", "device-plugin-metrics.token"),
        (PLUGIN,),
        sockets=LEFT_SOCKETS,
        configured=True,
    ),
    # Its units have the UUIDs of GPUs in their names.
    HostDaemon("gpushare-mps", "mps", state=("gpushare-mps", MPS_FOLDER), mounts=(f"{MPS_FOLDER}/*/{SHARED_MEMORY}",)),
    HostDaemon("gpushare-cdi-refresh", units=("gpushare-cdi-refresh.path", "gpushare-cdi-refresh.service")),
)
#: In the order in which an uninstallation takes them out: what calls the daemons before them, packages after all that runs on them.
#: An owner's name may go on after a dot: "container_runtime.docker". The longest name that fits counts.
OWNERS: Mapping[str, Owner] = {
    "scheduler": Owner(
        "scheduler",
        "the role scheduler with gpushare_scheduler_state: absent",
        ("/etc/kubernetes/manifests", "/etc/kubernetes/gpushare"),
        order=6,
        group=CONTROL_PLANES,
        plans=(Plan("configure", "scheduler", needs=CONTROL_PLANE, settings=(_AS_SERVICES,)),),
    ),
    "nvidia_container_toolkit.cdi": Owner(_WITH_DAEMONS, folders=(UNITS,)),
    "container_runtime": Owner(
        "container_runtime:restore",
        "the role container_runtime with gpushare_container_runtime_state: absent",
        tuple(kind.writes for kind in KINDS.values()),
        order=5,
        group=GPU_NODES,
        plans=(
            Plan("strategy", part="strategy", settings=(_WITHOUT_TOOLKIT,), chooses=True, operation="gpushare_sharing strategy"),
            # After the packages, which bring its program.
            Plan("configure", "runtime", operation="container_runtime", alone=(_PACKAGED,)),
        ),
        install="main",
    ),
    "kubelet": Owner(
        "kubelet:restore",
        "the playbook kubelet_gates with gpushare_kubelet_state: absent",
        ("/var/lib/kubelet",),
        order=3,
        group=GPU_NODES,
        # Later kubelets have no gate that could be missing.
        plans=(Plan("gates", "kubelet", needs=KUBELET, below="1.26"),),
    ),
    "nvidia_container_toolkit": Owner(
        "nvidia_container_toolkit:restore",
        "the role nvidia_container_toolkit with tasks_from: restore",
        order=4,
        group=GPU_NODES,
        plans=(
            Plan("packages", "packages", part="packages", settings=(_PACKAGED,)),
            Plan("configure", "toolkit", chooses=True, operation="gpushare_toolkit", alone=(_PACKAGED, _WITHOUT_TOOLKIT)),
        ),
        install="main",
        follows=("gpushare_toolkit_state", _MANAGED),
    ),
    "nvidia_driver": Owner(
        "gpushare_driver",
        "the role nvidia_driver with gpushare_driver_state: absent",
        order=2,
        group=GPU_NODES,
        plans=(Plan("plan", "driver", needs=HOST, settings=(("gpushare_driver_state", _MANAGED),)),),
        install="main",
        idle=("gpushare_driver_state", "present"),
    ),
    # The module takes back what any of its owners changed.
    "packages": Owner("gpushare_packages", "uninstall.yml, whose step for packages has not ended"),
    "python_environment": Owner(
        "uninstall:leftovers",
        order=1,
        plans=(
            Plan(
                "packages",
                "python",
                part="packages",
                needs=HOST,
                settings=(("gpushare_prerequisites", _MANAGED), ("gpushare_python", ""), _AS_SERVICES),
            ),
        ),
    ),
}
#: The roles whose first question preflight asks with the plans. They ask it again where something has changed since.
FORESEEN: Mapping[str, Owner] = {
    "python_environment": Owner("", plans=(Plan("build", needs=HOST, settings=(_AS_SERVICES,), operation="gpushare_runtime_env"),)),
    "device_plugin": Owner(
        "", group=GPU_NODES, plans=(Plan("look", part="look", settings=(_AS_SERVICES,), operation="gpushare_sharing strategy"),)
    ),
}
_OURS = Owner(_WITH_DAEMONS)
#: The names of our units and of their settings.
NAME = re.compile("|".join(daemon.files for daemon in DAEMONS))


def owner_of(name: str) -> Owner:
    """The row of an entry's owner: that of our daemons, where the table has none."""
    while name not in OWNERS and "." in name:
        name = name.rpartition(".")[0]
    return OWNERS.get(name, _OURS)


def is_known(name: str) -> bool:
    """Whether an owner of entries in the journal has a row. Without one, no playbook plans, reports or takes out what it changes."""
    return owner_of(name) is not _OURS or name.partition(".")[0] in {known for daemon in DAEMONS for known in (daemon.name, daemon.role)}


def brought() -> Dict[str, Owner]:
    """The subjects that roles of these names bring to hosts, in the order in which they plan and are installed."""
    return dict(sorted(((name, owner) for name, owner in OWNERS.items() if owner.order), key=lambda item: item[1].order))


def plans() -> Iterator[Tuple[str, str, Owner, Plan]]:
    """The plans of preflight in their order, each with its name, such as `container_runtime` or `container_runtime.strategy`, and role."""
    for role, owner in (*brought().items(), *FORESEEN.items()):
        for plan in owner.plans:
            yield (f"{role}.{plan.part}" if plan.part else role), role, owner, plan


def planned(name: str, facts: Mapping[str, Any]) -> Optional[Plan]:
    """The plan of this name by an operation; None on a host with these facts that lacks what it is about."""
    return next((plan for known, _role, _owner, plan in plans() if known == name and plan.operation and is_fit(plan, facts)), None)


def is_fit(plan: Plan, facts: Mapping[str, Any]) -> bool:
    """Whether a host with these facts has what the plan is about."""
    kubelet = facts.get("kubelet") or {}
    if plan.needs == HOST:
        return "kubelet" in facts
    if (facts.get("distribution") or {}).get("name") != "kubeadm":
        return False
    if plan.needs == CONTROL_PLANE:
        return bool((facts.get("control_plane") or {}).get("present"))
    # Of a kubelet that does not say its version, the oldest is expected.
    is_older = not plan.below or newer(plan.below, str(kubelet.get("version") or "v1.0"))
    has_runtime = plan.needs != RUNTIME or (kubelet.get("runtime") or "unknown") != "unknown"
    return bool(kubelet.get("running")) and is_older and has_runtime


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
