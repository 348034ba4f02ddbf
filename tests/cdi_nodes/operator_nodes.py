# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Nodes as NVIDIA's GPU Operator prepares them: nothing of NVIDIA where packages have it, and no CDI spec that names a single GPU."""

from __future__ import annotations

import json
from typing import Any

from cluster_mode.in_cluster import InCluster
from e2e.cluster import Cluster, annotations_of

SPEC = "/run/cdi/gpushare.json"
OWN = "gpushare.kubernetes/gpu"
STATE = "/var/lib/gpushare-lab/gpus.state"
_PROGRAM = "/usr/local/sbin/gpushare-lab-gpu"
_GPUS = "/usr/local/lib/gpushare-lab/gpus.py"
# A driver's list is in every /proc, and the lab's in the node's alone. So each new container of the device plugin gets it from there.
_CAPABILITIES = """
import ctypes, os, pathlib
name, text = "/proc/driver/nvidia-caps/mig-minors", pathlib.Path("/proc/driver/nvidia-caps/mig-minors").read_text()
own = lambda pid: b"bin/gpushare-device-" + b"plugin" in pathlib.Path("/proc", pid, "cmdline").read_bytes() and int(pid) != os.getpid()
for pid in [pid for pid in os.listdir("/proc") if pid.isdigit() and own(pid) and not os.path.exists(f"/proc/{pid}/root{name}")]:
    if os.fork() == 0:
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.setns(os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY), 0) == 0, os.strerror(ctypes.get_errno())
        assert libc.mount(b"tmpfs", b"/proc/driver", b"tmpfs", 0, b"mode=755") == 0, os.strerror(ctypes.get_errno())
        os.mkdir(os.path.dirname(name))
        pathlib.Path(name).write_text(text)
        os._exit(0)
    os.wait()
"""


class Operator(InCluster):
    """The playbook with its default strategy: each node's device plugin chooses it."""

    def settings(self, **other: Any) -> dict[str, Any]:
        return {**super().settings(), "gpushare_device_strategy": "auto", **other}


def lab_gpu(cluster: Cluster, node: str, *words: str) -> None:
    """Change the GPUs or the driver of a node."""
    cluster.on(node, _PROGRAM, *words)


def spec(cluster: Cluster, node: str) -> dict[str, Any]:
    """Our CDI spec of a node, {} while there is none, or no whole one."""
    try:
        found: dict[str, Any] = json.loads(cluster.on(node, "sh", "-c", f"cat {SPEC} 2>/dev/null || echo {{}}"))
    except ValueError:
        return {}
    return found


def named(cluster: Cluster, node: str) -> set[str]:
    return {one["name"] for one in spec(cluster, node).get("devices", [])}


def published(cluster: Cluster, node: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(annotations_of(cluster.node(node)).get("gpushare/gpus", "{}"))
    return found


def health(cluster: Cluster, node: str) -> list[str]:
    return [one["health"] for one in published(cluster, node).get("gpus", [])]


def usable(cluster: Cluster, node: str) -> bool:
    """Whether the device plugin offers exactly the GPUs that the node has now."""
    offered = published(cluster, node).get("gpus", [])
    real = {gpu.uuid for gpu in cluster.gpus(node)}
    return {one["uuid"] for one in offered} == real == named(cluster, node) and set(health(cluster, node)) == {"ok"}


def seconds_between(cluster: Cluster, node: str, first: str, second: str) -> float:
    """From the last change of one file to that of another."""
    times = [float(cluster.on(node, "stat", "-c", "%.Y", path)) for path in (first, second)]
    return times[1] - times[0]


def divide(cluster: Cluster, node: str, layout: str) -> dict[str, list[str]]:
    """Give the second GPU of the node these MIG instances; UUID of each to its device nodes."""
    cluster.on(node, "python3", _GPUS, "instances", "1", layout)
    lab_gpu(cluster, node, "refresh")
    return {one["uuid"]: one["nodes"] for gpu in json.loads(cluster.on(node, _PROGRAM, "show")) for one in gpu["instances"]}


def tell_of_capabilities(cluster: Cluster, node: str) -> None:
    cluster.on(node, "python3", "-c", _CAPABILITIES)
