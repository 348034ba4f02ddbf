# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The programs that also give this host's GPUs to pods: other device plugins and operators, by their processes, sockets and folders.

Read-only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Dict, List, Optional, Tuple

from .._cluster.names import DEVICE_PLUGINS, FORMER_SOCKET, MEMORY, ORIGINAL_SOCKET
from .._host.host import Host, RunningProcess
from .kubelet_checkpoint import holding, registered
from .pods import Pods

BOTH = "both would allocate the same GPUs"
OTHER_CURE = f"stop it and keep it off this node (its DaemonSet, unit, or the label that selects it): {BOTH}"
#: The managers that take_over.yml moves aside.
NVIDIA, OPERATOR, HAMI, ORIGINAL = "NVIDIA device plugin", "NVIDIA GPU Operator", "HAMi", "original gpushare device plugin"
_NVIDIA_RESOURCE = r"nvidia\.com/(gpu|mig-.*)"


@dataclass(frozen=True)
class GpuManager:
    """Another manager of the GPUs.

    name: its project. active: whether it has the GPUs now (a process, or devices that kubelet holds for it), not only left
    traces. evidence: what was seen, as a message. pods: those with its devices and a process that runs, by name where it is known.
    holders: UIDs of all pods that have its devices by kubelet's record, of which some may have ended.
    """

    name: str
    active: bool
    evidence: Tuple[str, ...]
    pods: Tuple[str, ...] = ()
    holders: Tuple[str, ...] = ()


@dataclass(frozen=True)
class _Kind:
    """How a manager is known. Patterns of its processes' names, its resources, its sockets; folders that only it makes.

    allots: the resource that pods have of it, where that does not show whose it is.
    """

    name: str
    process: str
    resource: str = ""
    socket: str = ""
    folder: str = ""
    allots: str = ""


_KINDS = (
    _Kind(NVIDIA, "nvidia-device-plugin", resource=_NVIDIA_RESOURCE, socket="nvidia.*"),
    _Kind(OPERATOR, "gpu-operator|nvidia-operator-validator|nvidia-validator", folder="/run/nvidia/validations", allots=_NVIDIA_RESOURCE),
    _Kind(HAMI, "vGPUmonitor|hami-device-plugin", resource=r"nvidia\.com/gpu(mem|cores).*", folder="/usr/local/vgpu"),
    _Kind("GPU Manager", "gpu-manager", resource=r"tencent\.com/.*", socket="vcore.*|vmemory.*", folder="/etc/gpu-manager"),
    _Kind("elastic-gpu-agent", "elastic-gpu-agent", resource=r"elasticgpu\.io/.*", socket="elastic.*"),
    _Kind(ORIGINAL, "gpushare-device-plugin.*", socket=re.escape(ORIGINAL_SOCKET), allots=re.escape(MEMORY)),
)


def managers(host: Host, own_root: str = "/opt/gpushare") -> Tuple[GpuManager, ...]:
    """The other managers found. own_root: where our own runtime is, whose processes are not strangers."""
    resources = registered(host)
    sockets = [name for name in host.names(DEVICE_PLUGINS) if name.endswith(".sock")]
    # The original has a socket of that name; only a former release of ours has the second one.
    if FORMER_SOCKET in sockets:
        sockets = [name for name in sockets if name != ORIGINAL_SOCKET]
    others = [process for process in host.processes if not any(word.startswith(own_root + "/") for word in process.argv[:2])]
    found = [manager for manager in (_manager(kind, host, others, sockets, resources) for kind in _KINDS) if manager is not None]
    if not found:
        return ()
    devices = holding(host)
    kinds = {kind.name: kind.resource or kind.allots for kind in _KINDS}
    holders = {
        manager.name: {uid for name, uids in devices.items() if re.fullmatch(kinds[manager.name], name) for uid in uids}
        for manager in found
    }
    pods = _running(host) if any(holders.values()) else {}
    return tuple(
        replace(
            manager,
            pods=tuple(sorted(pods[uid] for uid in holders[manager.name] if uid in pods)),
            holders=tuple(sorted(holders[manager.name])),
        )
        for manager in found
    )


def _running(host: Host) -> Dict[str, str]:
    """UID to name of the pods that have a process."""
    table = Pods(host)
    found = {}
    for process in host.processes:
        pod = table.of(process.pid)
        if pod is not None:
            found[pod.uid] = f"{pod.namespace}/{pod.name}" if pod.name else pod.uid
    return found


def _manager(
    kind: _Kind, host: Host, processes: List[RunningProcess], sockets: List[str], resources: Dict[str, int]
) -> Optional[GpuManager]:
    now = [f"process {process.pid} ({process.name})" for process in processes if re.fullmatch(kind.process, process.name)]
    traces = [f"socket {name}" for name in sockets if re.fullmatch(kind.socket, name)]
    for name, count in sorted(resources.items()):
        if re.fullmatch(kind.resource, name) and count:
            now.append(f"{count} healthy devices of {name} at kubelet")
        elif re.fullmatch(kind.resource, name):
            traces.append(f"resource {name} known to kubelet, without devices")
    if kind.folder and host.names(kind.folder):
        traces.append(f"folder {kind.folder}")
    return GpuManager(kind.name, bool(now), tuple(now + traces)) if now or traces else None
