# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What an instance is asked to be, and the plan of its nodes; pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from ipaddress import IPv4Network

from .process import LabError

CONTROL_PLANE = "cp1"
#: What the nodes' file system has before anything lies above it; runtimes.py has the others.
DEBIANS_RUNTIME = "containerd-1.6"
DEFAULT_RUNTIME = "containerd-2.4"
DEFAULT_GPUS = {"gpu1": "2x16", "gpu2": "16+24"}
MAX_GPU_NODES = 50
#: How many control planes there can be: etcd wants an odd number, and a machine has room for so many.
CONTROL_PLANES = (1, 3)
#: What stands before several control planes, which is no node of the cluster; and the port of them all.
ENDPOINT = "lb"
API_PORT = 6443
POD_SUBNET = "10.244.0.0/16"

#: Where instances get their /24 from: 256 of them, away from the ranges of podman, docker and Kubernetes.
SUBNET_POOL = IPv4Network("10.231.0.0/16")


@dataclass(frozen=True)
class Node:
    """One node: its name, its fixed address, its pods' range, its GPUs (None on a control plane) and its container runtime."""

    name: str
    address: str
    pod_range: str
    gpus: str | None
    runtime: str = DEFAULT_RUNTIME

    @property
    def has_gpus(self) -> bool:
        """Whether it is a GPU node, be it one without a GPU at the moment."""
        return self.gpus is not None

    @property
    def is_control_plane(self) -> bool:
        """Whether it has an API server, a scheduler and a member of etcd."""
        return not self.has_gpus


def check_name(name: str) -> str:
    """The instance's name if it can be part of a container's, network's and folder's name."""
    if not re.fullmatch(r"[a-z]([a-z0-9-]{0,18}[a-z0-9])?", name):
        raise LabError(f'instance name "{name}": expected 1 to 20 small letters, digits and hyphens, a letter first, no hyphen last')
    return name


def check_version(version: str) -> str:
    """A Kubernetes version as three numbers, a pre-release with its name, without a leading v."""
    if not re.fullmatch(r"1\.\d+\.\d+(-(alpha|beta|rc)\.\d+)?", version.removeprefix("v")):
        raise LabError(f'Kubernetes version "{version}": expected one like 1.37.2 or 1.38.0-beta.0')
    return version.removeprefix("v")


def parse_gpus(text: str) -> dict[str, str]:
    """{"gpu1": "2x16", "gpu2": "16+24"} from "gpu1=2x16,gpu2=16+24"; what stands after = is for gpus.py to judge."""
    gpus: dict[str, str] = {}
    for part in text.split(","):
        found = re.fullmatch(r"\s*(gpu[1-9]\d*)=(\S.*?)\s*", part)
        if not found:
            raise LabError(f'GPUs "{text}": found "{part}", expected NODE=GPUS such as gpu1=2x16 or gpu2=16+24')
        if found[1] in gpus:
            raise LabError(f'GPUs "{text}": {found[1]} stands there twice; name each node once')
        gpus[found[1]] = found[2]
    return gpus


def gpus_of_nodes(count: int, asked: Mapping[str, str], present: Mapping[str, str] | None = None) -> dict[str, str]:
    """The GPUs of gpu1 … gpuN: what is asked for, else what is there, else the default (gpu1's further on)."""
    if not 1 <= count <= MAX_GPU_NODES:
        raise LabError(f"{count} GPU nodes: expected 1 to {MAX_GPU_NODES}")
    names = [f"gpu{number}" for number in range(1, count + 1)]
    if strangers := sorted(set(asked) - set(names)):
        raise LabError(f"GPUs for {', '.join(strangers)}, but the GPU nodes are {', '.join(names)}: raise --gpu-nodes or drop them")
    known = {**DEFAULT_GPUS, **(present or {}), **asked}
    return {name: known.get(name, DEFAULT_GPUS["gpu1"]) for name in names}


def check_control_planes(count: int) -> int:
    """A number of control planes that there can be."""
    if count not in CONTROL_PLANES:
        raise LabError(f"{count} control planes: expected {' or '.join(map(str, CONTROL_PLANES))} (etcd wants an odd number)")
    return count


def plan_nodes(
    gpus: Mapping[str, str], subnet: IPv4Network, control_planes: int = 1, runtimes: Mapping[str, str] | None = None
) -> list[Node]:
    """The control planes and the GPU nodes; a node's address and pod range depend on its number only."""
    nodes = [Node(CONTROL_PLANE, str(subnet[10]), _pod_range(0), None)]
    nodes += [Node(f"cp{n}", str(subnet[100 + n]), _pod_range(100 + n), None) for n in range(2, control_planes + 1)]
    for name, spec in gpus.items():
        number = int(name.removeprefix("gpu"))
        runtime = (runtimes or {}).get(name, DEFAULT_RUNTIME)
        nodes.append(Node(name, str(subnet[10 + number]), _pod_range(number), spec, runtime))
    return nodes


def no_longer_wanted(known: Iterable[str], nodes: Iterable[Node]) -> list[str]:
    """Those of the cluster's nodes that have a name of the lab's and are not in the plan."""
    wanted = {node.name for node in nodes}
    return sorted(name for name in known if re.fullmatch(r"(cp|gpu)\d+", name) and name not in wanted)


def endpoint(subnet: IPv4Network, control_planes: int) -> str:
    """The address before several control planes; "" where the only one is reached by its own."""
    return str(subnet[100]) if control_planes > 1 else ""


def _pod_range(number: int) -> str:
    return str(list(IPv4Network(POD_SUBNET).subnets(new_prefix=24))[number])


def choose_subnet(taken: Iterable[IPv4Network]) -> IPv4Network:
    """The first /24 of the pool that overlaps none of the taken networks."""
    taken = list(taken)
    for candidate in SUBNET_POOL.subnets(new_prefix=24):
        if not any(candidate.overlaps(network) for network in taken):
            return candidate
    raise LabError(f"every /24 of {SUBNET_POOL} is in use on this machine: bring instances down, see `podman network ls`")


def pod_routes(nodes: Iterable[Node], of: Node) -> str:
    """The file of the other nodes' pod ranges that the boot unit reads."""
    return "".join(f"{node.pod_range} {node.address}\n" for node in nodes if node.name != of.name)
