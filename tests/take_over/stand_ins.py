# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Device plugins of others in a lab: their manifests, with images of a program that registers with kubelet as they do."""

from __future__ import annotations

import functools
import json
import subprocess
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import yaml

from e2e.api import Json
from e2e.cluster import CONTROL_PLANE, Cluster
from gpushare_lab.archive import File, Image, Member, Text, write_archive, write_layer
from gpushare_lab.golang import go_command, go_environment
from gpushare_lab.prepare import the_cache

HERE = Path(__file__).parent
NVIDIA = "nvidia.com/gpu"
NVIDIA_IMAGE = "nvcr.io/nvidia/k8s-device-plugin:v0.17.1"
PLUGIN_IMAGE = "example.com/acs/k8s-gpushare-plugin:v2-1.11-aff8a23"
EXTENDER_IMAGE = "example.com/acs/k8s-gpushare-schd-extender:1.11-d170d8a"
#: The original's Deployment, Service, account and role.
EXTENDER = "gpushare-schd-extender"
ORIGINAL_DAEMON_SET = "gpushare-device-plugin-ds"
SCHEDULER_CONFIG = "/etc/kubernetes/scheduler-policy-config.yaml"
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
    return [*_rights(EXTENDER, _EXTENDER_RULES), *_rights("gpushare-device-plugin", _PLUGIN_RULES), *_extender(), _plugin()]


_EXTENDER_RULES = (
    ("", ("nodes",), ("get", "list", "watch")),
    ("", ("events",), ("create", "patch")),
    ("", ("pods",), ("update", "patch", "get", "list", "watch")),
    ("", ("bindings", "pods/binding"), ("create",)),
    ("", ("configmaps",), ("get", "list", "watch")),
)
_PLUGIN_RULES = (
    ("", ("nodes",), ("get", "list", "watch")),
    ("", ("events",), ("create", "patch")),
    ("", ("pods",), ("update", "patch", "get", "list", "watch")),
    ("", ("nodes/status",), ("patch", "update")),
)


def _extender() -> list[Json]:
    labels = {"app": "gpushare", "component": EXTENDER}
    control_plane = "node-role.kubernetes.io/control-plane"
    environment = [{"name": "LOG_LEVEL", "value": "debug"}, {"name": "PORT", "value": "12345"}]
    pod = {
        "hostNetwork": True,
        "tolerations": [{"effect": "NoSchedule", "operator": "Exists", "key": control_plane}],
        "nodeSelector": {control_plane: ""},
        "serviceAccount": EXTENDER,
        "containers": [{"name": EXTENDER, "image": EXTENDER_IMAGE, "env": environment}],
    }
    spec = {"replicas": 1, "strategy": {"type": "Recreate"}, "selector": {"matchLabels": labels}, "template": _template(labels, pod)}
    ports = [{"port": 12345, "name": "http", "targetPort": 12345, "nodePort": EXTENDER_PORT}]
    return [
        _object("apps/v1", "Deployment", EXTENDER, spec=spec),
        _object("v1", "Service", EXTENDER, spec={"type": "NodePort", "ports": ports, "selector": labels}),
    ]


def _plugin() -> Json:
    labels = {"component": "gpushare-device-plugin", "app": "gpushare", "name": ORIGINAL_DAEMON_SET}
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
    return _object("apps/v1", "DaemonSet", ORIGINAL_DAEMON_SET, spec=spec)


def original_scheduler(manifest: str) -> tuple[str, str]:
    """kube-scheduler's static pod with the original's extender as its guide adds it by hand, and the configuration."""
    pod = yaml.safe_load(manifest)
    container = pod["spec"]["containers"][0]
    container["command"].append(f"--config={SCHEDULER_CONFIG}")
    container["volumeMounts"].append({"mountPath": SCHEDULER_CONFIG, "name": "scheduler-policy-config", "readOnly": True})
    pod["spec"]["volumes"].append({"hostPath": {"path": SCHEDULER_CONFIG, "type": "FileOrCreate"}, "name": "scheduler-policy-config"})
    extender = {
        "urlPrefix": f"http://127.0.0.1:{EXTENDER_PORT}/gpushare-scheduler",
        "filterVerb": "filter",
        "bindVerb": "bind",
        "enableHTTPS": False,
        "nodeCacheCapable": True,
        "managedResources": [{"name": "aliyun.com/gpu-mem", "ignoredByScheduler": False}],
        "ignorable": False,
    }
    config = {
        "apiVersion": "kubescheduler.config.k8s.io/v1",
        "kind": "KubeSchedulerConfiguration",
        "clientConnection": {"kubeconfig": "/etc/kubernetes/scheduler.conf"},
        "extenders": [extender],
    }
    return yaml.safe_dump(pod), "---\n" + yaml.safe_dump(config, sort_keys=False)


def _rights(name: str, rules: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...]) -> list[Json]:
    group = "rbac.authorization.k8s.io"
    role = {"apiGroup": group, "kind": "ClusterRole", "name": name}
    listed = [{"apiGroups": [of], "resources": list(resources), "verbs": list(verbs)} for of, resources, verbs in rules]
    subjects = [{"kind": "ServiceAccount", "name": name, "namespace": SYSTEM}]
    return [
        _object(f"{group}/v1", "ClusterRole", name, namespace="", rules=listed),
        _object("v1", "ServiceAccount", name),
        _object(f"{group}/v1", "ClusterRoleBinding", name, namespace="", roleRef=role, subjects=subjects),
    ]


