# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""All that must be known of a host before anything on it is changed, gathered in one go.

Read-only. Works on any host, with or without GPUs, Kubernetes or a driver.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Collection, Dict, List, Mapping, Optional, Tuple

from .._formats.answers import ABSENT, answer_of
from .._host.host import Host
from .._host.rancher import service
from . import device_strategy
from .authority import authorities
from .cgroup_drivers import CgroupDrivers, cgroup_drivers
from .device_managers import GpuManager, managers
from .driver import Driver, Pci, PciGpu, driver, pci
from .gpus import gpus
from .ground import Ground, ground
from .kubelet_checkpoint import Sharing, registered, sharing
from .kubernetes import ControlPlane, Distribution, KubeletFacts, Runtime, control_plane, distribution, kubelet, runtimes
from .nvidia_smi import SmiReport
from .stopped_unit import StoppedUnit, failing_kubelet
from .system import Kernel, Python, System, kernel, python_packages, pythons, system

#: The facts that can be gathered apart from what the node is called. "gpus" is the one that asks the driver and can take seconds.
SUBSETS = ("system", "gpus", "runtimes", "managers")


@dataclass(frozen=True)
class Disk:
    """The file system that a folder is on, or will be. free_mib: None if it cannot be asked."""

    path: str
    free_mib: Optional[int]


@dataclass(frozen=True)
class NodeFacts:
    """The facts of one host. A part that was not gathered is None. kubelet_unit: of a kubelet that does not run, or does
    not stay."""

    distribution: Distribution
    kubelet: KubeletFacts
    control_plane: ControlPlane
    system: Optional[System] = field(default=None, metadata=ABSENT)
    kernel: Optional[Kernel] = field(default=None, metadata=ABSENT)
    pythons: Optional[Tuple[Python, ...]] = field(default=None, metadata=ABSENT)
    python_packages: Optional[Tuple[str, ...]] = field(default=None, metadata=ABSENT)
    disk: Optional[Disk] = field(default=None, metadata=ABSENT)
    ground: Optional[Ground] = field(default=None, metadata=ABSENT)
    pci: Optional[Pci] = field(default=None, metadata=ABSENT)
    driver: Optional[Driver] = field(default=None, metadata=ABSENT)
    nvidia_smi: Optional[SmiReport] = field(default=None, metadata=ABSENT)
    runtimes: Optional[Tuple[Runtime, ...]] = field(default=None, metadata=ABSENT)
    managers: Optional[Tuple[GpuManager, ...]] = field(default=None, metadata=ABSENT)
    registered: Optional[Dict[str, int]] = field(default=None, metadata=ABSENT)
    sharing: Optional[Sharing] = field(default=None, metadata=ABSENT)
    cdi: Optional[device_strategy.CdiFacts] = field(default=None, metadata=ABSENT)
    toolkit: Optional[device_strategy.ToolkitFacts] = field(default=None, metadata=ABSENT)
    authorities: Optional[Tuple[str, ...]] = field(default=None, metadata=ABSENT)
    cgroups: Optional[CgroupDrivers] = field(default=None, metadata=ABSENT)
    kubelet_unit: Optional[StoppedUnit] = field(default=None, metadata=ABSENT)

    def as_dict(self) -> Dict[str, Any]:
        """For a module's result: only what was gathered."""
        return dict(answer_of(self))

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> "NodeFacts":
        """The opposite of as_dict; other keys are passed over. KeyError or TypeError if it is not such a result."""

        values = {key: value for key, value in values.items() if value is not None}

        def fact(key: str, kind: Any) -> Any:
            return kind(**_tuples(values[key])) if key in values else None

        def several(key: str, kind: Any) -> Any:
            return tuple(kind(**_tuples(value)) for value in values[key]) if key in values else None

        buses = values.get("pci")
        return cls(
            distribution=Distribution(**values["distribution"]),
            kubelet=KubeletFacts(**_tuples(values["kubelet"])),
            control_plane=ControlPlane(**values["control_plane"]),
            system=fact("system", System),
            kernel=fact("kernel", Kernel),
            pythons=several("pythons", Python),
            python_packages=tuple(values["python_packages"]) if "python_packages" in values else None,
            disk=fact("disk", Disk),
            ground=fact("ground", Ground),
            pci=None if buses is None else Pci(tuple(PciGpu(**gpu) for gpu in buses["gpus"])),
            driver=fact("driver", Driver),
            nvidia_smi=SmiReport.from_dict(values["nvidia_smi"]) if "nvidia_smi" in values else None,
            runtimes=several("runtimes", Runtime),
            managers=several("managers", GpuManager),
            registered=values.get("registered"),
            sharing=fact("sharing", Sharing),
            cdi=fact("cdi", device_strategy.CdiFacts),
            toolkit=fact("toolkit", device_strategy.ToolkitFacts),
            authorities=tuple(values["authorities"]) if "authorities" in values else None,
            cgroups=fact("cgroups", CgroupDrivers),
            kubelet_unit=fact("kubelet_unit", StoppedUnit),
        )


