# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""gpushare as pods without Ansible: docs/manifests, or the chart by the program helm. For tests and the demo."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import yaml

from cluster_mode.in_cluster import NAMESPACE
from e2e.api import Json
from e2e.cluster import GPU_NODES, MEMORY, REPOSITORY, Cluster, run
from gpushare_lab import components
from gpushare_lab.prepare import the_cache

CHART: Final = REPOSITORY / "charts/gpushare"
MANIFESTS: Final = REPOSITORY / "docs/manifests"
LABEL: Final = "gpushare.kubernetes/node=true"
SECONDS: Final = 180.0
#: The namespace of a chart is the user's.
_SPACE: Final = {
    "apiVersion": "v1",
    "kind": "Namespace",
    "metadata": {"name": NAMESPACE, "labels": {"pod-security.kubernetes.io/enforce": "privileged"}},
}


def values(cluster: Cluster) -> dict[str, Any]:
    """Of a lab: it has no kube-proxy, and so no Services; its NVIDIA runtime takes no GPUs from a container's environment."""
    server = yaml.safe_load(cluster.kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
    host, _, port = server.removeprefix("https://").rpartition(":")
    return {"apiServer": {"host": host, "port": int(port)}, "deviceStrategy": "volume-mounts"}


def reaching(cluster: Cluster, objects: list[Json]) -> list[Json]:
    """The same, whose pods find the API server of a lab."""
    api = values(cluster)["apiServer"]
    place = [{"name": f"KUBERNETES_SERVICE_{key}", "value": str(api[key.lower()])} for key in ("HOST", "PORT")]
    for one in objects:
        for container in one.get("spec", {}).get("template", {}).get("spec", {}).get("containers", ()):
            container["env"] = [*container.get("env", ()), *place]
    return objects


def prepare(cluster: Cluster) -> None:
    """What the page asks of a cluster: the label of the GPU nodes."""
    cluster.kubectl("label", "nodes", *GPU_NODES, LABEL, "--overwrite")


def until_ready(cluster: Cluster, deployment: str) -> None:
    """Until all pods of this Deployment, and all device plugins, are ready."""
    for workload in (f"deployment/{deployment}", "daemonset/gpushare-device-plugin"):
        limit = f"--timeout={SECONDS:g}s"
        cluster.kubectl("rollout", "status", "-n", NAMESPACE, workload, limit, seconds=SECONDS + 20)


def until_serving(cluster: Cluster) -> None:
    """Until all pods are ready, and every GPU node has memory to share."""
    until_ready(cluster, "gpushare-scheduler")
    cluster.until("every GPU node has memory to share", lambda: all(memory(cluster.node(name)) for name in GPU_NODES), 60)


def memory(node: Json) -> int:
    """Units that pods may still be given by kubelet's word."""
    return int(node["status"]["allocatable"].get(MEMORY, 0))


def gpushare(cluster: Cluster, *arguments: str, stdin: str | None = None) -> str:
    """What `kubectl gpushare` prints on this machine; 3 says that a pod fits nowhere."""
    command = [sys.executable, "-m", "gpushare_runtime.kubectl_program.main", *arguments, "--kubeconfig", str(cluster.kubeconfig)]
    return run(["sh", "-c", '"$@" || [ $? -eq 3 ]', "sh", *command], stdin=stdin, seconds=60)


class Manifest:
    """docs/manifests, changed by hand for a lab, and `kubectl apply -f -`. kubelet_root: of the nodes; by_service: the pods find the API
    server at its Service, so that somebody must run kube-proxy."""

    def __init__(self, cluster: Cluster, kubelet_root: str = "/var/lib/kubelet", by_service: bool = False) -> None:
        self.cluster = cluster
        self._values = values(cluster)
        self._kubelet_root = kubelet_root
        self._by_service = by_service

    def changed(self) -> list[Json]:
        """The objects as a lab needs them."""
        texts = [(MANIFESTS / name).read_text() for name in ("gpushare.yaml", "scheduler-name.yaml")]
        # kubelet's folder of device plugins does not follow its --root-dir.
        text = re.sub("/var/lib/kubelet(?!/device-plugins)", self._kubelet_root, "".join(texts))
        auto = 'deviceStrategy: "auto"'
        assert auto in text
        made: list[Json] = list(yaml.safe_load_all(text.replace(auto, f"deviceStrategy: {self._values['deviceStrategy']}")))
        return made if self._by_service else reaching(self.cluster, made)

    def install(self) -> None:
        prepare(self.cluster)
        self.cluster.kubectl("apply", "-f", "-", stdin=yaml.safe_dump_all(self.changed()))
        until_serving(self.cluster)

    def remove(self) -> None:
        stdin = yaml.safe_dump_all(self.changed())
        self.cluster.kubectl("delete", "-f", "-", "--ignore-not-found", stdin=stdin, seconds=SECONDS)


class Chart:
    """helm with the chart of this repository. serving: waits until what it has installed serves."""

    def __init__(self, cluster: Cluster, serving: Callable[[Cluster], None] = until_serving, **other: Any) -> None:
        self.cluster = cluster
        self._serving = serving
        self._values = {**values(cluster), **other}

    @cached_property
    def _program(self) -> Path:
        return components.helm(the_cache()) / "helm"

    def helm(self, *arguments: str, stdin: str | None = None) -> str:
        place = ("--kubeconfig", str(self.cluster.kubeconfig), "--namespace", NAMESPACE)
        return run([str(self._program), *arguments, *place], stdin=stdin, seconds=SECONDS + 20)

    def install(self, **other: Any) -> None:
        prepare(self.cluster)
        self.cluster.kubectl("apply", "-f", "-", stdin=json.dumps(_SPACE))
        self.set("install", **other)
        self._serving(self.cluster)

    def set(self, command: str, **other: Any) -> None:
        """install or upgrade, with these values; helm waits until the pods are ready."""
        text = json.dumps({**self._values, **other})
        self.helm(command, "gpushare", str(CHART), "--values", "-", "--wait", f"--timeout={SECONDS:g}s", stdin=text)

    def remove(self) -> None:
        self.helm("uninstall", "gpushare", "--wait", f"--timeout={SECONDS:g}s")
        self.cluster.kubectl("delete", "namespace", NAMESPACE, seconds=SECONDS)


WAYS: Final[dict[str, Callable[[Cluster], Manifest | Chart]]] = {"manifest": Manifest, "chart": Chart}
