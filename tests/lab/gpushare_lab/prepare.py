# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Everything that an instance needs and the cache keeps, made side by side where it is missing."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from . import components, debian, podman, state
from .cache import Cache, locked
from .golang import forget_go_caches
from .images import Archives, archives
from .places import cache_root
from .process import LabError, in_parallel, say


@dataclass(frozen=True)
class Prepared:
    """Where the parts are, and the reference of the node image in podman."""

    node_image: str
    kubernetes: Path
    toolkit: Path
    libraries: Path
    nvidia_smi: Path
    archives: Archives
    pip_cache: Path


def the_cache() -> Cache:
    """This user's cache."""
    return Cache(cache_root(os.environ))


def prepare(version: str) -> Prepared:
    """Make what is missing for a Kubernetes version."""
    if os.geteuid() != 0:
        raise LabError("the lab runs systemd in privileged containers and needs root: call it as root")
    cache = the_cache()
    debian.install_host_packages(cache)
    made: dict[str, Path | str] = {}

    def compile_go() -> None:
        with locked(cache.root / "locks/go"):
            made["kubernetes"] = components.kubernetes(cache, version)
            components.etcd(cache)
            made["toolkit"] = components.nvidia_toolkit(cache)
            forget_go_caches(cache)

    def fetch_debian() -> None:
        rootfs = debian.root_file_system(cache)
        made["rootfs"] = rootfs
        with locked(cache.root / "locks/node-image"):
            made["image"] = podman.node_image(rootfs)

    def make_small_parts() -> None:
        made["libraries"] = components.nvml(cache)
        made["nvidia_smi"] = debian.nvidia_smi(cache)
        components.pause(cache)

    def call(part: Callable[[], None]) -> None:
        part()

    in_parallel(call, [compile_go, fetch_debian, make_small_parts])
    kubernetes = Path(made["kubernetes"])
    return Prepared(
        node_image=str(made["image"]),
        kubernetes=kubernetes,
        toolkit=Path(made["toolkit"]),
        libraries=Path(made["libraries"]),
        nvidia_smi=Path(made["nvidia_smi"]),
        archives=archives(cache, version, kubernetes, Path(made["rootfs"])),
        pip_cache=cache.folder("pip"),
    )


def clean_cache() -> None:
    """Remove the cache and the node images; refused while an instance uses them."""
    containers = podman.instances_with_containers() if podman.installed() else set()
    if users := sorted({*containers, *state.names()}):
        raise LabError(f"the cache is in use by {', '.join(users)}: call `lab --name NAME down` for each first")
    removed = podman.remove_node_images() if podman.installed() else []
    cache = cache_root(os.environ)
    if cache.exists():
        shutil.rmtree(cache)
    say(f"removed {len(removed)} node images and {cache}; Debian packages stay: {', '.join(debian.HOST_PACKAGES)}")
