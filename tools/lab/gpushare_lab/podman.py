# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""podman: this instance's containers and network, told by their label."""

from __future__ import annotations

import json
import re
import resource
import shutil
from collections.abc import Sequence
from ipaddress import IPv4Network
from pathlib import Path
from typing import Any

from .process import run

LABEL = "gpushare-lab"
# A command in a node has what podman would give it, and nothing of this machine's.
_ENVIRONMENT = ("HOME=/root", "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "container=podman")
KEEP = ("--no-overwrite-dir", "--keep-directory-symlink", "--numeric-owner")


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
    # One that ends by itself while podman is about to kill it is rejected ("container state improper: stopped"), and then can be removed.
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


def remove_node_images() -> list[str]:
    """Remove the images that former versions of the lab made for the cache; returns their ids."""
    found = [entry["Id"] for entry in _list(["images", "--filter", f"label={LABEL}-cache=1"])]
    for identity in dict.fromkeys(found):
        run(["podman", "rmi", "-f", identity])
    return found


def create_node(
    instance: str, name: str, address: str, root: Path, containerd: Path, pid_file: Path, volumes: Sequence[tuple[Path, str]]
) -> str:
    """Make a node's container without starting it; returns its id. containerd's folder must not be on overlayfs."""
    options = ["--systemd=false", "--privileged", "--cgroupns=private", "--stop-signal=SIGRTMIN+3", "--pids-limit=-1"]
    options += ["--pidfile", str(pid_file)]
    options += ["--tmpfs", "/run:mode=755", "--tmpfs", "/run/lock", "--tmpfs", "/tmp", "-e", "container=podman"]
    for source, target in [(containerd, "/var/lib/containerd"), *volumes]:
        options += ["-v", f"{source}:{target}"]
    return create_container(instance, name, address, root, ["/sbin/init"], options)


def create_container(instance: str, name: str, address: str, root: Path, command: Sequence[str], options: Sequence[str] = ()) -> str:
    """Make a container of the instance without starting it; returns its id. It runs in the file system that is mounted at ``root``."""
    # podman's own defaults fail on a machine whose limits cannot be raised; podman lowers its own nproc to 32768.
    limits = {
        "nofile": _bounded(resource.getrlimit(resource.RLIMIT_NOFILE)[1], 1048576),
        "nproc": _bounded(resource.getrlimit(resource.RLIMIT_NPROC)[1], 32768),
    }
    argv = ["podman", "--runtime", "runc", "create", "--name", container_name(instance, name), "--hostname", name]
    argv += ["--ip", address, "--label", f"{LABEL}={instance}", "--network", network_name(instance)]
    for key, limit in limits.items():
        argv += ["--ulimit", f"{key}={limit}:{limit}"]
    return run([*argv, *options, "--rootfs", root, *command]).stdout.strip()


def start(container: str) -> None:
    """Start a container that does not run."""
    run(["podman", "start", container])


def kill(container: str) -> None:
    """End a container at once, as a power cut does; returns when nothing of it runs any more."""
    run(["podman", "kill", container])
    run(["podman", "wait", container])


def entering(identity: str, pid_file: Path) -> list[str]:
    """What stands before a command to run it in a container; [] if the container does not run.

    nsenter takes 5 ms where `podman exec` takes 300, and suites run thousands of commands.
    """
    try:
        pid = int(pid_file.read_text())
        # The number may be another process's by now.
        ours = identity in Path(f"/proc/{pid}/cgroup").read_text()
    except (OSError, ValueError):
        return []
    return ["nsenter", f"--target={pid}", "--all", "env", "-i", *_ENVIRONMENT] if ours else []


def unpack_below(root: Path, archive: Path) -> None:
    """Unpack a tar archive into the file system of a container that does not run; folders that are there keep their owner and mode."""
    run(["tar", "-x", "-C", root, *KEEP, "-f", archive])


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
