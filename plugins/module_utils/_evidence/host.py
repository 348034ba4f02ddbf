# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""All that verify must see of one host, in one go. Read-only.

A second reading during a probe has only what changes then.
"""

from __future__ import annotations

import time
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, Collection, Dict, List, Optional, Tuple

from .._cluster.names import DASHBOARD, EXTENDER, PLUGIN
from .._facts.cgroup_drivers import CgroupDrivers
from .._facts.device_managers import GpuManager, managers
from .._facts.device_strategy import STRATEGY, CdiFacts, ToolkitFacts
from .._facts.driver import Driver
from .._facts.ground import without_room
from .._facts.kubelet_checkpoint import forgotten
from .._facts.node import NodeFacts, gather
from .._facts.nvidia_smi import MINIMUM_DRIVER, SmiReport
from .._facts.stopped_unit import StoppedUnit, kubelet_complaint, name_of_kubelet, proxy_of_kubelet, unreached
from .._facts.unit_limits import UnitLimits, low_limits
from .._formats.answers import ABSENT, ModuleAnswer, like
from .._formats.certificate import life_of
from .._host import command
from .._host.container_runtimes import KINDS
from .._host.host import Host
from .._host.systemd import UNITS
from .._runtimes.images import IMAGE
from . import control_plane as evidence_control_plane
from . import daemons
from . import files as evidence_files
from . import gpu_node as evidence_gpu_node

#: kubelet's own: it renews it, and its --root-dir does not move it.
_KUBELET_CERTIFICATE = "/var/lib/kubelet/pki/kubelet-client-current.pem"
MPS = "gpushare-mps"
PARTS = ("containers", "extender")
#: Options to the variables of the inventory that they follow, unless a task says otherwise. tools/shared_variables.py reads this.
VARIABLES: Dict[str, str] = {
    "install_dir": "gpushare_install_dir",
    "extender_port": "gpushare_extender_port",
    "extender_weight": "gpushare_extender_weight",
    "extender_http_timeout": "gpushare_extender_http_timeout",
    "preemption": "gpushare_preemption",
    "memory_unit": "gpushare_memory_unit",
    "device_strategy": STRATEGY,
    "minimum_driver": "gpushare_minimum_driver",
    "expect_gpus": "gpushare_expect_gpus",
    "expect_memory_mib": "gpushare_expect_memory_mib",
    "scheduler_manifest": "gpushare_scheduler_manifest",
    "scheduler_config": "gpushare_scheduler_config",
    "runtime_unit": "gpushare_container_runtime_unit",
    "runtime_default": "gpushare_default_runtime",
    "runtime_config": "gpushare_container_runtime_config",
}
#: An option that Ansible takes as a path of the host.
_PATH = {"type": "path"}


@dataclass(frozen=True)
class Places:
    """The kind of the host, and where things are on it: options of the module gpushare_verify_host. pki_dir "": plain http."""

    gpu_node: bool
    control_plane: bool
    dashboard: bool = False
    install_dir: str = field(default="/opt/gpushare", metadata=_PATH)
    pki_dir: str = ""
    extender_port: int = 32766
    extender_weight: int = 10
    extender_http_timeout: str = "1s"
    preemption: bool = True
    memory_unit: str = ""
    device_strategy: str = "auto"
    minimum_driver: str = MINIMUM_DRIVER
    expect_gpus: int = 0
    expect_memory_mib: int = 0
    metrics_plugin: str = ""
    metrics_extender: str = ""
    runtime_name: str = "auto"
    runtime_default: str = "auto"
    runtime_unit: str = ""
    runtime_config: str = ""
    scheduler_manifest: str = field(default="/etc/kubernetes/manifests/kube-scheduler.yaml", metadata=_PATH)
    scheduler_config: str = field(default="/etc/kubernetes/gpushare/kube-scheduler.yaml", metadata=_PATH)


def _option(place: Any) -> Dict[str, Any]:
    """The option of a field of Places."""
    kind = {"type": place.metadata.get("type", place.type)}
    return {**kind, "required": True} if place.default is MISSING else {**kind, "default": place.default}


ARGUMENTS: Dict[str, Dict[str, Any]] = {
    **{place.name: _option(place) for place in fields(Places)},
    "only": {"type": "list", "elements": "str", "choices": list(PARTS)},
    "root": {"type": "path", "default": "/"},
}


@dataclass(frozen=True)
class KubeletEvidence:
    """unit: its service, as `failing_kubelet` finds it. Otherwise says, unreached, proxy: its complaints, "" for none."""

    running: bool
    unit: Optional[StoppedUnit]
    says: str
    unreached: str
    proxy: str


@dataclass(frozen=True)
class StrategyEvidence:
    """now: of the device plugin's unit, "" for none. holders: pods with GPUs."""

    cdi: CdiFacts
    toolkit: ToolkitFacts
    now: str
    holders: List[str]


