# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The programs that also give this host's GPUs to pods: other device plugins, drivers of dynamic resource allocation (DRA), and operators.
They are known by their processes, sockets and folders.

Read-only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, List, Optional, Tuple

from .._cluster.names import (
    DEVICE_PLUGINS,
    DRA_HAMI,
    DRA_NVIDIA,
    DRA_REGISTRATION,
    FORMER_SOCKET,
    MEMORY,
    NVIDIA_RESOURCES,
    ORIGINAL_SOCKET,
)
from .._formats.finding import few
from .._host.host import Host
from .kubelet_checkpoint import claiming, holding, registered
from .pods import Pods

BOTH = "both would allocate the same GPUs"
OTHER_CURE = f"stop it and keep it off this node (its DaemonSet, unit, or the label that selects it): {BOTH}"
DRA_CURE = (
    "end the pods that have its claims on this node, then keep it off the node or switch its GPUs off: docs/operate/migrate.md has the "
    f"commands for its Helm chart and for a GPUCluster; {BOTH}"
)
#: DRA drivers: ComputeDomains may stay.
DRA_DRIVERS = {DRA_NVIDIA: "NVIDIA DRA driver", DRA_HAMI: "HAMi DRA driver"}
#: The managers that take_over.yml moves aside.
NVIDIA, OPERATOR, HAMI, ORIGINAL = "NVIDIA device plugin", "NVIDIA GPU Operator", "HAMi", "original gpushare device plugin"
# Each rolling update that was cut off leaves one.
_MOST_SOCKETS = 4
_QUOTED = 80


@dataclass(frozen=True)
class GpuManager:
    """Another manager of the GPUs.

    name: its project. active: whether it has the GPUs now (a process, devices that kubelet holds for it, or running pods with devices
    that are surely its), not only left traces. evidence: what was seen, as a message. pods: those with its devices and a process that
    runs, by name where it is known. holders: UIDs of all pods that have its devices by kubelet's record, of which some may have ended.
    """

    name: str
    active: bool
    evidence: Tuple[str, ...]
    pods: Tuple[str, ...] = ()
    holders: Tuple[str, ...] = ()


@dataclass(frozen=True)
class _Kind:
    """How a manager is known. Patterns of its processes' names, its resources, its sockets; folders that only it makes.

    allots: the resource that pods have of it, where that does not show whose it is. driver: its name, for a DRA driver, which has
    no resource: claims name it, and its folder and its socket are below kubelet's own folder.
    """

    name: str
    process: str
    resource: str = ""
    socket: str = ""
    folder: str = ""
    allots: str = ""
    driver: str = ""

    @property
    def has(self) -> str:
        """A pattern of what pods have of it alone, as kubelet has recorded it."""
        return re.escape(self.driver) if self.driver else self.resource


_KINDS = (
    _Kind(NVIDIA, "nvidia-device-plugin", resource=NVIDIA_RESOURCES, socket="nvidia.*"),
    _Kind(OPERATOR, "gpu-operator|nvidia-operator-validator|nvidia-validator", folder="/run/nvidia/validations", allots=NVIDIA_RESOURCES),
    _Kind(HAMI, "vGPUmonitor|hami-device-plugin", resource=r"nvidia\.com/gpu(mem|cores).*", folder="/usr/local/vgpu"),
    _Kind("GPU Manager", "gpu-manager", resource=r"tencent\.com/.*", socket="vcore.*|vmemory.*", folder="/etc/gpu-manager"),
    _Kind("elastic-gpu-agent", "elastic-gpu-agent", resource=r"elasticgpu\.io/.*", socket="elastic.*"),
    _Kind("Volcano vGPU", "volcano-vgpu-device-plugin", resource=r"volcano\.sh/vgpu-.*"),
    _Kind(DRA_DRIVERS[DRA_NVIDIA], "gpu-kubelet-plugin", driver=DRA_NVIDIA),
    _Kind(DRA_DRIVERS[DRA_HAMI], "hami-kubelet-plugin", driver=DRA_HAMI),
    _Kind(ORIGINAL, "gpushare-device-plugin.*", socket=re.escape(ORIGINAL_SOCKET), allots=re.escape(MEMORY)),
)


