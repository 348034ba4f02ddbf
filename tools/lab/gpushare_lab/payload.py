# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The files that a node gets besides its Debian: Kubernetes' programs, its own settings, and what GPUs need."""

from __future__ import annotations

import hashlib
import os
import string
from collections.abc import Mapping
from pathlib import Path

from . import host_settings
from .access import host_key, user_key
from .archive import File, Folder, Link, Member, Text, files_of, write_layer
from .cache import Cache
from .components import NVIDIA_DRIVER, NVIDIA_PROGRAMS
from .places import SOURCES
from .podman import unpack_below
from .runtimes import CONTAINERDS_2, CRIO, DOCKERSHIM, WITH_DOCKER
from .spec import Node, pod_routes
from .state import Instance

_LIBRARIES = "usr/lib/x86_64-linux-gnu"
_NODE_FILES = SOURCES / "node"
_OLD_GATES = "--feature-gates=LocalStorageCapacityIsolation=false"


def programs(kubernetes: Path) -> dict[str, Member]:
    """kubeadm, kubelet and kubectl, as links where one file is all of them."""
    names = ("kubeadm", "kubelet", "kubectl")
    if not (together := kubernetes / "kubernetes").exists():
        return {f"usr/bin/{name}": File(kubernetes / name) for name in names}
    links: dict[str, Member] = {f"usr/bin/{name}": Link("../lib/kubernetes/kubernetes") for name in names}
    return {"usr/lib/kubernetes/kubernetes": File(together), **links}


def programs_layer(cache: Cache, version: str, kubernetes: Path) -> Path:
    """The same as a layer of nodes' file systems, in the cache."""

    def build(folder: Path) -> None:
        write_layer(folder / "layer.tar", programs(kubernetes))
        unpack_below(folder, folder / "layer.tar")
        (folder / "layer.tar").unlink()

    recipe = {"kubernetes": str(kubernetes), "programs": digest(programs(kubernetes)) if cache.root not in kubernetes.parents else ""}
    return cache.entry("node-programs", version, recipe, build)


def settings(instance: Instance, node: Node, pause: str, gpus_state: str | None) -> dict[str, Member]:
    """A node's identity, who may log in, its services, and the configuration of containerd, CNI and pip."""
    identity = hashlib.md5(f"gpushare-lab/{instance.name}/{node.name}".encode(), usedforsecurity=False).hexdigest()
    key = host_key(instance, node.name)
    nvidia = node.has_gpus and instance.nvidia_runtime
    wants = "etc/systemd/system/multi-user.target.wants"
    members: dict[str, Member] = {
        "etc/machine-id": Text(f"{identity}\n", 0o444),
        "etc/ssh/ssh_host_ed25519_key": File(key, 0o600),
        "etc/ssh/ssh_host_ed25519_key.pub": File(key.with_name(f"{key.name}.pub"), 0o644),
        "root/.ssh": Folder(0o700),
        "root/.ssh/authorized_keys": File(user_key(instance).with_name("id_ed25519.pub"), 0o600),
        "etc/pip.conf": Text(host_settings.pip_conf(host_settings.read_pip_settings()), 0o600),
        **{path: Text(text) for path, text in _runtime_configuration(node.runtime, nvidia, pause).items()},
        "etc/cni/net.d/10-lab.conflist": Text(render("cni.conflist", pod_range=node.pod_range)),
        "etc/gpushare-lab/pod-routes": Text(pod_routes(instance.nodes, node)),
        "opt/cni/bin": Link("/usr/lib/cni"),
        f"{wants}/gpushare-lab-boot.service": Link("/etc/systemd/system/gpushare-lab-boot.service"),
        f"{wants}/kubelet.service": Link("/usr/lib/systemd/system/kubelet.service"),
        f"{wants}/ssh.service": Link("/lib/systemd/system/ssh.service"),
    }
    if bundle := host_settings.ca_bundle(os.environ):
        members[host_settings.NODE_CA_BUNDLE.lstrip("/")] = File(bundle, 0o644)
    if gpus_state is not None:
        members["var/lib/gpushare-lab/gpus.state"] = Text(gpus_state)
    return members | files_of(_NODE_FILES / "base")


def _runtime_configuration(runtime: str, nvidia: bool, pause: str) -> dict[str, str]:
    """The files of a node's container runtime, by path; nvidia: with that runtime as the default."""
    kind = "-nvidia" if nvidia else ""
    if runtime in WITH_DOCKER:
        # docker's containerd has the CRI, too, as Debian's package does; kubelet does not use it.
        files = {
            "etc/containerd/config.toml": render("containerd.toml", sandbox_image=pause),
            "etc/docker/daemon.json": render(f"daemon{kind}.json"),
        }
        if runtime == DOCKERSHIM:
            # What kubeadm of that time tells kubelet, and that of today does not. The gate stands for localStorageCapacityIsolation.
            words = f"--container-runtime=docker --network-plugin=cni --pod-infra-container-image={pause} {_OLD_GATES}"
            return {**files, "etc/default/kubelet": f"KUBELET_EXTRA_ARGS={words}\n"}
        return {**files, "etc/default/cri-docker": f"CRI_DOCKERD_ARGS=--pod-infra-container-image={pause}\n"}
    if runtime == CRIO:
        # With Debian's containerd beside it, which kubelet does not use.
        return {
            "etc/containerd/config.toml": render("containerd.toml", sandbox_image=pause),
            "etc/crio/crio.conf.d/10-lab.conf": render(f"crio{kind}.conf", sandbox_image=pause),
        }
    if runtime in CONTAINERDS_2:
        version = CONTAINERDS_2[runtime]
        return {"etc/containerd/config.toml": render(f"containerd-2{kind}.toml", sandbox_image=pause, version=version)}
    return {"etc/containerd/config.toml": render(f"containerd{kind}.toml", sandbox_image=pause)}


def gpus(toolkit: Path, libraries: Path, nvidia_smi: Path, nvidia_mps: Path) -> dict[str, Member]:
    """The simulated driver, nvidia-smi, nvidia-cuda-mps-control and NVIDIA's container toolkit."""
    members = files_of(_NODE_FILES / "gpu")
    members |= {f"usr/bin/{name}": File(toolkit / name) for name in NVIDIA_PROGRAMS}
    members["usr/bin/nvidia-smi"] = File(nvidia_smi)
    members["usr/bin/nvidia-cuda-mps-control"] = File(nvidia_mps)
    members["usr/local/lib/gpushare-lab/gpus.py"] = File(SOURCES / "nvml/gpus.py", 0o755)
    for name in ("libnvidia-ml.so", "libcuda.so"):
        members[f"{_LIBRARIES}/{name}.{NVIDIA_DRIVER}"] = File(libraries / f"{name}.{NVIDIA_DRIVER}", 0o644)
        members[f"{_LIBRARIES}/{name}.1"] = Link(f"{name}.{NVIDIA_DRIVER}")
    return members


def digest(members: Mapping[str, Member]) -> str:
    """Changes when a member, or the content of a file that is one, changes."""
    total = hashlib.sha256()
    for name in sorted(members):
        member = members[name]
        content = member.source.read_bytes() if isinstance(member, File) else b""
        total.update(f"{name}\0{member!r}\0{len(content)}\0".encode() + content)
    return total.hexdigest()


def render(template: str, **values: str) -> str:
    """A template of the folder node/templates with its $names replaced."""
    return string.Template((_NODE_FILES / "templates" / template).read_text()).substitute(values)
