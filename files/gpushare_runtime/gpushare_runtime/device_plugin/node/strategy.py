# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""How a container gets its GPUs, by strategy: what Allocate returns besides the ALIYUN_COM_* variables. Pure.

cdi: kubelet hands names of CDI devices to the container runtime, which applies the CDI spec. The text of the container's environment
has no effect, as long as the default runtime is not nvidia's, or does not honour it.

volume-mounts: nvidia's runtime reads the GPUs from mounts, which only kubelet and a pod with hostPath can make.

envvar: nvidia's runtime reads NVIDIA_VISIBLE_DEVICES, as with the original. The pod's own environment precedes this answer.

kubelet keeps an answer for as long as the container exists, and repeats it at each restart of the container. So another strategy
must not be set while pods have GPUs: their answers would meet a host that is configured for another one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from typing import Final

from gpushare_runtime.core import protocol
from gpushare_runtime.core.inventory import Gpu
from gpushare_runtime.core.mps import Mount

# For nvidia's runtime: it has nothing to do. It also replaces the value that an image sets.
_NOTHING: Final = "void"
# Every process on a GPU opens these, too. A host has those of them that its driver has made.
_CONTROL_NODES: Final = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", "nvidia-modeset")
_KEEP_ISOLATION: Final = "Delete these pods first (kubectl drain, or their owners), or keep gpushare_isolation as it was for this host"


@dataclass(frozen=True)
class GpuAccess:
    """visible: the value of NVIDIA_VISIBLE_DEVICES; cdi_devices: full names.

    device_nodes: names in the host's /dev, of which the container gets those that exist. nvidia's runtime makes them as well, in its
    mode legacy behind runc's back: `systemctl daemon-reload` and the CPU manager then take away what the container's own list of
    devices does not contain. CDI devices are in that list.
    """

    visible: str
    cdi_devices: tuple[str, ...] = ()
    mounts: tuple[Mount, ...] = ()
    device_nodes: tuple[str, ...] = ()


def access_to(strategy: str, gpus: Sequence[Gpu], cdi_kind: str = protocol.CDI_KIND) -> GpuAccess:
    """The access to exactly these GPUs. strategy: of protocol.STRATEGIES; cdi_kind: of the devices that the CDI spec names."""
    uuids = [gpu.uuid for gpu in gpus]
    if strategy == protocol.STRATEGY_CDI:
        return GpuAccess(_NOTHING, cdi_devices=tuple(f"{cdi_kind}={uuid}" for uuid in uuids))
    nodes = (*(f"nvidia{gpu.minor}" for gpu in gpus), *_CONTROL_NODES)
    if strategy == protocol.STRATEGY_MOUNTS:
        mounts = tuple(Mount(f"{protocol.MOUNTED_DEVICES}/{uuid}", "/dev/null") for uuid in uuids)
        return GpuAccess(protocol.MOUNTED_DEVICES, mounts=mounts, device_nodes=nodes)
    return GpuAccess(",".join(uuids), device_nodes=nodes)


def no_instances(strategy: str, isolation: str) -> str:
    """Why pods cannot get MIG instances on a node with these settings, and what to do; "" if they can."""
    if strategy != protocol.STRATEGY_CDI:
        return f"MIG instances need the device strategy {protocol.STRATEGY_CDI}, found {strategy}: set gpushare_device_strategy to it"
    if isolation in (protocol.ISOLATION_MPS, protocol.ISOLATION_DRIVER):
        return f"MIG instances have no limits by {isolation}: set gpushare_isolation to auto or watch for this host, or the GPU's MIG off"
    return ""


def changed_isolation(isolation: str, before: str, uids: Set[str], live: Callable[[Set[str]], Set[str]]) -> str:
    """Why the plugin cannot use this isolation now; "" if it can. before, uids, live: as for changed_strategy.

    Only MPS changes what a container gets. Without a control daemon its clients cannot use the GPU, and with one the others cannot.
    """
    changed = before != "" and protocol.ISOLATION_MPS in (isolation, before) and isolation != before
    running = sorted(live(uids)) if changed and uids else []
    if not running:
        return ""
    return (
        f"{len(running)} pods have GPUs with the isolation {before[:80]} (UID {_shown(running)}), this plugin should use {isolation}: "
        f"their containers cannot use a GPU in the other way. {_KEEP_ISOLATION}"
    )


def left_limits(isolation: str, uids: Set[str], live: Callable[[Set[str]], Set[str]]) -> str:
    """Why the plugin cannot use this isolation now; "" if it can. uids: pods that the driver limits. live: as for changed_strategy.

    A limit lasts as long as its pod. No comparison would find it any more, and the node would publish that it limits nothing.
    """
    unlimited = isolation in (protocol.ISOLATION_WATCH, protocol.ISOLATION_NONE)
    running = sorted(live(uids)) if unlimited and uids else []
    if not running:
        return ""
    return (
        f"the driver limits the memory of {len(running)} pods (UID {_shown(running)}), this plugin should use {isolation}: they would keep "
        f"limits that this node does not publish. {_KEEP_ISOLATION}"
    )


def changed_strategy(strategy: str, before: str, uids: Set[str], live: Callable[[Set[str]], Set[str]]) -> str:
    """Why the plugin cannot use this strategy now; "" if it can.

    before: the strategy by which these pods got their GPUs, "" if unknown; live: returns those of the pods that have a process.
    """
    running = sorted(live(uids)) if before not in ("", strategy) and uids else []
    if not running:
        return ""
    return (
        f"{len(running)} pods have GPUs by the device strategy {before[:80]} (UID {_shown(running)}), this plugin should use {strategy}: "
        "kubelet repeats the former answer when their containers restart, on a host that is configured for another strategy. "
        f"Delete these pods first, or start with --device-strategy {before[:80]}"
    )


def _shown(uids: Sequence[str]) -> str:
    return ", ".join(uids[:3]) + (f" and {len(uids) - 3} more" if len(uids) > 3 else "")
