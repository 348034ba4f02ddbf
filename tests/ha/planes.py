# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The control planes of a lab: which one leads, killing it in two ways, bringing it back, and what the extenders' logs say."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import dataclass

from e2e.cluster import Cluster, CommandError, run
from gpushare_lab.podman import container_name

PLANES = ("cp1", "cp2", "cp3")
EXTENDER = "gpushare-extender"
_LEASE = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-scheduler"
# The holder of the lease is called <host>_<UUID of the process>.
_BOTH = f"kill -9 $(pgrep -x kube-scheduler) $(systemctl show -P MainPID {EXTENDER})"


@dataclass(frozen=True)
class Line:
    """One line of an extender's log. at: seconds since the epoch."""

    at: float
    text: str


def leader(cluster: Cluster) -> str:
    """The host whose scheduler holds the lease."""
    return str(cluster.api.get(_LEASE)["spec"]["holderIdentity"]).rpartition("_")[0]


def kill_node(cluster: Cluster, plane: str) -> None:
    """The whole host at once: scheduler, extender, API server, member of etcd."""
    run(["podman", "kill", container_name(cluster.name, plane)], seconds=60)


def kill_processes(cluster: Cluster, plane: str) -> None:
    """kube-scheduler and its extender, at once and without a word; kubelet and systemd start them again."""
    cluster.on(plane, "sh", "-ec", _BOTH)


WAYS: dict[str, Callable[[Cluster, str], None]] = {"node": kill_node, "processes": kill_processes}


def log_every_answer(cluster: Cluster) -> None:
    """Have the extenders log also the pods that fit and are bound, from now on."""
    folder = f"/etc/systemd/system/{EXTENDER}.service.d"
    script = f"mkdir -p {folder}; printf '[Service]\\nEnvironment=LOG_LEVEL=debug\\n' > {folder}/log.conf; systemctl daemon-reload"
    for plane in PLANES:
        cluster.on(plane, "sh", "-ec", f"{script}; systemctl restart {EXTENDER}")


def bring_back(cluster: Cluster) -> None:
    """Everything as it was before a kill."""
    cluster.lab("up", seconds=600)
    until_whole(cluster)


def until_whole(cluster: Cluster) -> None:
    """Until each control plane has a scheduler and an extender that has read the cluster."""

    def whole() -> bool:
        try:
            for plane in PLANES:
                cluster.on(plane, "sh", "-ec", f"pgrep -x kube-scheduler; test $(systemctl is-active {EXTENDER}) = active")
        except CommandError:
            return False
        return True

    cluster.until("each control plane has its scheduler and its extender", whole, 180)


def log_since(cluster: Cluster, plane: str, since: float) -> list[Line]:
    """What the extender of a control plane has said since then."""
    journal = cluster.on(plane, "journalctl", "-o", "json", "--no-pager", "-u", EXTENDER, "--since", f"@{since:.6f}")
    entries = map(json.loads, journal.splitlines())
    return [Line(int(entry["__REALTIME_TIMESTAMP"]) / 1e6, str(entry["MESSAGE"])) for entry in entries]


def now() -> float:
    """The time of the logs and annotations: nodes of a lab have the clock of their machine."""
    return time.time()
