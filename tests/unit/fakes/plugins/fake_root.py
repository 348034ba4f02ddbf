# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A folder that stands for a host: its files, links, programs, sockets and processes."""

from __future__ import annotations

import os
import socket
from pathlib import Path

NVIDIA_SMI = Path(__file__).parents[2] / "plugins/fixtures/nvidia_smi_535_two_gpus.xml"


class FakeRoot:
    """Every path given is as the host sees it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __str__(self) -> str:
        return str(self.folder)

    def at(self, path: str) -> Path:
        """The path outside, with its parent folders made."""
        place = self.folder / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        return place

    def file(self, path: str, content: str | bytes = "") -> None:
        self.at(path).write_bytes(content if isinstance(content, bytes) else content.encode())

    def link(self, path: str, target: str) -> None:
        self.at(path).symlink_to(target)

    def program(self, path: str, output: str = "", status: int = 0) -> None:
        """A program that prints `output` whatever it is asked."""
        self.at(path).write_text(f"#!/bin/sh\ncat <<'EOF'\n{output}\nEOF\nexit {status}\n")
        self.at(path).chmod(0o755)

    def process(
        self, pid: int, *argv: str, namespace: str = "pid:[1]", uid: int = 0, program: str | None = None, container: str | None = None
    ) -> None:
        """program: what it really runs, by default what it says; container: the folder that is "/" to it, by default the host's."""
        self.file(f"/proc/{pid}/cmdline", b"".join(word.encode() + b"\0" for word in argv))
        self.link(f"/proc/{pid}/ns/pid", namespace)
        self.link(f"/proc/{pid}/exe", program or (argv[0] if argv[0].startswith("/") else f"/usr/bin/{argv[0]}"))
        self.file(f"/proc/{pid}/status", f"Name:\tx\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\nGid:\t0\t0\t0\t0\n")
        if namespace == "pid:[1]":
            # As the kernel has it, this leads somewhere else than it says; here it is relative to this folder.
            self.link(f"/proc/{pid}/root", f"../..{container or ''}")
        if not self.at("/proc/self/ns/pid").is_symlink():
            self.link("/proc/self/ns/pid", "pid:[1]")

    def socket(self, path: str) -> None:
        """A socket file; bound by its short name, because a socket's whole path may have few characters only."""
        place = self.at(path)
        before = os.getcwd()
        with socket.socket(socket.AF_UNIX) as sock:
            try:
                os.chdir(place.parent)
                sock.bind(place.name)
            finally:
                os.chdir(before)

    def pci(self, address: str, kind: str = "0x030200", driver: str = "nvidia", vendor: str = "0x10de", device: str = "0x1eb8") -> None:
        folder = f"/sys/bus/pci/devices/{address}"
        for name, value in (("vendor", vendor), ("class", kind), ("device", device), ("numa_node", "-1")):
            self.file(f"{folder}/{name}", value + "\n")
        if driver:
            self.link(f"{folder}/driver", f"../../../../bus/pci/drivers/{driver}")


#: nvidia's runtime takes GPUs from mounts only.
TOOLKIT = """\
accept-nvidia-visible-devices-as-volume-mounts = true
accept-nvidia-visible-devices-envvar-when-unprivileged = false
"""


def debian(root: FakeRoot) -> FakeRoot:
    """Debian 12 with systemd and a Python that can make environments."""
    root.file("/usr/lib/os-release", 'PRETTY_NAME="Debian GNU/Linux 12 (bookworm)"\nID=debian\nVERSION_ID="12"\n# comment\n')
    root.link("/etc/os-release", "../usr/lib/os-release")
    root.file("/etc/hostname", "Node-7\n")
    root.file("/proc/sys/kernel/osrelease", "6.1.0-30-amd64\n")
    root.file("/proc/sys/kernel/arch", "x86_64\n")
    root.at("/run/systemd/system/x").parent.mkdir(parents=True, exist_ok=True)
    root.file("/sys/fs/cgroup/cgroup.controllers", "cpu\n")
    root.program("/usr/bin/python3.11", "Python 3.11.2")
    root.link("/usr/bin/python3", "python3.11")
    root.file("/usr/lib/python3.11/ensurepip/__init__.py")
    return root