def managers(host: Host, own_root: str = "/opt/gpushare", kubelet_root: str = "/var/lib/kubelet") -> Tuple[GpuManager, ...]:
    """The other managers found. own_root: where our own runtime is, whose processes are not strangers. kubelet_root: its --root-dir."""
    seen = _Seen(host, own_root, kubelet_root)
    devices = {**holding(host), **claiming(host, kubelet_root)}
    running: Optional[Dict[str, str]] = None
    found = []
    for kind in _KINDS:
        now, traces = seen.of(kind)
        pattern = kind.has or (kind.allots if now or traces else "")
        holders = sorted({uid for name, uids in devices.items() if re.fullmatch(pattern, name) for uid in uids})
        if not (now or traces or holders):
            continue
        if holders and running is None:
            running = _running(host)
        pods = tuple(sorted(running[uid] for uid in holders if uid in running)) if running else ()
        if pods and kind.has and not now:
            # The end of a manager does not take their GPUs.
            now = [f"no process of it, and running pods with its devices: {few(pod[:_QUOTED] for pod in pods)}"]
        if now or traces:
            found.append(GpuManager(kind.name, bool(now), tuple(now + traces), pods, tuple(holders)))
    return tuple(found)


def dra_title(driver: str) -> str:
    """A DRA driver by its objects in the API."""
    return f"{DRA_DRIVERS.get(driver, 'a DRA driver')} (ResourceSlices of {driver[:_QUOTED]})"


def _running(host: Host) -> Dict[str, str]:
    """UID to name of the pods that have a process."""
    table = Pods(host)
    found = {}
    for process in host.processes:
        pod = table.of(process.pid)
        if pod is not None:
            found[pod.uid] = f"{pod.namespace}/{pod.name}" if pod.name else pod.uid
    return found


class _Seen:
    """The host's processes, resources and sockets, read once."""

    def __init__(self, host: Host, own_root: str, kubelet_root: str) -> None:
        self._host = host
        self._resources = registered(host)
        self._folder = f"{kubelet_root}/plugins"
        self._registrations = host.names(f"{kubelet_root}/plugins_registry")
        sockets = [name for name in host.names(DEVICE_PLUGINS) if name.endswith(".sock")]
        # The original has a socket of that name; only a former release of ours has the second one.
        if FORMER_SOCKET in sockets:
            sockets = [name for name in sockets if name != ORIGINAL_SOCKET]
        self._sockets = sockets
        self._processes = [process for process in host.processes if not any(word.startswith(own_root + "/") for word in process.argv[:2])]

    def of(self, kind: _Kind) -> Tuple[List[str], List[str]]:
        """(why it has the GPUs now, traces of it)."""
        now = [f"process {process.pid} ({process.name})" for process in self._processes if re.fullmatch(kind.process, process.name)]
        traces = [f"socket {name}" for name in self._sockets if re.fullmatch(kind.socket, name)]
        for name, count in sorted(self._resources.items()):
            if re.fullmatch(kind.resource, name) and count:
                now.append(f"{count} healthy devices of {name} at kubelet")
            elif re.fullmatch(kind.resource, name):
                traces.append(f"resource {name} known to kubelet, without devices")
        if kind.driver:
            pattern = re.escape(kind.driver) + DRA_REGISTRATION
            traces += [f"socket {name}" for name in self._registrations if re.fullmatch(pattern, name)][:_MOST_SOCKETS]
        folder = f"{self._folder}/{kind.driver}" if kind.driver else kind.folder
        if folder and self._host.names(folder):
            traces.append(f"folder {folder}")
        return now, traces
