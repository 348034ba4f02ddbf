# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The control plane of a lab as the tests of the scheduler see it: its files, the scheduler that runs, and the role run on it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
from io import BytesIO
from pathlib import Path
from typing import Any

from e2e.api import Json
from e2e.cluster import CONTROL_PLANE, REPOSITORY, Cluster, is_running
from timeline import span

HERE = Path(__file__).parent
MANIFEST = "/etc/kubernetes/manifests/kube-scheduler.yaml"
CONFIG = "/etc/kubernetes/gpushare/kube-scheduler.yaml"
KUBEADM = "configmap:kube-system/kubeadm-config/ClusterConfiguration"
SCRATCH = "/root/gpushare-test"


class ControlPlane:
    """The control-plane node of a cluster."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.inventory = cluster.lab("inventory").strip()

    def sh(self, script: str, stdin: str | None = None) -> str:
        return self.cluster.lab("exec", CONTROL_PLANE, "sh", "-c", script, stdin=stdin)

    def read(self, path: str) -> str:
        return self.sh(f"cat {path}")

    def write(self, path: str, text: str) -> None:
        self.sh(f"mkdir -p $(dirname {path}) && cat > {path}", stdin=text)

    def start_role(self, *arguments: str) -> subprocess.Popen[str]:
        """Begin to run the role scheduler."""
        environment = {**os.environ, "ANSIBLE_CONFIG": str(REPOSITORY / "ansible.cfg"), "ANSIBLE_FORCE_COLOR": "0"}
        program = str(Path(sys.executable).with_name("ansible-playbook"))
        command = [program, "-i", self.inventory, str(HERE / "scheduler.yml"), *arguments]
        return subprocess.Popen(command, cwd=REPOSITORY, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def role(self, *arguments: str, fails: bool = False) -> str:
        """What the role scheduler prints."""
        with span("playbook", "role scheduler"):
            process = self.start_role(*arguments)
            output, _none = process.communicate(timeout=400)
        assert (process.returncode != 0) == fails, output
        return output

    def absent(self, *arguments: str) -> str:
        return self.role("-e", "gpushare_scheduler_state=absent", *arguments)

    def cluster_configuration(self) -> str:
        """kubeadm's ClusterConfiguration."""
        return self.cluster.kubectl(
            "-n", "kube-system", "get", "configmap", "kubeadm-config", "-o", "jsonpath={.data.ClusterConfiguration}"
        )

    def pod(self) -> Json:
        """The scheduler's static pod, as the API server knows it."""
        return self.cluster.pod(f"kube-scheduler-{CONTROL_PLANE}", "kube-system")

    def container(self) -> str:
        """The id of the scheduler's container, which runs."""
        return str(self.cluster.until("kube-scheduler runs", lambda: self._container(), 60))

    def _container(self) -> str | None:
        pod = self.pod()
        return pod["status"]["containerStatuses"][0]["containerID"] if is_running(pod) else None

    def snapshot(self) -> str:
        """Every file that could have been written, with its content and times, and which scheduler runs."""
        script = "find /etc /var/lib/gpushare -printf '%p %y %m %U:%G %s %T@ %C@\\n' 2>/dev/null | grep -v ' /etc/mtab' | sort"
        return self.sh(script) + self.container() + self.cluster_configuration()

    def ship(self) -> None:
        """The module's core to the node, without Ansible."""
        buffer = BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as archive:
            utils = "plugins/module_utils"
            archive.add(REPOSITORY / utils, f"ansible_collections/gpushare/kubernetes/{utils}", filter=_without_caches)
            archive.add(HERE / "scheduler_killed_at.py", "scheduler_killed_at.py")
        command = self.cluster.entering(CONTROL_PLANE)
        unpack = f"mkdir -p {SCRATCH} && tar -x -C {SCRATCH}"
        subprocess.run([*command, "sh", "-c", unpack], input=buffer.getvalue(), check=True, timeout=60, capture_output=True)

    def core(self, *arguments: str, stdin: str | None = None) -> str:
        """Run the module's core on the node. "killed" comes last where it was."""
        return self.sh(f"cd {SCRATCH} && python3 scheduler_killed_at.py {' '.join(arguments)} 2>&1 || echo killed", stdin=stdin)


def plain_pod(name: str) -> dict[str, Any]:
    """A pod without GPU that any node may run."""
    container = {
        "name": "main",
        "image": "localhost/gpushare-lab/test:1",
        "imagePullPolicy": "IfNotPresent",
        "command": ["sleep", "1000000"],
    }
    spec = {"terminationGracePeriodSeconds": 0, "containers": [container]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": spec}


def gpu_pod(name: str) -> dict[str, Any]:
    """A pod that asks for a unit."""
    pod = plain_pod(name)
    pod["spec"]["containers"][0]["resources"] = {"limits": {"aliyun.com/gpu-mem": "1"}}
    return pod


def is_placed(cluster: Cluster, name: str) -> bool:
    """Whether the scheduler has given a pod a node."""
    return bool(cluster.pod(name)["spec"].get("nodeName"))


def calls(plane: ControlPlane) -> int:
    """How often the extender was asked to filter."""
    health = plane.sh('python3 -c "' + _ASK + '"')
    return int(json.loads(health)["filter_calls"])


_ASK = (
    "import ssl,urllib.request as u;"
    "c=ssl.create_default_context(cafile='/etc/gpushare/pki/ca.crt');"
    "print(u.urlopen('https://127.0.0.1:32766/healthz',context=c).read().decode())"
)


def _without_caches(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    return None if "__pycache__" in entry.name else entry
