# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Everything that an instance needs and the cache keeps, made side by side where it is missing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from . import components, debian, payload, podman, runtimes, state
from .cache import Cache
from .golang import GO, forget_go_caches
from .images import Archives, archives
from .places import cache_root
from .process import LabError, in_parallel, say
from .spec import DEFAULT_RUNTIME


@dataclass(frozen=True)
class Prepared:
    """Where the parts are. ``layers`` are those of a node's file system, the uppermost first, by its container runtime."""

    layers: Mapping[str, tuple[Path, ...]]
    kubernetes: Path
    toolkit: Path
    libraries: Path
    nvidia_smi: Path
    nvidia_mps: Path
    archives: Archives
    pip_cache: Path


def the_cache() -> Cache:
    """This user's cache."""
    return Cache(cache_root(os.environ))


def prepare(version: str, wanted: Iterable[str] = ()) -> Prepared:
    """Make what is missing for a Kubernetes version, and for nodes with these container runtimes."""
    if os.geteuid() != 0:
        raise LabError("the lab runs systemd in privileged containers and needs root: call it as root")
    cache = the_cache()
    debian.install_host_packages(cache)
    made: dict[str, Path] = {}

    def compile_go() -> None:
        made["kubernetes"] = components.kubernetes(cache, version)
        components.etcd(cache)
        made["toolkit"] = components.nvidia_toolkit(cache)
        if cache.made:
            # Not while another lab builds: it may be another version, for a quarter of an hour.
            with cache.turn(GO):
                forget_go_caches(cache)

    def fetch_debian() -> None:
        made["rootfs"] = debian.root_file_system(cache)

    def make_small_parts() -> None:
        made["libraries"] = components.nvml(cache)
        made["nvidia_smi"] = debian.nvidia_smi(cache)
        made["nvidia_mps"] = debian.nvidia_mps(cache)
        components.pause(cache)

    def call(part: Callable[[], None]) -> None:
        part()

    in_parallel(call, [compile_go, fetch_debian, make_small_parts])
    kubernetes, rootfs = made["kubernetes"], made["rootfs"]
    programs = payload.programs_layer(cache, version, kubernetes)
    names = {DEFAULT_RUNTIME, *wanted}
    return Prepared(
        layers={
            name: (*runtimes.kubelet_layers(cache, name), programs, *runtimes.layers(cache, name, rootfs), rootfs) for name in sorted(names)
        },
        kubernetes=kubernetes,
        toolkit=made["toolkit"],
        libraries=made["libraries"],
        nvidia_smi=made["nvidia_smi"],
        nvidia_mps=made["nvidia_mps"],
        archives=archives(cache, version, kubernetes, rootfs),
        pip_cache=cache.folder("pip"),
    )


def clean_cache() -> None:
    """Remove the cache, and images of former versions of the lab; rejected while an instance uses them."""
    containers = podman.instances_with_containers() if podman.installed() else set()
    if users := sorted({*containers, *state.names()}):
        raise LabError(f"the cache is in use by {', '.join(users)}: call `lab --name NAME down` for each first")
    removed = podman.remove_node_images() if podman.installed() else []
    cache = cache_root(os.environ)
    if cache.exists():
        shutil.rmtree(cache)
    images = f"{len(removed)} images of former versions and " if removed else ""
    say(f"removed {images}{cache}; Debian packages stay: {', '.join(debian.HOST_PACKAGES)}")
