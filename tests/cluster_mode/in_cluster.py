# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""gpushare as pods of a lab's cluster: its image on the nodes, and the playbook `cluster` as a user runs it on his own machine."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from e2e.api import Json
from e2e.cluster import CONTROL_PLANE, GPU_NODES, REPOSITORY, Cluster, CommandError
from gpushare_lab import cluster as lab_cluster
from gpushare_lab import state as lab_state
from installer.site import Site
from results import Results

NAMESPACE = "gpushare-system"
KINDS = (
    "namespaces,serviceaccounts,configmaps,roles,rolebindings,clusterroles,clusterrolebindings,poddisruptionbudgets,daemonsets,deployments,"
    "networkpolicies,runtimeclasses,"
    "validatingadmissionpolicies,validatingadmissionpolicybindings,mutatingadmissionpolicies,mutatingadmissionpolicybindings"
)
RUNTIME_CLASS = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}, "handler": "nvidia"}
_IMPORT = ("ctr", "-n", "k8s.io", "images", "import", "--no-unpack", "-")
#: Asks an address with a token, if it has one: the status, and the text of an answer. The pod's certificate is of its own authority.
_ASK = """
import ssl, sys, urllib.error, urllib.request
headers = {"Host": "localhost", **({"Authorization": f"Bearer {sys.argv[2]}"} if sys.argv[2:] else {})}
try:
    request = urllib.request.Request(sys.argv[1], headers=headers)
    answer = urllib.request.urlopen(request, timeout=20, context=ssl._create_unverified_context())
    print(answer.status, answer.read().decode())
except urllib.error.HTTPError as error:
    print(error.code)
"""


@cache
def archive() -> Path:
    """The image of this tree: built where there is none, or an older one."""
    folder = REPOSITORY / "build/image"
    sources = [path for place in ("files/gpushare_runtime", "tools/image") for path in (REPOSITORY / place).rglob("*.*") if path.is_file()]
    newest = max(path.stat().st_mtime for path in sources if path.suffix != ".pyc")
    found = list(folder.glob("gpushare-*-amd64.tar"))
    if len(found) != 1 or found[0].stat().st_mtime < newest:
        for old in found:
            old.unlink()
        subprocess.run(["make", "image"], cwd=REPOSITORY, check=True, timeout=900, capture_output=True)
        found = list(folder.glob("gpushare-*-amd64.tar"))
    return found[0]


def bring_images(cluster: Cluster, image: Path, planes: Sequence[str] = (CONTROL_PLANE,)) -> None:
    """Ours on every node, and kube-scheduler's, which a control plane has, on the others."""
    import_image(cluster, image.read_bytes(), (*planes, *GPU_NODES))
    import_image(cluster, scheduler_archive(cluster), GPU_NODES)
    # kubelet tells the API server of new images within ten seconds; preflight believes it.
    cluster.until("kubelets tell of the image", lambda: all(_has_image(cluster.node(name)) for name in (*planes, *GPU_NODES)), 60)


def import_image(cluster: Cluster, content: bytes, nodes: Sequence[str]) -> None:
    """The images of an archive, on these nodes."""
    for node in nodes:
        cluster.feed(node, *_IMPORT, content=content)


def scheduler_archive(cluster: Cluster) -> bytes:
    """kube-scheduler's image, which a control plane has."""
    names = cluster.on(CONTROL_PLANE, "ctr", "-n", "k8s.io", "images", "ls", "-q").split()
    scheduler = next(name for name in names if "/kube-scheduler:" in name)
    # ctr 2.4.2 has written all but the last 100 KB, and ended with 0: into a pipe, and on a busy machine into a file as well.
    whole = f"ctr -n k8s.io images export /run/scheduler.tar {scheduler} && tar -tf /run/scheduler.tar > /dev/null"
    script = f"({whole}) || ({whole}) || ({whole}); cat /run/scheduler.tar; rm /run/scheduler.tar"
    return cluster.feed(CONTROL_PLANE, "sh", "-ec", script)


def _has_image(node: Json) -> bool:
    return any(name.startswith("localhost/gpushare:") for one in node["status"].get("images", ()) for name in one.get("names") or ())


