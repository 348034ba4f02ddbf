# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Hosts of a lab as people have them, and the files by which their Ansible connects.

The user `ops` has a key, and a password that sudo asks for. sudo is set up as on Enterprise Linux 9, and hardened: programs in
/usr/local/bin are not on its search path, where the control plane's only kubectl is, and files are made for root alone. sshd of `gpu2`
takes `ops` from the control plane only, which is the bastion.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from e2e.cluster import CONTROL_PLANE, GPU_NODES, REPOSITORY, Cluster
from gpushare_lab import access
from gpushare_lab import state as lab_state
from labs import TWO

OPS, GUEST = "ops", "guest"
BASTION, BEHIND = CONTROL_PLANE, GPU_NODES[1]
SUDOERS = f"""\
Defaults !visiblepw
Defaults always_set_home
Defaults match_group_by_gid
Defaults always_query_group_plugin
Defaults env_reset
Defaults env_keep = "COLORS DISPLAY HOSTNAME HISTSIZE KDEDIR LS_COLORS MAIL PS1 PS2 QTDIR USERNAME LANG LC_ADDRESS LC_CTYPE LC_ALL"
Defaults secure_path = /sbin:/bin:/usr/sbin:/usr/bin
Defaults umask = 0077, umask_override
root ALL=(ALL) ALL
{OPS} ALL=(ALL) ALL
"""
# $1: a user; its password, and sudo's configuration, are read from standard input.
ADD_USER = """
set -e
id -u "$1" > /dev/null 2>&1 || useradd --create-home --shell /bin/bash "$1"
chmod 700 "/home/$1"
install -d -m 700 -o "$1" -g "$1" "/home/$1/.ssh"
install -m 600 -o "$1" -g "$1" /root/.ssh/authorized_keys "/home/$1/.ssh/authorized_keys"
chpasswd
"""
SET_SUDO = "umask 227 && cat > /etc/sudoers.new && visudo -cqf /etc/sudoers.new && mv /etc/sudoers.new /etc/sudoers"
# A link to a program of the lab is relative.
MOVE_KUBECTL = """
set -e
[ -e /usr/bin/kubectl ] || exit 0
[ ! -L /usr/bin/kubectl ] || ln -sf "$(realpath /usr/bin/kubectl)" /usr/bin/kubectl
mv /usr/bin/kubectl /usr/local/bin/kubectl
"""
ONLY_BY_BASTION = f"""
set -e
echo "AllowUsers root {OPS}@$1" > /etc/ssh/sshd_config.d/only-by-bastion.conf
systemctl reload ssh
"""


def password(node: str) -> str:
    """The password of every user there. A delegated task needs that of the other host."""
    return f"it's $ecret #1 of {node}"


def prepare(cluster: Cluster) -> None:
    """Make the hosts so; they keep it until the lab is removed."""
    for node in (CONTROL_PLANE, *GPU_NODES):
        for user in (OPS, GUEST):
            cluster.lab("exec", node, "sh", "-c", ADD_USER, "sh", user, stdin=f"{user}:{password(node)}\n")
        cluster.lab("exec", node, "sh", "-c", SET_SUDO, stdin=SUDOERS)
    cluster.on(CONTROL_PLANE, "sh", "-c", MOVE_KUBECTL)
    cluster.on(BEHIND, "sh", "-c", ONLY_BY_BASTION, "sh", addresses(cluster)[BASTION])


def addresses(cluster: Cluster) -> dict[str, str]:
    return {node.name: node.address for node in lab_state.existing(cluster.name).nodes}


def ssh_config(cluster: Cluster, folder: Path) -> Path:
    """What people have in ~/.ssh/config; the ssh that goes to the bastion reads it, too."""
    instance = lab_state.existing(cluster.name)
    path = folder / "ssh_config"
    path.write_text(
        f"IdentityFile {access.user_key(instance)}\n"
        "IdentitiesOnly yes\n"
        f"UserKnownHostsFile {access.known_hosts_file(instance)}\n"
        "GlobalKnownHostsFile /dev/null\n"
        "StrictHostKeyChecking yes\n"
    )
    return path


def inventory(cluster: Cluster, config: Path) -> dict[str, Any]:
    """The hosts as their users' inventory has them. Their variables are the lab's, whose own inventory is used afterwards."""
    jump = f"-F {config} -J {OPS}@{addresses(cluster)[BASTION]}"
    hosts = {
        name: {"ansible_host": address, "ansible_become_password": password(name)}
        | ({"ansible_ssh_common_args": jump} if name == BEHIND else {})
        | dict(TWO.variables.get(name, {}))
        for name, address in addresses(cluster).items()
    }
    groups = {
        "kube_control_plane": {"hosts": {CONTROL_PLANE: hosts[CONTROL_PLANE]}},
        "gpu_nodes": {"hosts": {node: hosts[node] for node in GPU_NODES}},
    }
    return {"all": {"vars": {"ansible_user": OPS, "ansible_ssh_common_args": f"-F {config}"}, "children": groups}}


def written(folder: Path, content: dict[str, Any]) -> Path:
    path = folder / "hosts.json"
    path.write_text(json.dumps(content))
    return path


def settings(folder: Path, *, pipelining: bool) -> dict[str, str]:
    """Ansible's own settings as a user has who knows of none but the collection's place."""
    path = folder / "ansible.cfg"
    path.write_text(
        f"[defaults]\ncollections_path = {REPOSITORY / '.collections'}\nforks = 5\n[ssh_connection]\npipelining = {pipelining}\n"
    )
    return {"ANSIBLE_CONFIG": str(path)}
