# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Device plugins of others in a lab: their manifests, with images of a program that registers with kubelet as they do."""

from __future__ import annotations

import functools
import json
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from e2e.api import Json
from e2e.cluster import CONTROL_PLANE, Cluster
from gpushare_lab.archive import File, Image, Text, write_archive, write_layer
from gpushare_lab.golang import go_command, go_environment
from gpushare_lab.prepare import the_cache

HERE = Path(__file__).parent
NVIDIA = "nvidia.com/gpu"
NVIDIA_IMAGE = "nvcr.io/nvidia/k8s-device-plugin:v0.17.1"
PLUGIN_IMAGE = "example.com/acs/k8s-gpushare-plugin:v2-1.11-aff8a23"
EXTENDER_IMAGE = "example.com/acs/k8s-gpushare-schd-extender:1.11-d170d8a"
EXTENDER_PORT = 32766
SYSTEM = "kube-system"
#: kubelet's folder of device plugins, as each of these DaemonSets mounts it.
PLUGINS = "/var/lib/kubelet/device-plugins"
_BUILD_SECONDS = 600


def nvidia() -> Json:
    """NVIDIA's static manifest of v0.17."""
    labels = {"name": "nvidia-device-plugin-ds"}
    container = {
        "image": NVIDIA_IMAGE,
        "name": "nvidia-device-plugin-ctr",
        "env": [{"name": "FAIL_ON_INIT_ERROR", "value": "false"}],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": "kubelet-device-plugins-dir", "mountPath": PLUGINS}],
    }
    pod = {
        "tolerations": [{"key": NVIDIA, "operator": "Exists", "effect": "NoSchedule"}],
        "priorityClassName": "system-node-critical",
        "containers": [container],
        "volumes": [{"name": "kubelet-device-plugins-dir", "hostPath": {"path": PLUGINS, "type": "Directory"}}],
    }
    spec = {"selector": {"matchLabels": labels}, "updateStrategy": {"type": "RollingUpdate"}, "template": _template(labels, pod)}
    return _object("apps/v1", "DaemonSet", "nvidia-device-plugin-daemonset", spec=spec)


def original() -> list[Json]:
    """The original's extender and device plugin with their accounts, as its guide has them."""
    return [*_rights("gpushare-schd-extender"), *_rights("gpushare-device-plugin"), *_extender(), _plugin()]


def _extender() -> list[Json]:
    labels = {"app": "gpushare", "component": "gpushare-schd-extender"}
    control_plane = "node-role.kubernetes.io/control-plane"
    environment = [{"name": "LOG_LEVEL", "value": "debug"}, {"name": "PORT", "value": "12345"}]
    pod = {
        "hostNetwork": True,
        "tolerations": [{"effect": "NoSchedule", "operator": "Exists", "key": control_plane}],
        "nodeSelector": {control_plane: ""},
        "serviceAccount": "gpushare-schd-extender",
        "containers": [{"name": "gpushare-schd-extender", "image": EXTENDER_IMAGE, "env": environment}],
    }
    spec = {"replicas": 1, "strategy": {"type": "Recreate"}, "selector": {"matchLabels": labels}, "template": _template(labels, pod)}
    ports = [{"port": 12345, "name": "http", "targetPort": 12345, "nodePort": EXTENDER_PORT}]
    return [
        _object("apps/v1", "Deployment", "gpushare-schd-extender", spec=spec),
        _object("v1", "Service", "gpushare-schd-extender", spec={"type": "NodePort", "ports": ports, "selector": labels}),
    ]


