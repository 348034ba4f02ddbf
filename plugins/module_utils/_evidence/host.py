# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""All that verify must see of one host, in one go. Read-only.

The result is plain JSON: {"places", "now", "node_name", "kubelet", "runtime", "doctor", "files", "gpu": {…} or null, "plane": {…} or null};
the second reading during a probe has only what changes then.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass
from typing import Any, Collection, Dict, List, Optional

from .._cluster.names import DASHBOARD, EXTENDER, PLUGIN
from .._facts.device_managers import managers
from .._facts.ground import without_room
from .._facts.kubelet_checkpoint import forgotten
from .._facts.node import NodeFacts, gather
from .._facts.nvidia_smi import MINIMUM_DRIVER
from .._facts.stopped_unit import StoppedUnit, kubelet_complaint, name_of_kubelet, proxy_of_kubelet, unreached
from .._facts.unit_limits import low_limits
from .._formats.certificate import life_of
from .._host import command
from .._host.container_runtimes import KINDS
from .._host.host import Host
from .._host.systemd import UNITS
from . import control_plane as evidence_control_plane
from . import daemons
from . import files as evidence_files
from . import gpu_node as evidence_gpu_node

#: kubelet's own: it renews it, and its --root-dir does not move it.
_KUBELET_CERTIFICATE = "/var/lib/kubelet/pki/kubelet-client-current.pem"
MPS = "gpushare-mps"
PARTS = ("containers", "extender")


@dataclass(frozen=True)
class Places:
    """The kind of the host, and where things are on it: the options of the module gpushare_verify_host. pki_dir "": plain http."""

    gpu_node: bool
    control_plane: bool
    dashboard: bool = False
    install_dir: str = "/opt/gpushare"
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
    scheduler_manifest: str = "/etc/kubernetes/manifests/kube-scheduler.yaml"
    scheduler_config: str = "/etc/kubernetes/gpushare/kube-scheduler.yaml"


@dataclass(frozen=True)
class KubeletEvidence:
    """unit: its unit, if it does not run. Otherwise says, unreached, proxy: its complaints, "" for none."""

    running: bool
    unit: Optional[StoppedUnit]
    says: str
    unreached: str
    proxy: str


def see(host: Host, places: Places, only: Optional[Collection[str]] = None) -> Dict[str, Any]:
    """Read the host. only: parts of PARTS, None for everything."""
    seen: Dict[str, Any] = {"places": asdict(places), "gpu": None, "plane": None}
    if only is None:
        facts = gather(host, ["gpus", "runtimes", "sharing"] if places.gpu_node else [])
        seen["node_name"] = facts.kubelet.node_name
        runs = facts.kubelet_unit is None
        kubelet = KubeletEvidence(
            running=facts.kubelet.running,
            unit=facts.kubelet_unit,
            says=kubelet_complaint(host) if runs else "",
            unreached=unreached(host) if runs else "",
            proxy=proxy_of_kubelet(host) if runs else "",
        )
        seen["kubelet"] = asdict(kubelet)
        seen["runtime"] = daemons.runtime(host, places.install_dir)
        seen["doctor"] = daemons.doctor(host, places.install_dir, _daemons(host, places))
        seen["files"] = evidence_files.files(host)
        if places.gpu_node:
            seen["gpu"] = _gpu(host, places, facts)
        if places.control_plane:
            files = evidence_control_plane.scheduler_files(host, places.scheduler_manifest, places.scheduler_config)
            seen["plane"] = {"scheduler": files, "lives": evidence_control_plane.lives(host)}
    # Right before the containers are read: each that has been started by this moment is seen.
    seen["now"] = time.time()
    if places.gpu_node and (only is None or "containers" in only):
        seen["gpu"] = dict(seen["gpu"] or {}, containers=evidence_gpu_node.containers(host))
    if places.control_plane and only is not None and "extender" in only:
        seen["doctor"] = daemons.doctor(host, places.install_dir, [EXTENDER])
    return seen


def _daemons(host: Host, places: Places) -> List[str]:
    """Those that the host must have, and a dashboard that it has anyway."""
    dashboard = places.dashboard or host.text(f"{UNITS}/{DASHBOARD}.service") is not None
    wanted = {PLUGIN: places.gpu_node, EXTENDER: places.control_plane, DASHBOARD: dashboard}
    return [name for name, there in wanted.items() if there]


def _gpu(host: Host, places: Places, facts: NodeFacts) -> Dict[str, Any]:
    smi = facts.nvidia_smi
    if facts.cgroups is None:
        raise AssertionError("not gathered")
    runtime = places.runtime_name if places.runtime_name != "auto" else facts.kubelet.runtime or "containerd"
    units = [name_of_kubelet(host), *([places.runtime_unit or KINDS[runtime].unit] if runtime in KINDS else [])]
    return {
        "nvidia_smi": None if smi is None else smi.as_dict(),
        "driver": None if facts.driver is None else asdict(facts.driver),
        "managers": [asdict(manager) for manager in managers(host, places.install_dir, facts.kubelet.root) if manager.active],
        "container_runtime": evidence_gpu_node.container_runtime(runtime, places.runtime_unit, places.runtime_config, command.run, host)
        if runtime in KINDS
        else None,
        "images": evidence_gpu_node.images(host, facts.kubelet.endpoint),
        "sandbox": evidence_gpu_node.sandbox(host, facts.kubelet.endpoint, facts.kubelet.runtime),
        "forgotten": forgotten(host),
        "kubelet_life": life_of(host.text(_KUBELET_CERTIFICATE) or ""),
        "kubelet_roots": [facts.kubelet.root, facts.sharing.kubelet_root if facts.sharing is not None else ""],
        "without_room": list(without_room(host)),
        "mps": any(name.startswith(MPS) for name in host.names(UNITS)),
        "cdi": evidence_gpu_node.cdi(host),
        "devices": evidence_gpu_node.devices(host, [gpu.minor for gpu in smi.gpus if gpu.minor is not None] if smi else []),
        "strangers": evidence_gpu_node.strangers(host),
        "strategy": _strategy(facts),
        "cgroups": asdict(facts.cgroups),
        "limits": [asdict(limits) for limits in low_limits(host, units)],
    }


def _strategy(facts: NodeFacts) -> Dict[str, Any]:
    """now: of the device plugin's unit, "" for none."""
    if facts.cdi is None or facts.toolkit is None or facts.sharing is None:
        raise AssertionError("not gathered")
    sharing = facts.sharing
    return {"cdi": asdict(facts.cdi), "toolkit": asdict(facts.toolkit), "now": sharing.strategy, "holders": list(sharing.holders)}