@dataclass(frozen=True)
class GpuEvidence:
    """The state of a host whose GPUs are shared. kubelet_life: of kubelet's certificate, in Unix time. kubelet_roots: kubelet's folder,
    and that of the device plugin's unit, "" for none. containers: id to device nodes.
    """

    nvidia_smi: SmiReport
    driver: Optional[Driver]
    managers: List[GpuManager]
    container_runtime: Optional[evidence_gpu_node.RuntimeEvidence]
    images: List[str] = field(metadata=like(IMAGE))
    sandbox: evidence_gpu_node.SandboxImage
    forgotten: List[str]
    kubelet_life: Optional[Tuple[float, float]]
    kubelet_roots: Tuple[str, str]
    without_room: Tuple[str, ...]
    mps: bool
    cdi: evidence_gpu_node.CdiEvidence
    devices: evidence_gpu_node.DeviceNodes
    strangers: List[evidence_gpu_node.StrangeContainer]
    strategy: StrategyEvidence
    cgroups: CgroupDrivers
    limits: List[UnitLimits]
    containers: Dict[str, List[str]]


@dataclass(frozen=True)
class HostEvidence:
    """All that verify sees of a host. gpu, plane: None of a host that is none. now: Unix time, right before the containers were read."""

    places: Places
    now: float
    node_name: str
    kubelet: KubeletEvidence
    runtime: daemons.InstalledRuntime
    doctor: daemons.DoctorSays
    files: evidence_files.FilesEvidence
    gpu: Optional[GpuEvidence]
    plane: Optional[evidence_control_plane.PlaneEvidence]


@dataclass(frozen=True)
class ContainersAgain:
    """The containers of a second reading."""

    containers: Dict[str, List[str]]


@dataclass(frozen=True)
class EvidenceAgain:
    """A second reading, during a probe: what changes then."""

    places: Places
    now: float
    gpu: Optional[ContainersAgain]
    plane: None = None
    doctor: Optional[daemons.DoctorSays] = field(default=None, metadata=ABSENT)


@dataclass(frozen=True)
class SeenHost(ModuleAnswer):
    """The answer of gpushare_verify_host."""

    seen: HostEvidence


@dataclass(frozen=True)
class SeenAgain(ModuleAnswer):
    """The answer of gpushare_verify_host with `only`."""

    seen: EvidenceAgain


def answer(module: Any) -> SeenHost:
    """Gather everything."""
    return SeenHost(False, see(Host(module.params["root"]), _places(module)))


def again(module: Any) -> SeenAgain:
    """Gather what changes during a probe."""
    return SeenAgain(False, see_again(Host(module.params["root"]), _places(module), module.params["only"]))


def _places(module: Any) -> Places:
    return Places(**{place.name: module.params[place.name] for place in fields(Places)})


