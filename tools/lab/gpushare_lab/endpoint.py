# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The one address under which several control planes answer: a container with the balancer, outside of the cluster."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

from . import balancer, nodes, podman
from .archive import File, write_layer
from .process import run, say, tail, until
from .spec import API_PORT, ENDPOINT
from .state import Instance

_PROGRAM = "usr/local/lib/gpushare-lab/balancer.py"
_DEADLINE_S = 30.0


def bring_up(instance: Instance, layers: Sequence[Path]) -> None:
    """Make the container if the instance needs one and has none, start it if it has stopped, and wait until it listens."""
    address = instance.endpoint
    if not address:
        return
    present = podman.containers(instance.name).get(ENDPOINT)
    made = nodes.record_of(instance, ENDPOINT).container if nodes.file_system(instance, ENDPOINT).layers else ""
    if present and made != present["id"]:
        podman.remove_container(present["id"])
        present = None
    if present is None:
        podman.start(_make(instance, layers))
        say(f"{ENDPOINT}: started, {address}")
    elif present["state"] != "running":
        say(f"{ENDPOINT}: starting it again")
        nodes.start(instance, ENDPOINT)
    wait_listening(instance)


def wait_listening(instance: Instance) -> None:
    """Wait until the balancer, if there is one, takes connections."""
    if not (address := instance.endpoint):
        return
    until(f"the balancer to listen on {address}:{API_PORT}", _DEADLINE_S, lambda: _listens(address), why_not=lambda: _log(instance))


def _make(instance: Instance, layers: Sequence[Path]) -> str:
    nodes.discard(instance, ENDPOINT)
    files = nodes.file_system(instance, ENDPOINT)
    files.describe(layers, nodes.made_by())
    files.mount()
    layer = instance.folder / f"{ENDPOINT}.tar"
    write_layer(layer, {_PROGRAM: File(Path(balancer.__file__), 0o644)})
    podman.unpack_below(files.root, layer)
    layer.unlink()
    identity = create(instance)
    nodes.note(instance, ENDPOINT, container=identity)
    return identity


def create(instance: Instance) -> str:
    """Make the container, without starting it, on the file system that it has; returns its id."""
    servers = [node.address for node in instance.nodes if node.is_control_plane]
    command = ["python3", "-I", f"/{_PROGRAM}", str(API_PORT), *servers]
    root = nodes.file_system(instance, ENDPOINT).root
    return podman.create_container(instance.name, ENDPOINT, instance.endpoint, root, command)


def _listens(address: str) -> bool:
    try:
        with socket.create_connection((address, API_PORT), timeout=1):
            return True
    except OSError:
        return False


def _log(instance: Instance) -> str:
    said = run(["podman", "logs", "--tail", "15", podman.container_name(instance.name, ENDPOINT)], check=False)
    return tail(said.stdout + said.stderr)
