# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The limits that the simulated driver of the node has, and processes that allocate memory under them."""

from __future__ import annotations

from e2e.api import Json
from e2e.cluster import Cluster, CommandError
from e2e.manifests import pod
from e2e.running import NODE, gpu

LIMITS = "/dev/shm/gpushare-lab.limits"
GIB = 1024**3


def strict(name: str, units: int, node: str | None = None) -> Json:
    """A pod that requires a limit."""
    made = pod(name, memory=units, node=node)
    made["metadata"]["annotations"] = {"gpushare.request/isolation": "driver"}
    return made


def limits(cluster: Cluster) -> dict[str, tuple[str, int]]:
    """Pod UID → its control group on the node, and its limit in bytes."""
    found = {}
    for line in cluster.on(NODE, "cat", LIMITS).splitlines():
        _, _, soft, hard, group = line.split(" ", 4)
        assert soft == "0"
        found[group.rpartition("pod")[2].removesuffix(".slice").replace("_", "-")] = group, int(hard)
    return found


def seen(cluster: Cluster, index: int, group: str) -> set[int]:
    """MiB of the GPU in all, as the driver reports them to programs of each container of the pod with this group."""
    containers = cluster.on(NODE, "find", group, "-mindepth", "1", "-maxdepth", "1", "-type", "d").split()
    assert containers
    command = ("python3", "/usr/local/lib/gpushare-lab/gpus.py", "seen", str(index))
    return {int(cluster.on(NODE, *command, container).split()[1]) for container in containers}


def processes(cluster: Cluster, group: str) -> list[int]:
    """All below the group: of each container, and the sandbox's."""
    return [int(pid) for pid in cluster.on(NODE, "find", group, "-name", "cgroup.procs", "-exec", "cat", "{}", "+").split()]


class Memory:
    """What processes of the node have allocated on its simulated GPUs, which do not see that a process ends."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._holders: set[tuple[int, int]] = set()

    def allocate(self, index: int, pid: int, mib: int) -> str:
        """A process asks the driver for memory; "" if it gets it, else what it is told."""
        try:
            gpu(self._cluster, "allocate", index, pid, mib)
        except CommandError as error:
            return str(error)
        self._holders.add((index, pid))
        return ""

    def free(self) -> None:
        for index, pid in sorted(self._holders):
            gpu(self._cluster, "process", index, pid, 0, "allocate")