def _ready(one: Json) -> bool:
    return any(condition["type"] == "Ready" and condition["status"] == "True" for condition in one["status"].get("conditions", ()))


class InCluster:
    """The playbook on one lab."""

    def __init__(self, cluster: Cluster, folder: Path, **settings: Any) -> None:
        self.cluster = cluster
        self.folder = folder
        self._settings = settings

    def settings(self, **other: Any) -> dict[str, Any]:
        instance = lab_state.existing(self.cluster.name)
        return {
            "gpushare_kubectl": str(lab_cluster.kubectl_file(instance)),
            "gpushare_kubeconfig": str(self.cluster.kubeconfig),
            "gpushare_cluster_nodes": list(GPU_NODES),
            # The lab has no kube-proxy, and so no Services.
            "gpushare_api_server": yaml.safe_load(self.cluster.kubeconfig.read_text())["clusters"][0]["cluster"]["server"],
            # Of NVIDIA's runtime there, which takes no GPUs from the environment of a container.
            "gpushare_device_strategy": "volume-mounts",
            "gpushare_taint_gpu_nodes": True,
            "gpushare_cluster_dashboard": True,
            "gpushare_cluster_metrics": True,
            "gpushare_uninstall_wait": 0,
            **self._settings,
            **other,
        }

    def play(self, *arguments: str, **settings: Any) -> tuple[Results, str]:
        """What it has done, and what it has printed."""
        site = Site(self.cluster, self.folder)
        return site.play("playbooks/cluster.yml", "-e", json.dumps(self.settings(**settings)), *arguments)

    def rejected(self, **settings: Any) -> str:
        """Why it did not begin."""
        with pytest.raises(CommandError) as error:
            self.play(**settings)
        return str(error.value)

    def pods(self, app: str) -> list[Json]:
        selector = f"app.kubernetes.io/name={app}"
        return self.cluster.api.items(f"/api/v1/namespaces/{NAMESPACE}/pods", labelSelector=selector)

    def dashboard(self, *token: str) -> tuple[int, str]:
        """The answer of its pod to a request for its state, with a token or none: (status, text)."""
        self.cluster.until("the dashboard is ready", lambda: all(map(_ready, self.pods("gpushare-dashboard"))), 120)
        (served,) = self.pods("gpushare-dashboard")
        port = served["spec"]["containers"][0]["ports"][0]["containerPort"]
        url = f"https://{served['status']['podIP']}:{port}/api/state"
        status, _, text = self.cluster.on(CONTROL_PLANE, "python3", "-c", _ASK, url, *token).partition(" ")
        return int(status), text

    def objects(self) -> dict[str, str]:
        """All objects of the kinds that an installation has, by name, with their versions."""
        listed = json.loads(self.cluster.kubectl("get", KINDS, "--all-namespaces", "-o", "json"))["items"]
        return {
            f"{one['kind']} {one['metadata'].get('namespace', '')}/{one['metadata']['name']}": one["metadata"][
                # The extender writes into it when it likes.
                "uid" if one["metadata"]["name"] == "gpushare-gpus" else "resourceVersion"
            ]
            for one in listed
            if not one["metadata"]["name"].startswith("bootstrap-token-")
        }


class Modes:
    """site.yml, change_mode.yml and uninstall.yml with a mode."""

    def __init__(self, cluster: Cluster, folder: Path, **settings: Any) -> None:
        self.site = Site(cluster, folder, GPU_NODES)
        server = yaml.safe_load(cluster.kubeconfig.read_text())["clusters"][0]["cluster"]["server"]
        # The lab has no kube-proxy, and so no Services.
        self._settings = {"gpushare_api_server": server, "gpushare_uninstall_wait": 0, **settings}

    def play(self, playbook: str, mode: str, *arguments: str) -> tuple[Results, str]:
        settings: dict[str, Any] = {**self._settings, "gpushare_deploy_mode": mode}
        return self.site.play(playbook, "-e", json.dumps(settings), *arguments)


def of_hosts(site: Site) -> dict[str, object]:
    return {name: value for name, value in site.state(resources=False).items() if not name.startswith("node ")}
