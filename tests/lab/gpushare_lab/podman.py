# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""podman: this instance's containers and network, told by their label, and the one image of all nodes."""

from __future__ import annotations

import json
import re
import resource
import shutil
import subprocess
from collections.abc import Sequence
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

from .process import LabError, run, say

LABEL = "gpushare-lab"
_IMAGE = "localhost/gpushare-lab/node"


def container_name(instance: str, node: str) -> str:
    """The name of a node's container."""
    return f"{LABEL}-{instance}-{node}"


def network_name(instance: str) -> str:
    """The name of an instance's network."""
    return f"{LABEL}-{instance}"


def containers(instance: str) -> dict[str, dict[str, str]]:
    """The instance's containers by node name, each with its ``id`` and its ``state`` in podman's words."""
    listed = _list(["ps", "-a", "--filter", f"label={LABEL}={instance}"])
    prefix = container_name(instance, "")
    return {entry["Names"][0].removeprefix(prefix): {"id": entry["Id"], "state": entry["State"]} for entry in listed}


def instances_with_containers() -> set[str]:
    """The names of all instances that have containers."""
    return {entry["Labels"][LABEL] for entry in _list(["ps", "-a", "--filter", f"label={LABEL}"])}


def remove_containers(instance: str) -> int:
    """Remove the instance's containers, also half-made ones; returns how many."""
    ids = [entry["id"] for entry in containers(instance).values()]
    for identity in ids:
        remove_container(identity)
    return len(ids) + remove_half_made(instance)


def remove_half_made(instance: str) -> int:
    """Remove what a killed `podman create` left, which has a name and storage but no label; returns how many."""
    pattern = re.compile(re.escape(container_name(instance, "")) + r"(cp\d+|gpu\d+|lb)")
    whole = {entry["id"] for entry in containers(instance).values()}
    named = [entry["Id"] for entry in _list(["ps", "-a", "--external"]) if pattern.fullmatch(entry["Names"][0])]
    half_made = [identity for identity in named if identity not in whole]
    for identity in half_made:
        remove_container(identity)
    return len(half_made)


def remove_container(identity: str) -> None:
    """Remove one container. A node with a running kubelet would take its time to stop by itself."""
    remove = ["podman", "rm", "-f", "-v", "-t", "1", identity]
    # One that ends by itself while podman is about to kill it is refused ("container state improper: stopped"), and then can be removed.
    if run(remove, check=False).returncode != 0:
        run(remove)


def ensure_network(instance: str, subnet: str) -> None:
    """Make the instance's network, or make it anew if it has another subnet."""
    name = network_name(instance)
    present = _subnets(name)
    if present == [subnet]:
        return
    if present is not None:
        remove_network(instance)
    label = f"{LABEL}={instance}"
    run(["podman", "network", "create", "--disable-dns", "--subnet", subnet, "--label", label, name])


def remove_network(instance: str) -> bool:
    """Remove the instance's network; says whether there was one."""
    name = network_name(instance)
    if run(["podman", "network", "exists", name], check=False).returncode != 0:
        return False
    run(["podman", "network", "rm", "-f", name])
    return True


def subnets_in_use() -> list[IPv4Network]:
    """The subnets of podman's networks and of this machine's routes."""
    names = run(["podman", "network", "ls", "--format", "{{.Name}}"]).stdout.split()
    found = [subnet for name in names for subnet in _subnets(name) or []]
    routes = json.loads(run(["ip", "-json", "-4", "route"]).stdout or "[]")
    found += [route["dst"] for route in routes if route["dst"] != "default"]
    return [IPv4Network(text) for text in found if ":" not in text]


