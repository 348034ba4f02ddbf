# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A cluster with the playbooks run on it as a user runs them, and all that an installation could leave on hosts and in the cluster."""

from __future__ import annotations

import json
import os
import sys
import tarfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest

from e2e.api import Json
from e2e.cluster import CONTROL_PLANE, REPOSITORY, Cluster, CommandError, run
from installer.snapshot import installed
from results import Results, environment

HERE = Path(__file__).parent
NODE = "gpu1"
SCHEDULER = "/etc/kubernetes/gpushare/kube-scheduler.yaml"
MANIFEST = "/etc/kubernetes/manifests/kube-scheduler.yaml"
CONTAINERD = "/etc/containerd/config.toml"
RESOURCES = ("aliyun.com/gpu-mem", "aliyun.com/gpu-count")
SCRATCH = "/root/gpushare-test"
# Each of these has something to do on a host without us; preflight and verify never have.
ROLES = {"container_runtime", "device_plugin", "extender", "kubectl_inspect", "kubelet", "python_environment", "scheduler"}
# What changes by itself on a node of a living cluster, and why; everything else below the watched folders must be the same.
VOLATILE = {
    "/var/lib/kubelet/pods": "volumes and state of the pods that happen to run; kubelet's",
    "/var/lib/kubelet/actuated_pods_state": "what kubelet has given to the pods that happen to run",
    "/var/lib/kubelet/allocated_pods_state": "the same",
    "/var/lib/kubelet/dra_manager_state": "the same, written with the first pod that kubelet admits",
    "/var/lib/kubelet/image_manager": "which images kubelet has pulled",
    "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint": "kubelet writes it at each pod with a device; looked at by itself below",
    "/var/lib/containerd": "containers and images; containerd's",
    "/var/lib/docker": "the same of docker",
    "/var/lib/cri-dockerd": "which pods' sandboxes cri-dockerd has made",
    "/var/lib/dockershim": "the same of a kubelet with dockershim",
    "/var/lib/containers": "the same of CRI-O",
    "/var/lib/crio": "when CRI-O was stopped last",
    "/var/lib/cni": "addresses of the pods that happen to run; the network plugin's",
    "/var/lib/etcd": "the database of the cluster; its objects are compared by the API",
    "/var/lib/systemd/catalog": "systemd's own index of messages",
    "/var/lib/systemd/random-seed": "systemd writes it at boot and shutdown",
    "/var/lib/systemd/timers": "when the distribution's timers last ran; ours is looked at by itself below",
    "/var/lib/apt": "lists of packages, which the distribution's timer fetches",
    "/var/lib/logrotate": "when the distribution's timer last ran",
    "/var/lib/private": "an empty folder that systemd makes for the first service with a user of its own and that is any service's then",
}
# Of these only that they are there: the device plugin writes its own record whenever a pod takes or leaves units.
LIVING = ("/var/lib/gpushare-device-plugin/held.json",)
KINDS = (
    "serviceaccounts,secrets,configmaps,roles,rolebindings,clusterroles,clusterrolebindings,"
    "validatingadmissionpolicies,validatingadmissionpolicybindings,daemonsets,deployments"
)


