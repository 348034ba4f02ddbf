# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The container runtimes that a GPU node can have, and the layers of its file system that bring them.

Debian's containerd 1.6 is in every node's file system. A newer containerd replaces its programs. docker is Debian's package, and
cri-dockerd lies between it and kubelet, or dockershim, which an older kubelet itself has. CRI-O does not build from Go modules alone:
who has built it names the program in GPUSHARE_CRIO.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import components, debian
from .archive import File, Link, Member, files_of, write_layer
from .cache import Cache, sources_recipe
from .golang import GO, downloaded, go_environment
from .overlay import mount_overlay, unmount_below
from .places import SOURCES
from .podman import unpack_below
from .process import LabError, environment, run_logged
from .spec import DEBIANS_RUNTIME
from .versions import released, version

DOCKER = "docker"
CRI_DOCKERD = version("cri-dockerd")
DOCKERSHIM = "dockershim"
#: The last kubelet with kube-schedulers that read a policy beside it. Kubernetes 1.24 has no dockershim any more.
DOCKERSHIM_KUBELET = released("1.22")
#: Those whose kubelet has containers of docker.
WITH_DOCKER = (DOCKER, DOCKERSHIM)
CRIO = "cri-o"
#: The variable with the path of the program crio, beside which is its pinns.
CRIO_PROGRAM = "GPUSHARE_CRIO"

_CONTAINERD_PROGRAMS = ("containerd", "containerd-shim-runc-v2", "ctr")
# Its daemons must not start while it is unpacked.
_RUNC = "usr/local/sbin/runc"
_POLICY = "#!/bin/sh\nexit 101\n"


@dataclass(frozen=True)
class Module:
    """Programs of a Go module. packages: their main packages below it, "" for its own root; stamp: the variable with the version.

    kept: a folder of the module that stays beside its programs, under its own name.
    """

    path: str
    version: str
    packages: Mapping[str, str]
    stamp: str
    tags: str = ""
    kept: str = ""


def _containerd(path: str, version: str) -> Module:
    packages = {name: f"cmd/{name}" for name in _CONTAINERD_PROGRAMS}
    return Module(path, version, packages, f"{path}/version.Version", "no_btrfs,no_devmapper,no_zfs,no_aufs")


CONTAINERDS = {
    "containerd-1.7": _containerd("github.com/containerd/containerd", version("containerd 1.7")),
    "containerd-2.3": _containerd("github.com/containerd/containerd/v2", version("containerd 2.3")),
    "containerd-2.4": _containerd("github.com/containerd/containerd/v2", version("containerd")),
}
#: Those that have configurations of another version than 2, and which.
CONTAINERDS_2 = {"containerd-2.3": "4", "containerd-2.4": "4"}
_CRI_DOCKERD = Module(
    "github.com/Mirantis/cri-dockerd", CRI_DOCKERD, {"cri-dockerd": ""}, "github.com/Mirantis/cri-dockerd/cmd/version.Version"
)
NAMES = (DEBIANS_RUNTIME, *CONTAINERDS, DOCKER, DOCKERSHIM, CRIO)
_SOCKETS = {DOCKER: "unix:///run/cri-dockerd.sock", DOCKERSHIM: "unix:///var/run/dockershim.sock", CRIO: "unix:///var/run/crio/crio.sock"}


def check_runtime(name: str) -> str:
    """The name of a container runtime that a node can have."""
    if name not in NAMES:
        raise LabError(f'container runtime "{name}": expected one of {", ".join(NAMES)}')
    return name


def parse_runtimes(text: str) -> dict[str, str]:
    """{"gpu1": "docker"} from "gpu1=docker,gpu2=containerd-1.7"."""
    runtimes: dict[str, str] = {}
    for part in text.split(","):
        found = re.fullmatch(r"\s*(gpu[1-9]\d*)=(\S+)\s*", part)
        if not found or found[1] in runtimes:
            raise LabError(f'runtimes "{text}": found "{part}", expected each NODE=RUNTIME once, such as gpu1=docker')
        runtimes[found[1]] = check_runtime(found[2])
    return runtimes