def _plugin() -> Json:
    labels = {"component": "gpushare-device-plugin", "app": "gpushare", "name": "gpushare-device-plugin-ds"}
    container = {
        "image": PLUGIN_IMAGE,
        "name": "gpushare",
        "command": ["gpushare-device-plugin-v2", "-logtostderr", "--v=5", "--memory-unit=GiB"],
        "env": [{"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}],
        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
        "volumeMounts": [{"name": "device-plugin", "mountPath": PLUGINS}],
    }
    pod = {
        "serviceAccount": "gpushare-device-plugin",
        "hostNetwork": True,
        "nodeSelector": {"gpushare": "true"},
        "containers": [container],
        "volumes": [{"name": "device-plugin", "hostPath": {"path": PLUGINS}}],
    }
    spec = {"selector": {"matchLabels": labels}, "template": _template(labels, pod)}
    return _object("apps/v1", "DaemonSet", "gpushare-device-plugin-ds", spec=spec)


def _rights(name: str) -> list[Json]:
    verbs = ["get", "list", "watch", "update", "patch", "create"]
    rules = [{"apiGroups": [""], "resources": ["nodes", "pods", "events", "pods/binding", "configmaps", "nodes/status"], "verbs": verbs}]
    group = "rbac.authorization.k8s.io"
    role = {"apiGroup": group, "kind": "ClusterRole", "name": name}
    return [
        _object(f"{group}/v1", "ClusterRole", name, namespace="", rules=rules),
        _object("v1", "ServiceAccount", name),
        _object(
            f"{group}/v1",
            "ClusterRoleBinding",
            name,
            namespace="",
            roleRef=role,
            subjects=[{"kind": "ServiceAccount", "name": name, "namespace": SYSTEM}],
        ),
    ]


def _template(labels: Json, pod: Json) -> Json:
    return {"metadata": {"labels": labels}, "spec": pod}


def _object(version: str, kind: str, name: str, *, namespace: str = SYSTEM, **content: Any) -> Json:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, **({"namespace": namespace} if namespace else {})}, **content}


def give_image(cluster: Cluster, node: str, reference: str, program: str, config: Json) -> None:
    """The image of this reference on the node: the program under a name, which does what the configuration says."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_layer(folder / "layer", {f"usr/bin/{program}": File(stand_in()), "etc/stand-in.json": Text(json.dumps(config))})
        write_archive(folder / "image.tar", [Image([reference], folder / "layer", [f"/usr/bin/{program}"], {"PATH": "/usr/bin"})])
        command = [*cluster.entering(node), "ctr", "--namespace", "k8s.io", "images", "import", "-"]
        subprocess.run(command, input=(folder / "image.tar").read_bytes(), check=True, timeout=120, capture_output=True)


def nvidia_image(cluster: Cluster, node: str) -> None:
    """NVIDIA's plugin with the cards of this node."""
    config = {"resource": NVIDIA, "socket": "nvidia-gpu.sock", "ids": [card.uuid for card in cluster.cards(node)]}
    give_image(cluster, node, NVIDIA_IMAGE, "nvidia-device-plugin", config)


def original_images(cluster: Cluster, nodes: tuple[str, ...], index: dict[int, int]) -> None:
    """The original's plugin on each node, and its extender. index: units of a container to the card that it gets."""
    for node in nodes:
        cards = cluster.cards(node)
        units = cards[0].mib // 1024
        ids = [f"{card.uuid}-_-{slot}" for card in cards for slot in range(units)]
        config = {
            "resource": "aliyun.com/gpu-mem",
            "socket": "aliyungpushare.sock",
            "ids": ids,
            "units": units,
            "index": {str(count): card for count, card in index.items()},
        }
        give_image(cluster, node, PLUGIN_IMAGE, "gpushare-device-plugin-v2", config)
    give_image(cluster, CONTROL_PLANE, EXTENDER_IMAGE, "gpushare-sche-extender", {"listen": f"127.0.0.1:{EXTENDER_PORT}"})


@functools.cache
def stand_in() -> Path:
    """The program, built once."""
    cache = the_cache()
    folder = Path(tempfile.mkdtemp(prefix="gpushare-stand-in-"))
    for file in (HERE / "stand_in").iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    command = [str(go_command(cache)), "build", "-trimpath", "-ldflags", "-s -w", "-o", "stand-in", "."]
    subprocess.run(command, cwd=folder, env=go_environment(cache, cgo=False), check=True, timeout=_BUILD_SECONDS)
    return folder / "stand-in"
