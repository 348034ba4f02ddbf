# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What else gives this host's cards to pods: other device plugins and operators, by their processes, sockets and folders.

Private to this collection. Read-only.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, List, Optional, Tuple

from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.names import CARDS, MEMORY, SOCKETS
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts.kubelet_checkpoint import registered
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.host import Host, RunningProcess


@dataclass(frozen=True)
class Manager:
    """Another manager of the cards.

    name: its project; active: whether it has the cards now (a process, or devices that kubelet holds for it), not only left
    traces; evidence: what was seen, in words.
    """

    name: str
    active: bool
    evidence: Tuple[str, ...]


@dataclass(frozen=True)
class _Kind:
    """How a manager is known. Patterns of its processes' names, its resources, its sockets; folders that only it makes."""

    name: str
    process: str
    resource: str = ""
    socket: str = ""
    folder: str = ""


_KINDS = (
    _Kind("NVIDIA device plugin", "nvidia-device-plugin", resource=r"nvidia\.com/(gpu|mig-.*)", socket="nvidia.*"),
    _Kind("NVIDIA GPU Operator", "gpu-operator|nvidia-operator-validator|nvidia-validator", folder="/run/nvidia/validations"),
    _Kind("HAMi", "vGPUmonitor|hami-device-plugin", resource=r"nvidia\.com/gpu(mem|cores).*", folder="/usr/local/vgpu"),
    _Kind("GPU Manager", "gpu-manager", resource=r"tencent\.com/.*", socket="vcore.*|vmemory.*", folder="/etc/gpu-manager"),
    _Kind("elastic-gpu-agent", "elastic-gpu-agent", resource=r"elasticgpu\.io/.*", socket="elastic.*"),
    _Kind("original gpushare device plugin", "gpushare-device-plugin.*", socket=re.escape(SOCKETS[MEMORY])),
)


def managers(host: Host, kubelet_root: str, own_root: str = "/opt/gpushare") -> Tuple[Manager, ...]:
    """The other managers found. own_root: where our own runtime is, whose processes are no strangers."""
    resources = registered(host, kubelet_root)
    sockets = [name for name in host.names(f"{kubelet_root}/device-plugins") if name.endswith(".sock")]
    # The original has a socket of that name; only ours has the second one.
    if SOCKETS[CARDS] in sockets:
        sockets = [name for name in sockets if name != SOCKETS[MEMORY]]
    others = [process for process in host.processes if not any(word.startswith(own_root + "/") for word in process.argv[:2])]
    found = (_manager(kind, host, others, sockets, resources) for kind in _KINDS)
    return tuple(manager for manager in found if manager is not None)


def _manager(kind: _Kind, host: Host, processes: List[RunningProcess], sockets: List[str], resources: Dict[str, int]) -> Optional[Manager]:
    now = [f"process {process.pid} ({process.name})" for process in processes if re.fullmatch(kind.process, process.name)]
    traces = [f"socket {name}" for name in sockets if re.fullmatch(kind.socket, name)]
    for name, count in sorted(resources.items()):
        if re.fullmatch(kind.resource, name) and count:
            now.append(f"{count} healthy devices of {name} at kubelet")
        elif re.fullmatch(kind.resource, name):
            traces.append(f"resource {name} known to kubelet, without devices")
    if kind.folder and host.names(kind.folder):
        traces.append(f"folder {kind.folder}")
    return Manager(kind.name, bool(now), tuple(now + traces)) if now or traces else None
