# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What a full cluster costs the extender before anybody asks it: its memory, and how long it takes from its start to its first answer."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bench.scheduling.control_plane import ControlPlane
from bench.scheduling.extender import Extender
from bench.scheduling.objects import GPUS, PODS, UNITS, all_of
from bench.scheduling.rest import Rest, rest
from gpushare_runtime.core.allocation import Allocation
from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.core.protocol import RESOURCE_MEMORY
from gpushare_runtime.kube.client import KubeClient


@dataclass(frozen=True)
class Startup:
    """ready_seconds: from the process's start until it answers, of which own_seconds are its own CPU time; resident in MiB then. rest: what
    it costs after that; [] where it was not measured."""

    nodes: int
    pods: int
    ready_seconds: float
    own_seconds: float
    resident_mib: float
    rest: list[Rest]


async def startup(
    plane: ControlPlane, client: KubeClient, inventories: dict[str, Inventory], pods: int, python: Path, rest_seconds: float
) -> Startup:
    """Make so many bound pods, evenly over the nodes, and start the extender, with this Python. rest_seconds: 0 to leave that out."""
    names = sorted(inventories)
    if pods > len(names) * GPUS * UNITS:
        raise ValueError(f"{pods} pods of one unit do not fit on {len(names)} nodes of {GPUS * UNITS} units")

    async def bind(number: int) -> None:
        name, place = names[number % len(names)], number // len(names)
        annotations = Allocation.of({0: {place % GPUS: 1}}).to_annotations(inventories[name], 10**18 + number)
        container = {"name": "main", "image": "none", "resources": {"limits": {RESOURCE_MEMORY: "1"}}}
        spec = {"nodeName": name, "automountServiceAccountToken": False, "containers": [container]}
        metadata = {"name": _name(number), "annotations": annotations}
        await client.create(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

    await all_of(bind(number) for number in range(pods))
    extender = Extender(plane, python=python)
    try:
        seconds = await extender.ready()
        health = extender.health()
        if (health["nodes"], health["pods"]) != (len(names), pods):
            raise RuntimeError(f"the extender knows {health['pods']} pods on {health['nodes']} nodes; expected {pods} on {len(names)}")
        own, resident = extender.process.cpu_seconds(), extender.process.resident_mib()
        bound = [_name(number) for number in range(pods)]
        after: list[Rest] = []
        if rest_seconds:
            # After a start it lists all pods once more, for what an extender before it may have sent.
            await extender.binds()
            beside = [plane.processes[name] for name in ("kube-apiserver", "etcd")]
            after = await rest(client, extender.process, beside, names, bound, rest_seconds)
    finally:
        extender.process.stop()
    return Startup(len(names), pods, round(seconds, 2), round(own, 2), round(resident, 1), after)


def _name(number: int) -> str:
    return f"bound-{number}"
