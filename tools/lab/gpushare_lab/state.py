# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What is remembered of an instance between commands: one JSON file and the keys beside it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from ipaddress import IPv4Network
from pathlib import Path

from .overlay import unmount_below
from .places import state_root
from .process import LabError
from .spec import Node, check_name, endpoint, plan_nodes

_VERSION = 1
# Beside the instance's own file, which checkouts of before read as well.
_RUNTIMES = "runtimes.json"


@dataclass(frozen=True)
class Instance:
    """An instance as it is meant to be. ``gpus`` maps each GPU node to its GPUs' specification.

    ``runtimes`` maps the GPU nodes that have not the usual container runtime to theirs.
    """

    name: str
    subnet: str
    kubernetes: str
    nvidia_runtime: bool
    gpus: Mapping[str, str]
    control_planes: int = 1
    runtimes: Mapping[str, str] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """Where everything of this instance is kept, mode 0700."""
        return folder_of(self.name)

    @property
    def nodes(self) -> list[Node]:
        """The control planes first, then the GPU nodes."""
        return plan_nodes(self.gpus, IPv4Network(self.subnet), self.control_planes, self.runtimes)

    @property
    def endpoint(self) -> str:
        """The address before several control planes; "" where there is one."""
        return endpoint(IPv4Network(self.subnet), self.control_planes)

    def node(self, name: str) -> Node:
        """The node of that name."""
        for node in self.nodes:
            if node.name == name:
                return node
        names = ", ".join(node.name for node in self.nodes)
        raise LabError(f'lab {self.name} has no node "{name}"; it has {names}')

    def with_gpus(self, node: str, gpus: str) -> Instance:
        """The instance with other GPUs on a node."""
        return replace(self, gpus={**self.gpus, node: gpus})


def folder_of(name: str) -> Path:
    """The state folder of an instance, which may not exist."""
    return state_root(os.environ) / check_name(name)


def save(instance: Instance) -> None:
    """Write the instance down, in one step."""
    instance.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    content = {"version": _VERSION, **asdict(instance)}
    # The instances of all checkouts lie side by side, and one of before has never heard of these.
    if instance.control_planes == 1:
        del content["control_planes"]
    _write(instance.folder / _RUNTIMES, content.pop("runtimes"))
    _write(instance.folder / "lab.json", content)


def _write(path: Path, content: Mapping[str, object]) -> None:
    partial = path.with_name(f"{path.name}.partial")
    partial.write_text(json.dumps(content, indent=2) + "\n")
    partial.rename(path)


def load(name: str) -> Instance | None:
    """The instance as it was written down, or None if there is none of that name."""
    path = folder_of(name) / "lab.json"
    if not path.exists():
        return None
    found = json.loads(path.read_text())
    if (version := found.pop("version", None)) != _VERSION:
        raise LabError(f"{path} has version {version}, expected {_VERSION}: call `lab --name {name} down`, then up")
    runtimes = path.with_name(_RUNTIMES)
    return Instance(**found, runtimes=json.loads(runtimes.read_text()) if runtimes.exists() else {})


def existing(name: str) -> Instance:
    """The instance of that name, which must exist."""
    if instance := load(name):
        return instance
    raise LabError(f"there is no lab named {name}: call `lab --name {name} up`")


def remove(name: str) -> None:
    """Remove the instance's folder."""
    if (folder := folder_of(name)).exists():
        unmount_below(folder)
        shutil.rmtree(folder)


def remove_root_if_empty() -> None:
    """Remove the folder of all instances when nothing is in it any more."""
    root = state_root(os.environ)
    if root.is_dir() and not any(root.iterdir()):
        root.rmdir()


def names() -> list[str]:
    """The names of all instances, running or not."""
    return sorted(path.parent.name for path in state_root(os.environ).glob("*/lab.json"))


def subnets_in_use() -> list[IPv4Network]:
    """The subnets of all instances, running or not."""
    return [IPv4Network(existing(name).subnet) for name in names()]
