# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether other device plugins can be moved aside: what the hosts say of kubelet and GPUs, and what the cluster has, must agree.

Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...module_utils._cluster.names import MEMORY
from ...module_utils._facts.device_managers import HAMI, NVIDIA, OPERATOR, ORIGINAL
from ...module_utils._formats.finding import few
from ...module_utils._takeover.original import memory_unit

_SHOWN = 8
_QUOTED = 80
#: Managers on a host → the DaemonSets in the cluster that may be theirs. HAMi's program has NVIDIA's name.
_MAY_BE: Mapping[str, tuple[str, ...]] = {NVIDIA: (NVIDIA, OPERATOR, HAMI), HAMI: (HAMI,), ORIGINAL: (ORIGINAL,)}


@dataclass(frozen=True)
class HostState:
    """The known facts of one GPU host. managers: the other managers of its GPUs, as gpu_node_info has them. registered: healthy devices
    by resource, at kubelet. memories: MiB of each GPU, in their order. unit: the one in which ours will count."""

    host: str
    node: str
    managers: Sequence[Mapping[str, Any]]
    registered: Mapping[str, int]
    memories: Sequence[int]
    unit: str


@dataclass(frozen=True)
class TakeoverVerdict:
    """rejections: why the run must stop, each a message of its own; moves: host → titles of the DaemonSets that leave it."""

    rejections: tuple[str, ...]
    moves: Mapping[str, list[str]]


def judge(hosts: Sequence[HostState], found: Mapping[str, Any], port: int, drain: bool, without_operator: bool = False) -> TakeoverVerdict:
    """found: the result of gpushare_api. port: of our extender. drain: whether pods are evicted first. without_operator: whether this
    run switches the GPU Operator's device plugin off.
    """
    rejections: list[str] = []
    moves: dict[str, list[str]] = {}
    concerned: dict[str, Mapping[str, Any]] = {}
    for host in hosts:
        here = [plugin for plugin in found["plugins"] if host.node in plugin["nodes"]]
        if here:
            moves[host.host] = [str(plugin["title"]) for plugin in here]
        concerned.update({str(plugin["title"]): plugin for plugin in here})
        rejections += _unknown(host, here)
        rejections += _holders(host, here, found["active"], drain)
        if any(plugin["original"] for plugin in here):
            rejections += _unit(host)
    stay = (plugin for _title, plugin in sorted(concerned.items()) if plugin["kind"] != OPERATOR or not without_operator)
    rejections = [str(plugin["rejection"]) for plugin in stay if plugin["rejection"]] + rejections
    if any(plugin["original"] for plugin in found["plugins"]) and port in found["node_ports"]:
        rejections.append(
            f"the original's Service has the NodePort {port}, which kube-proxy serves on 127.0.0.1, too, and gpushare_extender_port is the "
            "same: set gpushare_extender_port to a free port outside of the range of NodePorts, such as 22766"
        )
    return TakeoverVerdict(tuple(rejections), moves)


def held_by(host: HostState, kinds: Iterable[str], pods: Mapping[str, str]) -> list[str]:
    """The pods that hold devices of these managers: those with a process, and those that the API server still counts."""
    names: set[str] = set()
    for manager in host.managers:
        if manager["name"] in kinds:
            names.update(str(name) for name in manager.get("pods") or ())
            names.update(str(pods[uid]) for uid in manager.get("holders") or () if uid in pods)
    return sorted(names)


def _unknown(host: HostState, here: Sequence[Mapping[str, Any]]) -> list[str]:
    """A device plugin that runs without a DaemonSet that could be moved."""
    kinds = {str(plugin["kind"]) for plugin in here}
    lost = [
        str(manager["name"])
        for manager in host.managers
        if any(word.startswith("process ") for word in manager["evidence"])
        and not kinds.intersection(_MAY_BE.get(manager["name"], (manager["name"],)))
    ]
    return [
        f"{host.host}: {name} runs on the node {host.node}, and no DaemonSet of it is known to have a pod there; expected one that can be "
        "moved aside: stop it on this node by the means that started it"
        for name in lost
        if name in _MAY_BE
    ]


def _holders(host: HostState, here: Sequence[Mapping[str, Any]], pods: Mapping[str, str], drain: bool) -> list[str]:
    """The original's pods keep what they have."""
    names = held_by(host, (NVIDIA, OPERATOR, HAMI), pods)
    if not names or drain:
        return []
    whose = ", ".join(str(plugin["title"]) for plugin in here) or "another device plugin"
    shown = few((name[:_QUOTED] for name in names), _SHOWN)
    return [
        f"{host.host}: pods have GPUs of {whose}: {shown}; expected none, because GPUs would be given away twice: delete these "
        "pods, set gpushare_drain, or leave the host out with --limit"
    ]


def _unit(host: HostState) -> list[str]:
    units = memory_unit(host.registered.get(MEMORY, 0), host.memories)
    if units is None or units == host.unit:
        return []
    return [
        f"{host.host}: the original counts memory in {units} on the node {host.node}, and gpushare_memory_unit is {host.unit}: the device "
        f"ids of running pods would mean another amount; set gpushare_memory_unit: {units} for this host"
    ]