def socket_of(runtime: str) -> str:
    """Where kubelet reaches it."""
    return _SOCKETS.get(runtime, "unix:///run/containerd/containerd.sock")


def layers(cache: Cache, runtime: str, rootfs: Path) -> tuple[Path, ...]:
    """What lies above a node's Debian for this runtime, the uppermost first."""
    if runtime == DEBIANS_RUNTIME:
        return ()
    if runtime == DOCKER:
        return _cri_dockerd_layer(cache), debian_docker(cache, rootfs)
    if runtime == DOCKERSHIM:
        return (debian_docker(cache, rootfs),)
    if runtime == CRIO:
        # podman brings images in, where the role looks for it as well.
        return _crio_layer(cache), _debian_packages(cache, "podman", ("podman", "netavark"), rootfs)
    programs = go_programs(cache, runtime.partition("-")[0], CONTAINERDS[runtime])
    members = {f"usr/bin/{name}": File(programs / name) for name in _CONTAINERD_PROGRAMS}
    return (_layer(cache, runtime, programs, members),)


def kubelet_layers(cache: Cache, runtime: str) -> tuple[Path, ...]:
    """What lies above the programs of the cluster's version: the kubelet of a runtime that only an older one has."""
    if runtime != DOCKERSHIM:
        return ()
    programs = components.kubelet(cache, DOCKERSHIM_KUBELET)
    members = {"usr/bin/kubelet": File(programs / "kubelet"), _RUNC: File(SOURCES / "node/docker" / _RUNC, 0o755)}
    recipe = {"runc": (SOURCES / "node/docker" / _RUNC).read_bytes()}
    return (_layer(cache, DOCKERSHIM, programs, members, recipe),)


def go_programs(cache: Cache, what: str, module: Module) -> Path:
    """A folder with the programs of a Go module, built as its own go.mod says."""
    flags = f"-s -w -X {module.stamp}={module.version}"

    def build(folder: Path) -> None:
        env, work = go_environment(cache, cgo=False), folder / ".work"
        work.mkdir()
        go, said = downloaded(cache, module.path, module.version)
        sources = Path(said["Dir"])
        lines = go_mod_requiring(Path(said["GoMod"]).read_text(), module)
        (work / "go.mod").write_text(lines)
        # Its own hashes of what it requires: not every one of those versions has a place in the public list of checksums.
        shutil.copyfile(sources / "go.sum", work / "go.sum")
        log = cache.log(f"{what}-{module.version}")
        for name, package in module.packages.items():
            target = f"{module.path}/{package}".rstrip("/")
            argv: list[str | Path] = [go, "build", "-trimpath", "-tags", module.tags, "-ldflags", flags, "-o", folder / name, target]
            run_logged(f"building {name} {module.version}", argv, log, env=env, cwd=work)
        if module.kept:
            shutil.copytree(sources / module.kept, folder / module.kept)
        shutil.rmtree(work)

    recipe = {"module": module.path, "packages": " ".join(module.packages), "flags": flags, "tags": module.tags}
    if module.kept:
        recipe["kept"] = module.kept
    return cache.entry(f"{what}-built", module.version, recipe, build, turns=GO)


def go_mod_requiring(upstream: str, module: Module) -> str:
    """The go.mod of a module that builds another one's programs, with the versions that its go.mod replaces."""
    needs_go = re.search(r"^go .*$", upstream, re.MULTILINE)
    if needs_go is None:
        raise LabError(f"the go.mod of {module.path} v{module.version} has no go line: its module cannot be had")
    replaced = re.findall(r"^\s*(?:replace )?(\S+(?: v\S+)? => [^.\s]\S* v\S+)", upstream, re.MULTILINE)
    lines = ["module gpushare-lab/programs", needs_go[0], f"require {module.path} v{module.version}"]
    return "\n".join([*lines, *(f"replace {one}" for one in replaced)]) + "\n"


