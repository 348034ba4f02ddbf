# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Runs on a node and asks no API server: prints its running containers, and what kubelet's device manager has, as JSON."""

from __future__ import annotations

import json
import os
import subprocess

CHECKPOINT = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
CTR = ["ctr", "-n", "k8s.io"]


def output(*command: str) -> str:
    return subprocess.run([*CTR, *command], check=True, capture_output=True, text=True).stdout


def container(identity: str, pid: str) -> dict[str, object] | None:
    """One container of a pod of the namespace default; None for a sandbox, and for what has ended meanwhile."""
    try:
        labels = json.loads(output("containers", "info", identity))["Labels"]
        if labels.get("io.cri-containerd.kind") != "container" or labels["io.kubernetes.pod.namespace"] != "default":
            return None
        with open(f"/proc/{pid}/stat") as file:
            started = file.read().rpartition(")")[2].split()[19]
        devices = sorted(name for name in os.listdir(f"/proc/{pid}/root/dev") if name.startswith("nvidia"))
    except (OSError, subprocess.CalledProcessError):
        return None
    name = f"{labels['io.kubernetes.pod.name']}/{labels['io.kubernetes.container.name']}"
    return {"name": name, "id": identity, "pid": int(pid), "started": int(started), "devices": devices}


def registered() -> dict[str, int]:
    """Resource → ids that kubelet has as healthy; {} without a checkpoint that can be read."""
    try:
        with open(CHECKPOINT) as file:
            data = json.load(file)["Data"]
    except (OSError, ValueError):
        return {}
    return {resource: len(ids or ()) for resource, ids in data["RegisteredDevices"].items()}


def main() -> None:
    tasks = [line.split() for line in output("tasks", "ls").splitlines()[1:]]
    found = [container(identity, pid) for identity, pid, state in tasks if state == "RUNNING"]
    print(json.dumps({"containers": [seen for seen in found if seen], "registered": registered()}))


main()
