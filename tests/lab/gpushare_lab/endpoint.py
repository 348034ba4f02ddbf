# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The one address under which several control planes answer: a container with the balancer, outside of the cluster."""

from __future__ import annotations

import socket
from pathlib import Path

from . import balancer, nodes, podman
from .archive import File, write_layer
from .process import run, say, tail, until
from .spec import API_PORT, ENDPOINT
from .state import Instance

_PROGRAM = "usr/local/lib/gpushare-lab/balancer.py"
_DEADLINE_S = 30.0


def bring_up(instance: Instance, image: str) -> None:
    """Make the container if the instance needs one and has none, start it if it has stopped, and wait until it listens."""
    address = instance.endpoint
    if not address:
        return
    present = podman.containers(instance.name).get(ENDPOINT)
    if present and nodes.record_of(instance, ENDPOINT).container != present["id"]:
        podman.remove_container(present["id"])
        present = None
    if present is None:
        podman.start(_make(instance, address, image))
        say(f"{ENDPOINT}: started, {address}")
    elif present["state"] != "running":
        say(f"{ENDPOINT}: starting it again")
        podman.start(present["id"])
    until(f"the balancer to listen on {address}:{API_PORT}", _DEADLINE_S, lambda: _listens(address), why_not=lambda: _log(instance))


def _make(instance: Instance, address: str, image: str) -> str:
    servers = [node.address for node in instance.nodes if node.is_control_plane]
    command = ["python3", "-I", f"/{_PROGRAM}", str(API_PORT), *servers]
    identity = podman.create_container(instance.name, ENDPOINT, address, image, command)
    layer = instance.folder / f"{ENDPOINT}.tar"
    write_layer(layer, {_PROGRAM: File(Path(balancer.__file__), 0o644)})
    podman.unpack(identity, layer, running=False)
    layer.unlink()
    nodes.note(instance, ENDPOINT, container=identity)
    return identity


def _listens(address: str) -> bool:
    try:
        with socket.create_connection((address, API_PORT), timeout=1):
            return True
    except OSError:
        return False


def _log(instance: Instance) -> str:
    said = run(["podman", "logs", "--tail", "15", podman.container_name(instance.name, ENDPOINT)], check=False)
    return tail(said.stdout + said.stderr)