class Site:
    """The cluster, with the playbooks run as a user runs them."""

    def __init__(
        self,
        cluster: Cluster,
        folder: Path,
        gpu_nodes: Sequence[str] = (NODE,),
        inventory: Path | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """inventory: another one than the lab's own; settings: variables of Ansible's environment."""
        self.cluster = cluster
        self.hosts = (CONTROL_PLANE, *gpu_nodes)
        self._folder = folder
        self._inventory = inventory
        self._settings = settings or {}

    def command(self, playbook: str, *arguments: str) -> list[str]:
        program = Path(sys.executable).with_name("ansible-playbook")
        return [str(program), "-i", str(self._inventory or self.cluster.inventory), playbook, *arguments]

    def environment(self) -> dict[str, str]:
        own = {"ANSIBLE_CONFIG": str(REPOSITORY / "ansible.cfg"), "ANSIBLE_FORCE_COLOR": "0"}
        return {**os.environ, **own, **environment(self._folder / "results.jsonl"), **self._settings}

    def play(self, playbook: str, *arguments: str) -> tuple[Results, str]:
        output = run(self.command(playbook, *arguments), seconds=1800, environment=self.environment())
        return Results.read(self._folder / "results.jsonl"), output

    def install(self) -> None:
        self.play("site.yml")

    def uninstall(self, *arguments: str, wait: int = 0) -> tuple[Results, str]:
        return self.play("playbooks/uninstall.yml", "-e", f"gpushare_uninstall_wait={wait}", *arguments)

    def rejected(self, *arguments: str) -> str:
        """Why uninstall.yml did not begin."""
        with pytest.raises(CommandError) as error:
            self.uninstall(*arguments)
        return str(error.value)

    def ship(self, node: str) -> None:
        """The core of the module to a node, without Ansible."""
        buffer = BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            utils = "plugins/module_utils"
            archive.add(REPOSITORY / utils, f"ansible_collections/gpushare/kubernetes/{utils}", filter=without_caches)
            archive.add(HERE / "removed_at.py", "removed_at.py")
        unpack = f"mkdir -p {SCRATCH} && tar -x -C {SCRATCH}"
        self.cluster.feed(node, "sh", "-c", unpack, content=buffer.getvalue())

    def remove_killed_at_each_step(self, node: str, half: str) -> list[str]:
        """Run that half again and again, each time killed after its first step. The steps."""
        steps: list[str] = []
        while True:
            # The shell's last word is that the process was killed.
            lines = self.cluster.on(node, "sh", "-c", f"cd {SCRATCH} && python3 removed_at.py {half} 2>&1; true").splitlines()
            if lines == ["nothing left"]:
                return steps
            said = lines[0]
            assert lines == [said, "Killed"], lines
            assert said not in steps, f"done twice: {said}"
            steps.append(said)

    def files(self) -> dict[str, Any]:
        """Every watched path of every host."""
        script = (HERE / "print_file_tree.py").read_text()
        found: dict[str, Any] = {}
        for host in self.hosts:
            seen = json.loads(self.cluster.on(host, "python3", "-c", script, *VOLATILE))
            found |= {f"{host}:{path}": state[:3] if path in LIVING else state for path, state in seen.items()}
        return found

    def units(self) -> dict[str, Any]:
        """What systemd knows on every host of units that could be ours, and what has failed."""
        found: dict[str, Any] = {}
        for host in self.hosts:
            ours = self.cluster.on(host, "systemctl", "list-units", "--all", "--no-legend", "--plain", "*gpushare-[!l]*")
            failed = self.cluster.on(host, "systemctl", "list-units", "--failed", "--no-legend", "--plain")
            stamps = self.cluster.on(host, "sh", "-c", "ls /var/lib/systemd/timers /var/lib/private 2>/dev/null | grep gpushare || true")
            found[f"{host}: units, failures and stamps"] = [ours.split(), failed.split(), stamps.split()]
        return found

    def objects(self, resources: bool = True) -> dict[str, Any]:
        """What the cluster has: objects by name, kubeadm's configuration by content, nodes by all but their heartbeat."""
        listed = json.loads(self.cluster.kubectl("get", KINDS, "--all-namespaces", "-o", "json"))["items"]
        # The lab makes a token to join a node, and Kubernetes deletes it when it has expired.
        lasting = [i for i in listed if not i["metadata"]["name"].startswith("bootstrap-token-")]
        found: dict[str, Any] = {f"{i['kind']} {i['metadata'].get('namespace', '')}/{i['metadata']['name']}": "there" for i in lasting}
        found["kubeadm-config"] = next(i["data"] for i in listed if i["metadata"]["name"] == "kubeadm-config")
        for node in self.cluster.nodes():
            found[f"node {node['metadata']['name']}"] = node_state(node, resources)
        return found

    def state(self, resources: bool = True) -> dict[str, Any]:
        return self.files() | self.units() | self.objects(resources)

    def write(self, node: str, path: str, text: str) -> None:
        self.cluster.lab("exec", node, "sh", "-c", f"cat > {path}", stdin=text)

    def read(self, node: str, path: str) -> str:
        return self.cluster.on(node, "cat", path)

    def schedules(self, name: str) -> None:
        """A pod that asks for no GPU is placed and runs."""
        self.cluster.create(pod(name, {}))
        self.cluster.until_running(name)
        self.cluster.delete(name)

    def registered(self) -> list[str]:
        """Our resources in the GPU nodes' kubelets' own lists of device plugins."""
        place = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
        known = [json.loads(self.read(node, place))["Data"]["RegisteredDevices"] for node in self.hosts[1:]]
        return [resource for devices in known for resource in RESOURCES if resource in devices]


@dataclass(frozen=True)
class Untouched:
    """A cluster, and all that an installation could change, as it was before the first."""

    cluster: Cluster
    state: Mapping[str, Any]


def roles(changes: Counter[tuple[str, str, str]]) -> set[str]:
    """The roles that have changed something. changes: as from `Results.changes`."""
    return {task.split(" : ")[0].removeprefix("gpushare.kubernetes.") for _host, _play, task in changes}


def node_state(node: Json, resources: bool) -> list[Any]:
    """resources: with ours; they stay in the status until kubelet lets go of them."""
    status = node["status"]
    # Kubernetes itself taints a node that was not Ready, and takes the taint away some moments after it is.
    taints = [taint for taint in node["spec"].get("taints", []) if not taint["key"].startswith("node.kubernetes.io/")]
    spec = {**node["spec"], "taints": taints}
    amounts = [{k: v for k, v in status[part].items() if resources or k not in RESOURCES} for part in ("capacity", "allocatable")]
    annotations = installed(node) if resources else node["metadata"]["annotations"]
    return [node["metadata"]["labels"], annotations, spec, *amounts]


def pod(name: str, limits: Json) -> Json:
    container = {
        "name": "main",
        "image": "localhost/gpushare-lab/test:1",
        "imagePullPolicy": "IfNotPresent",
        "command": ["sleep", "1000000"],
        "resources": {"limits": limits},
    }
    spec = {"terminationGracePeriodSeconds": 0, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": spec}


def without_caches(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if "__pycache__" in entry.name else entry


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    names = sorted(before.keys() | after.keys())
    pairs = ((name, before.get(name, "absent"), after.get(name, "absent")) for name in names)
    return [f"{name}: {one} → {other}" for name, one, other in pairs if one != other]


def without(state: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """The state without things of these names, which the test has declared different."""
    assert set(names) <= set(state), f"nothing is called {set(names) - set(state)}"
    return {name: value for name, value in state.items() if name not in names}