def _template(labels: Json, pod: Json) -> Json:
    return {"metadata": {"labels": labels}, "spec": pod}


def _object(version: str, kind: str, name: str, *, namespace: str = SYSTEM, **content: Any) -> Json:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, **({"namespace": namespace} if namespace else {})}, **content}


def give_image(cluster: Cluster, node: str, reference: str, program: str, config: Json) -> None:
    """The image of this reference on the node: the program under a name, which does what the configuration says."""
    members: dict[str, Member] = {f"usr/bin/{program}": File(stand_in()), "etc/stand-in.json": Text(json.dumps(config))}
    give_image_of(cluster, (node,), reference, members, f"/usr/bin/{program}")


def give_image_of(
    cluster: Cluster, nodes: Collection[str], reference: str, members: Mapping[str, Member], program: str, user: str = ""
) -> None:
    """The image of this reference on the nodes: these files, of which it runs one. user: `UID:GID`, "" for root."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_layer(folder / "layer", members)
        write_archive(folder / "image.tar", [Image([reference], folder / "layer", [program], {"PATH": "/usr/bin"}, user=user)])
        archived = (folder / "image.tar").read_bytes()
    for node in nodes:
        cluster.feed(node, "ctr", "--namespace", "k8s.io", "images", "import", "-", content=archived)


def nvidia_image(cluster: Cluster, node: str) -> None:
    """NVIDIA's plugin with the GPUs of this node."""
    config = {"resource": NVIDIA, "socket": "nvidia-gpu.sock", "ids": [gpu.uuid for gpu in cluster.gpus(node)]}
    give_image(cluster, node, NVIDIA_IMAGE, "nvidia-device-plugin", config)


def original_images(cluster: Cluster, nodes: tuple[str, ...]) -> None:
    """The original's device plugin on each node, where it takes the first GPU's memory for that of all, and its extender."""
    for node in nodes:
        gpus = cluster.gpus(node)
        units = gpus[0].mib // 1024
        config = {
            "resource": "aliyun.com/gpu-mem",
            "socket": "aliyungpushare.sock",
            "ids": [f"{gpu.uuid}-_-{slot}" for gpu in gpus for slot in range(units)],
            "gpus": [{"uuid": gpu.uuid, "minor": gpu.minor, "units": units} for gpu in gpus],
        }
        give_image(cluster, node, PLUGIN_IMAGE, "gpushare-device-plugin-v2", config)
    give_image(cluster, CONTROL_PLANE, EXTENDER_IMAGE, "gpushare-sche-extender", {"extender": True})


def give_services(cluster: Cluster, *nodes: str) -> None:
    """kube-proxy on each node, so that Services have their addresses and NodePorts there. The lab has none by itself."""
    binding = ("create", "clusterrolebinding", "lab-kube-proxy", "--clusterrole=system:node-proxier", "--group=system:nodes")
    cluster.kubectl(*binding)
    for node in nodes:
        cluster.lab("exec", node, "sh", "-euc", _START_PROXY, stdin=_PROXY.format(node=node))
    cluster.until(
        "kube-proxy has its rules", lambda: all("KUBE-NODEPORTS" in cluster.on(n, "iptables-save", "-t", "nat") for n in nodes), 60
    )


_PROXY = """\
[Unit]
Description=kube-proxy
[Service]
ExecStart=/usr/local/sbin/kube-proxy --kubeconfig=/etc/kubernetes/kubelet.conf --hostname-override={node} --proxy-mode=iptables \\
 --conntrack-max-per-core=0 --conntrack-min=0 --conntrack-tcp-timeout-established=0 --conntrack-tcp-timeout-close-wait=0
Restart=always
[Install]
WantedBy=multi-user.target
"""
_START_PROXY = """
ln -sf /usr/lib/kubernetes/kubernetes /usr/local/sbin/kube-proxy
cat > /etc/systemd/system/kube-proxy.service
systemctl daemon-reload
systemctl enable --now --quiet kube-proxy
"""


def give_gpus_by_variable(cluster: Cluster, node: str) -> None:
    """NVIDIA's toolkit as its package leaves it, which the original needs: any container gets the GPUs that its environment names.

    The lab's has the settings of another strategy, and GPUs by UUID only.
    """
    cluster.on(node, "python3", "-c", _GPUS_BY_VARIABLE)


_GPUS_BY_VARIABLE = """
import json, subprocess
from pathlib import Path
def write(path, text):
    partial = path.with_suffix(".partial")
    partial.write_text(text)
    partial.replace(path)
config = Path("/etc/nvidia-container-runtime/config.toml")
text = config.read_text()
for name, value in (("as-volume-mounts", "false"), ("envvar-when-unprivileged", "true")):
    other = "true" if value == "false" else "false"
    assert f"{name} = {other}" in text
    text = text.replace(f"{name} = {other}", f"{name} = {value}")
write(config, text)
path = Path("/run/cdi/nvidia.yaml")
spec = json.loads(path.read_text())
query = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]
uuids = subprocess.run(query, capture_output=True, text=True, check=True).stdout.split()
known = {device["name"]: device for device in spec["devices"]}
spec["devices"] += [{**known[uuid], "name": str(index)} for index, uuid in enumerate(uuids)]
# The first version in which a name may be a number.
spec["cdiVersion"] = "0.5.0"
write(path, json.dumps(spec))
"""


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