def see(host: Host, places: Places) -> HostEvidence:
    """Read the host."""
    facts = gather(host, ["gpus", "runtimes", "sharing"] if places.gpu_node else [])
    runs = facts.kubelet_unit is None
    kubelet = KubeletEvidence(
        running=facts.kubelet.running,
        unit=facts.kubelet_unit,
        says=kubelet_complaint(host) if runs else "",
        unreached=unreached(host) if runs else "",
        proxy=proxy_of_kubelet(host) if runs else "",
    )
    runtime = daemons.runtime(host, places.install_dir)
    doctor = daemons.doctor(host, places.install_dir, _daemons(host, places))
    files = evidence_files.files(host)
    gpu = _gpu(host, places, facts) if places.gpu_node else None
    plane = None
    if places.control_plane:
        scheduler = evidence_control_plane.scheduler_files(host, places.scheduler_manifest, places.scheduler_config)
        plane = evidence_control_plane.PlaneEvidence(scheduler, evidence_control_plane.lives(host))
    # Right before the containers are read: each that has been started by this moment is seen.
    now = time.time()
    gpu = None if gpu is None else replace(gpu, containers=evidence_gpu_node.containers(host))
    return HostEvidence(places, now, facts.kubelet.node_name, kubelet, runtime, doctor, files, gpu, plane)


def see_again(host: Host, places: Places, only: Collection[str]) -> EvidenceAgain:
    """Read what changes during a probe. only: parts of PARTS."""
    now = time.time()
    gpu = ContainersAgain(evidence_gpu_node.containers(host)) if places.gpu_node and "containers" in only else None
    doctor = daemons.doctor(host, places.install_dir, [EXTENDER]) if places.control_plane and "extender" in only else None
    return EvidenceAgain(places, now, gpu, doctor=doctor)


def _daemons(host: Host, places: Places) -> List[str]:
    """Those that the host must have, and a dashboard that it has anyway."""
    dashboard = places.dashboard or host.text(f"{UNITS}/{DASHBOARD}.service") is not None
    wanted = {PLUGIN: places.gpu_node, EXTENDER: places.control_plane, DASHBOARD: dashboard}
    return [name for name, there in wanted.items() if there]


def _gpu(host: Host, places: Places, facts: NodeFacts) -> GpuEvidence:
    """The evidence before the containers are read."""
    smi = facts.nvidia_smi
    if facts.cgroups is None or smi is None:
        raise AssertionError("not gathered")
    runtime = places.runtime_name if places.runtime_name != "auto" else facts.kubelet.runtime or "containerd"
    units = [name_of_kubelet(host), *([places.runtime_unit or KINDS[runtime].unit] if runtime in KINDS else [])]
    return GpuEvidence(
        nvidia_smi=smi,
        driver=facts.driver,
        managers=[manager for manager in managers(host, places.install_dir, facts.kubelet.root) if manager.active],
        container_runtime=evidence_gpu_node.container_runtime(runtime, places.runtime_unit, places.runtime_config, command.run, host)
        if runtime in KINDS
        else None,
        images=evidence_gpu_node.images(host, facts.kubelet.endpoint),
        sandbox=evidence_gpu_node.sandbox(host, facts.kubelet.endpoint, facts.kubelet.runtime),
        forgotten=forgotten(host),
        kubelet_life=life_of(host.text(_KUBELET_CERTIFICATE) or ""),
        kubelet_roots=(facts.kubelet.root, facts.sharing.kubelet_root if facts.sharing is not None else ""),
        without_room=without_room(host),
        mps=any(name.startswith(MPS) for name in host.names(UNITS)),
        cdi=evidence_gpu_node.cdi(host),
        devices=evidence_gpu_node.devices(host, [gpu.minor for gpu in smi.gpus if gpu.minor is not None]),
        strangers=evidence_gpu_node.strangers(host),
        strategy=_strategy(facts),
        cgroups=facts.cgroups,
        limits=low_limits(host, units),
        containers={},
    )


def _strategy(facts: NodeFacts) -> StrategyEvidence:
    if facts.cdi is None or facts.toolkit is None or facts.sharing is None:
        raise AssertionError("not gathered")
    return StrategyEvidence(facts.cdi, facts.toolkit, facts.sharing.strategy, list(facts.sharing.holders))
