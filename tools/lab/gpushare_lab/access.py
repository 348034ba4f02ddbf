# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Keys of an instance, and the files by which ssh, Ansible and kubectl reach it."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path

from .process import run
from .spec import Node
from .state import Instance


def user_key(instance: Instance) -> Path:
    """The private key that opens every node; its public half stands beside it."""
    return _key(instance.folder / "ssh/id_ed25519", f"gpushare-lab-{instance.name}")


def host_key(instance: Instance, node: str) -> Path:
    """A node's private host key; its public half stands beside it."""
    return _key(instance.folder / f"ssh/{node}_host_key", node)


def _key(path: Path, comment: str) -> Path:
    public = path.with_name(f"{path.name}.pub")
    if not (path.exists() and public.exists()):
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", path])
    return path


def known_hosts_file(instance: Instance) -> Path:
    """Where the nodes' host keys are listed."""
    return instance.folder / "ssh/known_hosts"


def inventory_file(instance: Instance) -> Path:
    """Where the Ansible inventory is."""
    return instance.folder / "inventory.yml"


def kubeconfig_file(instance: Instance) -> Path:
    """Where the administrator's kubeconfig is."""
    return instance.folder / "kubeconfig"


def write_files(instance: Instance) -> None:
    """Write the list of host keys and the inventory; the kubeconfig comes from the control plane."""
    lines = []
    for node in instance.nodes:
        kind, key, *_ = host_key(instance, node.name).with_name(f"{node.name}_host_key.pub").read_text().split()
        lines.append(f"{node.address} {kind} {key}\n")
    known_hosts_file(instance).write_text("".join(lines))
    text = inventory_text(instance.nodes, user_key(instance), known_hosts_file(instance))
    inventory_file(instance).write_text(text)


def inventory_text(nodes: Sequence[Node], key: Path, known_hosts: Path) -> str:
    """The inventory as YAML: groups ``kube_control_plane`` and ``gpu_nodes``, reached as root over ssh."""
    groups = {
        "kube_control_plane": [node for node in nodes if node.is_control_plane],
        "gpu_nodes": [node for node in nodes if node.has_gpus],
    }
    options = [f'UserKnownHostsFile="{known_hosts}"', "GlobalKnownHostsFile=/dev/null", "StrictHostKeyChecking=yes", "IdentitiesOnly=yes"]
    variables = {
        "ansible_user": "root",
        "ansible_python_interpreter": "/usr/bin/python3",
        "ansible_ssh_private_key_file": str(key),
        "ansible_ssh_common_args": " ".join(f"-o {shlex.quote(option)}" for option in options),
        # All at once: nobody's work is on these nodes, and batches wait for one another.
        "gpushare_serial": "100%",
    }
    lines = ["---", "all:", "  vars:"]
    lines += [f"    {name}: {json.dumps(value)}" for name, value in variables.items()]
    lines.append("  children:")
    for group, members in groups.items():
        lines += [f"    {group}:", "      hosts:"]
        lines += [f"        {node.name}: {{ansible_host: {node.address}}}" for node in members]
    return "\n".join(lines) + "\n"
