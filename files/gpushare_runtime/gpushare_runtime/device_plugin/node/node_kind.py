# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The kind of a node by who has prepared it for GPUs, and so how its containers get them, as its device plugin's pod sees it. Pure.

The pod cannot ask the container runtime whether CDI is on. So it counts as on only where that is the default, or where the GPU Operator,
which has switched it on, shows it by its own CDI spec. Elsewhere containers get their GPUs by NVIDIA_VISIBLE_DEVICES.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from gpushare_runtime.core import protocol

GPU_OPERATOR: Final = "gpu-operator"
K3S: Final = "k3s"
RKE2: Final = "rke2"
DEFAULT_RUNTIME: Final = "default-runtime"
TOOLKIT: Final = "toolkit"
NODE_KINDS: Final = (GPU_OPERATOR, K3S, RKE2, DEFAULT_RUNTIME, TOOLKIT)

# From which on each reads CDI devices of a device plugin, and specs of version 0.7.0: docs/operate/visibility.md has the sources. The
# installer's table is KINDS of plugins/module_utils/_host/container_runtimes.py.
_KUBELET: Final = (1, 29, 0)
_BY_DEFAULT: Final = {"containerd": (2, 0, 0), "cri-o": (1, 30, 0)}
_SWITCHED_ON: Final = {"containerd": (1, 7, 16), "cri-o": (1, 30, 0)}
_VERSION: Final = re.compile(r"v?([0-9]{1,4})\.([0-9]{1,4})(?:\.([0-9]{1,4}))?")


@dataclass(frozen=True)
class NodeSight:
    """The facts that the pod sees.

    kubelet, runtime: versions, as the node's status has them.
    operator: whether the GPU Operator works on this node.
    management: whether the CDI spec of its toolkit is there.
    runtime_class: of the device plugin's pod, "" where NVIDIA's runtime is the default.
    """

    kubelet: str
    runtime: str
    operator: bool = False
    management: bool = False
    runtime_class: str = ""


@dataclass(frozen=True)
class NodeKind:
    """name: of NODE_KINDS, strategy: of protocol.STRATEGIES, why: for the log."""

    name: str
    strategy: str
    why: str


def node_kind(seen: NodeSight) -> NodeKind:
    name = _name(seen)
    runtime, version = seen.runtime.partition("://")[::2]
    oldest = (_SWITCHED_ON if seen.management else _BY_DEFAULT).get(runtime)
    words = f"kubelet {seen.kubelet[:40]}, {seen.runtime[:40]}"
    if oldest is not None and _numbers(version) >= oldest and _numbers(seen.kubelet) >= _KUBELET:
        return NodeKind(name, protocol.STRATEGY_CDI, f"{words}: containers get GPUs as CDI devices")
    weak = "any container's NVIDIA_VISIBLE_DEVICES selects GPUs there, which is the weakest strategy"
    cure = "set gpushare_device_strategy to cdi if CDI is on, or to volume-mounts if NVIDIA's runtime takes GPUs from kubelet alone"
    return NodeKind(name, protocol.STRATEGY_ENVIRONMENT, f"{words}: CDI is not known to be on; {weak}; {cure}")


def _name(seen: NodeSight) -> str:
    if seen.operator or seen.management:
        return GPU_OPERATOR
    if "+k3s" in seen.kubelet:
        return K3S
    if "+rke2" in seen.kubelet:
        return RKE2
    return TOOLKIT if seen.runtime_class else DEFAULT_RUNTIME


def _numbers(version: str) -> tuple[int, ...]:
    found = _VERSION.match(version)
    return tuple(int(part or 0) for part in found.groups()) if found else ()