@dataclass(frozen=True)
class DescribedNode(NodeFacts):
    """The facts with what others must know first: which node it is, and as whom they were gathered."""

    node_name: str = ""
    kubelet_root: str = ""
    kubelet_running: bool = False
    effective_uid: int = field(default_factory=os.geteuid)


def gather(host: Host, subsets: Collection[str] = SUBSETS, install_dir: str = "/opt/gpushare") -> NodeFacts:
    """The facts of the host. install_dir: where the runtime is, or will be."""
    what = distribution(host)
    node = kubelet(host, what)
    installed = runtimes(host, what) if "runtimes" in subsets else None
    below = (system(host), pythons(host)) if "system" in subsets else None
    unit = failing_kubelet(host, what.name, node.running)
    return NodeFacts(
        distribution=what,
        kubelet=node if unit is None else replace(node, running=False),
        control_plane=control_plane(host, service(host, what.name)),
        system=below[0] if below else None,
        kernel=kernel(host) if "system" in subsets else None,
        pythons=below[1] if below else None,
        python_packages=python_packages(*below) if below else None,
        disk=Disk(install_dir, host.free_mib(install_dir)) if "system" in subsets else None,
        ground=ground(host, install_dir) if "system" in subsets else None,
        pci=pci(host) if "gpus" in subsets else None,
        driver=driver(host) if "gpus" in subsets else None,
        nvidia_smi=gpus(host) if "gpus" in subsets else None,
        runtimes=installed,
        managers=managers(host, install_dir, node.root) if "managers" in subsets else None,
        registered=registered(host) if "managers" in subsets else None,
        sharing=sharing(host) if "managers" in subsets or "sharing" in subsets else None,
        cdi=None if installed is None else device_strategy.cdi(host, node, installed),
        toolkit=device_strategy.toolkit(host) if "runtimes" in subsets else None,
        authorities=authorities(host, node.config) if "system" in subsets else None,
        cgroups=None if installed is None else cgroup_drivers(host, node, installed),
        kubelet_unit=unit,
    )


def described(facts: NodeFacts) -> DescribedNode:
    """The facts with what others must know first."""
    kubelet = facts.kubelet
    return DescribedNode(**vars(facts), node_name=kubelet.node_name, kubelet_root=kubelet.root, kubelet_running=kubelet.running)


def strategy(host: Host, asked: str, brings: device_strategy.PlannedInstalls, toolkit: bool) -> Tuple[Dict[str, Any], List[str]]:
    """The device strategy that `asked` means on the host, that of its device plugin now, "" for none, and its facts of CDI.
    Also why the host cannot have it, a sentence each.

    toolkit: whether the configuration of the toolkit is compared.
    """
    facts = gather(host, ["runtimes", "sharing"])
    found, now = facts.cdi, facts.sharing
    if found is None or now is None:
        raise AssertionError("not gathered")
    reasons = device_strategy.obstacles(asked, found, facts.toolkit if toolkit else None, now.strategy, now.holders, brings)
    chosen = device_strategy.choose(asked, found, now.strategy, now.holders, brings)
    return {"strategy": chosen.strategy, "now": now.strategy, "cdi": asdict(found)}, [str(reason) for reason in reasons]


def _tuples(values: Mapping[str, Any]) -> Dict[str, Any]:
    return {key: tuple(value) if isinstance(value, list) else value for key, value in values.items()}