def kubelet(root: FakeRoot, *arguments: str, version: str = "v1.36.3") -> FakeRoot:
    """A running kubelet of kubeadm with containerd."""
    root.program("/usr/bin/kubelet", f"Kubernetes {version}")
    root.program("/usr/bin/containerd", "containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+deb12u1")
    root.socket("/run/containerd/containerd.sock")
    root.file("/var/lib/kubelet/kubeadm-flags.env", 'KUBELET_KUBEADM_ARGS=""\n')
    root.file("/var/lib/kubelet/config.yaml", KUBELET_CONFIG)
    root.process(20, "/usr/bin/containerd")
    root.process(30, "/usr/bin/kubelet", "--config=/var/lib/kubelet/config.yaml", *arguments)
    return root


def gpu(root: FakeRoot, version: str = "535.261.03") -> FakeRoot:
    """Two GPUs and a driver of one version in all its parts."""
    root.pci("0000:04:00.0")
    root.pci("0000:0b:00.0")
    root.file(
        "/proc/driver/nvidia/version",
        f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {version}  Wed Jan  1 00:00:00 UTC 2025\nGCC version:\n",
    )
    root.file(f"/usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.{version}")
    root.link("/etc/alternatives/nvidia--libnvidia-ml.so.1", "/usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.1")
    root.link("/usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.1", f"libnvidia-ml.so.{version}")
    root.link("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", "/etc/alternatives/nvidia--libnvidia-ml.so.1")
    root.file(
        "/etc/ld.so.cache", b"glibc-ld.so.cache1.1\0\1\2libnvidia-ml.so.1\0/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1\0/lib/libc.so.6\0"
    )
    root.program("/usr/bin/nvidia-smi", NVIDIA_SMI.read_text())
    for minor in (0, 1):
        root.file(f"/dev/nvidia{minor}")
    root.file("/etc/nvidia-container-runtime/config.toml", TOOLKIT)
    return root


def rancher(root: FakeRoot, *command: str, version: str = "v1.32.2+k3s1", active: str = "active", files: str = "") -> FakeRoot:
    """k3s or RKE2 as they install themselves. command: such as "k3s", "server", "--docker"; version "" for none that runs.

    files: of variables, as systemd's unit names them.
    """
    name, role, *arguments = command
    folder, own = f"/var/lib/rancher/{name}/data/1a2b/bin", {"k3s": ("k3s", "k3s-agent"), "rke2": ("rke2-server", "rke2-agent")}[name]
    root.program(f"/usr/local/bin/{name}", f"{name} version {version} (381620ef)\ngo version go1.23.6")
    if active == "active":
        # Both write a title over their arguments: one word.
        root.process(50, f"/usr/local/bin/{name} {role}", program=f"{folder}/{name}")
    unit = own[role != "server"]
    start = f"ExecStart={{ path=/usr/local/bin/{name} ; argv[]=/usr/local/bin/{' '.join([name, role, *arguments])} ; ignore_errors=no ; }}"
    named = f"EnvironmentFiles=/etc/default/{unit} (ignore_errors=yes)\nEnvironmentFiles={files or '/none'} (ignore_errors=yes)"
    answers = f"LoadState=loaded\nActiveState={active}\nSubState=dead\nResult=success\nInvocationID=\n{start}\nEnvironment=\n{named}"
    script = f'[ "$2" = {unit}.service ] && echo "{answers}" || printf "LoadState=not-found\\nActiveState=inactive\\n"\n'
    root.at("/usr/bin/systemctl").write_text("#!/bin/sh\n" + script)
    root.at("/usr/bin/systemctl").chmod(0o755)
    return root


def control_plane(root: FakeRoot) -> FakeRoot:
    """What kubeadm leaves on a control plane."""
    for name in ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler"):
        root.file(f"/etc/kubernetes/manifests/{name}.yaml", "apiVersion: v1\n")
    root.file("/etc/kubernetes/admin.conf", "{}")
    root.process(31, "kube-scheduler", "--config=/etc/kubernetes/gpushare/kube-scheduler.yaml")
    root.program("/usr/bin/kubectl")
    return root


KUBELET_CONFIG = """\
apiVersion: kubelet.config.k8s.io/v1beta1
authentication:
  x509:
    clientCAFile: /etc/kubernetes/pki/ca.crt
cgroupDriver: systemd
clusterDNS:
- 10.96.0.10
containerRuntimeEndpoint: "unix:///run/containerd/containerd.sock"   # as kubeadm writes it
featureGates:
  DevicePlugins: true
  Other: false
kind: KubeletConfiguration
"""
