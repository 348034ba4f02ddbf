# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The container images of the cluster and of its tests: docker archives in the cache, no registry."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from . import components
from .archive import File, Folder, Image, Link, Member, Text, write_archive, write_layer
from .cache import Cache, recipe_hash
from .process import LabError, run

#: One image under all names that tests and samples use.
TEST_IMAGES = ("localhost/gpushare-lab/test:1", "docker.io/library/ubuntu:24.04", "docker.io/bvlc/caffe:gpu")
# Raised when the way an archive is put together changes.
_FORMAT = "1"
_PATH = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
_STATIC_PODS = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy")
# No mknod: a container has the device nodes that it was given.
_APPLETS = """
    awk basename cat chmod cp cut date df dirname du echo env expr false find free grep head hostname id ip kill ln ls mkdir
    mount mv nc nproc ping printenv printf ps pwd readlink realpath rm rmdir sed seq sh sleep sort stat tail tee test time
    timeout touch tr true tty uname uniq vi wc wget which xargs yes
"""
# What nvidia-smi, which CDI brings into the container, is linked to; and bash.
_LIBRARIES = ("ld-linux-x86-64.so.2", "libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libtinfo.so.6")


@dataclass(frozen=True)
class Archives:
    """Archives to import: for the control plane, for every node; and the reference of pause."""

    control_plane: Path
    every_node: Path
    pause: str


def image_references(programs: Path, version: str) -> dict[str, str]:
    """The reference of each image that kubeadm of this version wants, by its last name without the tag."""
    listed = run([programs / "kubeadm", "config", "images", "list", f"--kubernetes-version=v{version}"]).stdout
    found = {line.rpartition("/")[2].partition(":")[0]: line for line in listed.split()}
    if missing := [name for name in (*_STATIC_PODS, "etcd", "pause") if name not in found]:
        raise LabError(f"`kubeadm config images list` of {version} names no {', '.join(missing)}; it said:\n{listed}")
    return found


def archives(cache: Cache, version: str, programs: Path, rootfs: Path) -> Archives:
    """The archives for a Kubernetes version, of the programs in a folder and of files of the nodes' Debian."""
    references = image_references(programs, version)
    etcd, pause = components.etcd(cache), components.pause(cache)

    def build_control_plane(folder: Path) -> None:
        layers = folder / ".layers"
        layers.mkdir()
        images = _kubernetes_images(layers, programs, references)
        write_layer(layers / "etcd", {"usr/local/bin/etcd": File(etcd / "etcd")})
        images.append(Image([references["etcd"]], layers / "etcd", ["etcd"], _PATH))
        write_archive(folder / "images.tar", images)
        _remove(layers)

    def build_every_node(folder: Path) -> None:
        layers = folder / ".layers"
        layers.mkdir()
        write_layer(layers / "pause", {"pause": File(pause / "pause")})
        write_layer(layers / "test", test_image_members(rootfs))
        images = [
            Image([references["pause"]], layers / "pause", ["/pause"]),
            Image(TEST_IMAGES, layers / "test", ["sleep", "infinity"], _PATH),
        ]
        write_archive(folder / "images.tar", images)
        _remove(layers)

    names = "\n".join(sorted(references.values()))
    recipe = {"format": _FORMAT, "references": names, "kubernetes": str(programs), "etcd": str(etcd)}
    control_plane = cache.entry("images-control-plane", version, recipe, build_control_plane)
    recipe = {
        "format": _FORMAT,
        "references": " ".join((references["pause"], *TEST_IMAGES)),
        "pause": str(pause),
        "rootfs": str(rootfs),
        "members": recipe_hash({name: repr(member) for name, member in test_image_members(rootfs).items()}),
    }
    every_node = cache.entry("images-every-node", "1", recipe, build_every_node)
    return Archives(control_plane / "images.tar", every_node / "images.tar", references["pause"])


def _kubernetes_images(layers: Path, programs: Path, references: dict[str, str]) -> list[Image]:
    """One image under four names where one binary is all programs, otherwise four images."""
    if (together := programs / "kubernetes").exists():
        members: dict[str, Member] = {"usr/local/bin/kubernetes": File(together)}
        members |= {f"usr/local/bin/{name}": Link("kubernetes") for name in _STATIC_PODS}
        write_layer(layers / "kubernetes", members)
        return [Image([references[name] for name in _STATIC_PODS], layers / "kubernetes", (), _PATH)]
    images = []
    for name in _STATIC_PODS:
        write_layer(layers / name, {f"usr/local/bin/{name}": File(programs / name)})
        images.append(Image([references[name]], layers / name, [name], _PATH))
    return images


def test_image_members(rootfs: Path) -> dict[str, Member]:
    """The test image: a shell, small tools and glibc; nothing of NVIDIA."""
    members: dict[str, Member] = {
        "bin/busybox": File(rootfs / "usr/bin/busybox" if (rootfs / "usr/bin/busybox").exists() else rootfs / "bin/busybox"),
        "bin/bash": File(rootfs / "bin/bash"),
        "lib64/ld-linux-x86-64.so.2": Link("../lib/x86_64-linux-gnu/ld-linux-x86-64.so.2"),
        "etc/passwd": Text("root:x:0:0:root:/root:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n"),
        "etc/group": Text("root:x:0:\nnogroup:x:65534:\n"),
        "etc/nsswitch.conf": Text("passwd: files\ngroup: files\nhosts: files dns\n"),
        "etc/ld.so.conf": Text("/lib/x86_64-linux-gnu\n/usr/lib/x86_64-linux-gnu\n"),
        "root": Folder(0o700),
        "tmp": Folder(0o1777),
        "usr/bin": Folder(),
        "usr/lib/x86_64-linux-gnu": Folder(),
        "var/lib": Folder(),
        "run": Folder(),
    }
    members |= {f"bin/{name}": Link("busybox") for name in _APPLETS.split()}
    for name in _LIBRARIES:
        members[f"lib/x86_64-linux-gnu/{name}"] = File((rootfs / "lib/x86_64-linux-gnu" / name).resolve())
    return members


def _remove(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