def debian_docker(cache: Cache, rootfs: Path) -> Path:
    """What installing Debian's docker.io changes in the nodes' file system."""
    return _debian_packages(cache, "docker", ("docker.io",), rootfs)


def _debian_packages(cache: Cache, what: str, names: Sequence[str], rootfs: Path) -> Path:
    """What installing packages of Debian changes in the nodes' file system; dpkg installs them there, no daemon starts."""

    def build(folder: Path) -> None:
        work, layer, log = folder / ".work", folder / "layer", cache.log(f"debian-{what}")
        merged = work / "merged"
        for path in (layer, merged, work / "overlay"):
            path.mkdir(parents=True)
        layer.chmod(0o755)
        archives = debian.download(work / "apt", names, log, installed=rootfs / "var/lib/dpkg/status")
        mount_overlay(merged, [rootfs], layer, work / "overlay")
        try:
            (merged / "usr/sbin/policy-rc.d").write_text(_POLICY)
            (merged / "usr/sbin/policy-rc.d").chmod(0o755)
            for archive in archives:
                shutil.copy(archive, merged / "tmp" / archive.name)
            install: list[str | Path] = ["chroot", merged, "dpkg", "--install", *(f"/tmp/{archive.name}" for archive in archives)]
            run_logged(
                f"installing {' '.join(names)} for nodes", install, log, env=environment(DEBIAN_FRONTEND="noninteractive", LC_ALL="C")
            )
            for archive in archives:
                (merged / "tmp" / archive.name).unlink()
            (merged / "usr/sbin/policy-rc.d").unlink()
        finally:
            unmount_below(work)
        shutil.rmtree(work)

    return cache.entry(f"debian-{what}", debian.SUITE, {"rootfs": str(rootfs)}, build) / "layer"


def _crio_layer(cache: Cache) -> Path:
    if not (named := os.environ.get(CRIO_PROGRAM)):
        raise LabError(f"CRI-O does not build from Go modules: build it, and name its program crio in {CRIO_PROGRAM}, with pinns beside it")
    files, runc = SOURCES / "node/crio", SOURCES / "node/docker" / _RUNC
    programs = {f"usr/bin/{name}": Path(named).with_name(name) for name in ("crio", "pinns")}
    members: dict[str, Member] = {name: File(path, 0o755) for name, path in programs.items()}
    members |= {
        **files_of(files),
        _RUNC: File(runc, 0o755),
        "etc/systemd/system/multi-user.target.wants/crio.service": Link("/usr/lib/systemd/system/crio.service"),
    }
    recipe = {name: path.read_bytes() for name, path in programs.items()} | {_RUNC: runc.read_bytes()} | sources_recipe(files)
    return _layer(cache, CRIO, Path(named).parent, members, recipe)


def _cri_dockerd_layer(cache: Cache) -> Path:
    programs, files = go_programs(cache, "cri-dockerd", _CRI_DOCKERD), SOURCES / "node/docker"
    members = files_of(files)
    wants = "etc/systemd/system"
    members |= {
        "usr/bin/cri-dockerd": File(programs / "cri-dockerd"),
        f"{wants}/multi-user.target.wants/cri-docker.service": Link("/usr/lib/systemd/system/cri-docker.service"),
        f"{wants}/sockets.target.wants/cri-docker.socket": Link("/usr/lib/systemd/system/cri-docker.socket"),
    }
    return _layer(cache, "cri-dockerd", programs, members, sources_recipe(files))


def _layer(cache: Cache, what: str, programs: Path, members: Mapping[str, Member], sources: Mapping[str, bytes] | None = None) -> Path:
    def build(folder: Path) -> None:
        write_layer(folder / "layer.tar", members)
        unpack_below(folder, folder / "layer.tar")
        (folder / "layer.tar").unlink()

    recipe: dict[str, str | bytes] = {"programs": str(programs), "members": " ".join(sorted(members)), **(sources or {})}
    return cache.entry(f"node-{what}", "1", recipe, build)