def node_image(rootfs: Path) -> str:
    """The reference of the node image, imported from the root file system if podman lacks it."""
    reference = f"{_IMAGE}:{rootfs.parent.name}"
    if run(["podman", "image", "exists", reference], check=False).returncode == 0:
        return reference
    say("node image: importing it into podman")
    # The tag is set by a second command: podman 4.3 may leave a tagged image behind without its layer when killed.
    with subprocess.Popen(["tar", "-C", str(rootfs), "-c", "."], stdout=subprocess.PIPE) as tar:
        done = run(["podman", "import", "-q", "--change", f"LABEL {LABEL}-cache=1", "-"], stdin=tar.stdout)
        if tar.wait() != 0:
            raise LabError(f"tar of {rootfs} ended with exit code {tar.returncode}: call `lab cache-clean` and try again")
    run(["podman", "tag", done.stdout.strip(), reference])
    say("node image: imported")
    return reference


def remove_node_images() -> list[str]:
    """Remove the images that belong to the cache; returns their ids."""
    found = [entry["Id"] for entry in _list(["images", "--filter", f"label={LABEL}-cache=1"])]
    for identity in dict.fromkeys(found):
        run(["podman", "rmi", "-f", identity])
    return found


def create_node(instance: str, name: str, address: str, image: str, containerd: Path, volumes: Sequence[tuple[Path, str]]) -> str:
    """Make a node's container without starting it; returns its id. containerd's folder must not be on overlayfs."""
    options = ["--systemd=false", "--privileged", "--cgroupns=private", "--stop-signal=SIGRTMIN+3", "--pids-limit=-1"]
    options += ["--tmpfs", "/run:mode=755", "--tmpfs", "/run/lock", "--tmpfs", "/tmp", "-e", "container=podman"]
    for source, target in [(containerd, "/var/lib/containerd"), *volumes]:
        options += ["-v", f"{source}:{target}"]
    return create_container(instance, name, address, image, ["/sbin/init"], options)


def create_container(instance: str, name: str, address: str, image: str, command: Sequence[str], options: Sequence[str] = ()) -> str:
    """Make a container of the instance without starting it; returns its id."""
    # podman's own defaults fail on a machine whose limits cannot be raised; podman lowers its own nproc to 32768.
    limits = {
        "nofile": _bounded(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 1048576),
        "nproc": _bounded(resource.getrlimit(resource.RLIMIT_NPROC)[1], 32768),
    }
    argv = ["podman", "--runtime", "runc", "create", "--name", container_name(instance, name), "--hostname", name]
    argv += ["--ip", address, "--label", f"{LABEL}={instance}", "--network", network_name(instance)]
    for key, limit in limits.items():
        argv += ["--ulimit", f"{key}={limit}:{limit}"]
    return run([*argv, *options, image, *command]).stdout.strip()


def start(identity: str) -> None:
    """Start a container that does not run."""
    run(["podman", "start", identity])


def unpack(identity: str, archive: Path, *, running: bool) -> None:
    """Unpack a tar archive into a container; folders that are there keep their owner and mode."""
    keep = ["--no-overwrite-dir", "--keep-directory-symlink", "--numeric-owner"]
    if running:
        with archive.open("rb") as content:
            run(["podman", "exec", "-i", identity, "tar", "-x", "-C", "/", *keep], stdin=content)
        return
    root = run(["podman", "mount", identity]).stdout.strip()
    try:
        run(["tar", "-x", "-C", root, *keep, "-f", archive])
    finally:
        run(["podman", "umount", identity])


def _bounded(limit: int, most: int) -> int:
    return most if limit == resource.RLIM_INFINITY else min(limit, most)


def _list(arguments: Sequence[str]) -> list[dict[str, Any]]:
    return json.loads(run(["podman", *arguments, "--format", "json"]).stdout or "[]") or []


def _subnets(network: str) -> list[str] | None:
    """The subnets of a network; None if there is no such network, or no longer."""
    inspected = run(["podman", "network", "inspect", network], check=False)
    if inspected.returncode != 0:
        return None
    return [entry["subnet"] for entry in json.loads(inspected.stdout)[0].get("subnets") or []]


def installed() -> bool:
    """Whether this machine has podman; without it there is nothing of the lab in it."""
    return shutil.which("podman") is not None
