# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Nodes of a lab without a way out, which count every attempt; and bundles for them."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

from ansible_collections.gpushare.kubernetes.plugins.module_utils._formats import tar
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.received import LIMITS

from e2e.cluster import CONTROL_PLANE, GPU_NODES, Cluster
from installer.releases import play

NODES = (CONTROL_PLANE, *GPU_NODES)
# Nobody takes packets from the other end of that interface. Without a name server, resolvers ask the host itself.
_CUT_OFF = """
set -eu
ip link show nowhere >/dev/null 2>&1 || ip link add nowhere type veth peer name nobody
ip link set nowhere up
ip route replace default dev nowhere
cat /dev/null > /etc/resolv.conf
rm -rf /etc/apt/sources.list /etc/apt/sources.list.d /etc/pip.conf /root/.config/pip /root/.pip
iptables -w -N AWAY 2>/dev/null || iptables -w -F AWAY
iptables -w -A AWAY -j REJECT
for rule in "OUTPUT -o nowhere" "FORWARD -o nowhere" "OUTPUT -o lo -p udp --dport 53" "OUTPUT -o lo -p tcp --dport 53"; do
    iptables -w -C $rule -j AWAY 2>/dev/null || iptables -w -I $rule -j AWAY
done
"""
_ATTEMPTS = """
import contextlib, socket
with contextlib.suppress(OSError):
    socket.create_connection(("192.0.2.1", 443), 2)
with contextlib.suppress(OSError):
    socket.getaddrinfo("index.example.org", 443)
"""
_COUNTED = re.compile(r"^\s*(\d+)\s+\d+ REJECT", re.MULTILINE)


def cut_off(cluster: Cluster) -> None:
    for node in NODES:
        cluster.on(node, "sh", "-c", _CUT_OFF)


def attempt(cluster: Cluster, node: str) -> None:
    """What a program does that wants something of the network: a connection, and a name."""
    cluster.on(node, "python3", "-c", _ATTEMPTS)


def attempts(cluster: Cluster, node: str) -> int:
    """Packets that wanted to leave since the last call of `forget`."""
    (found,) = _COUNTED.findall(cluster.on(node, "iptables", "-w", "-nvxL", "AWAY"))
    return int(found)


def forget(cluster: Cluster) -> None:
    for node in NODES:
        cluster.on(node, "iptables", "-w", "-Z", "AWAY")


def make(release: Path, cluster: Cluster, folder: Path, **settings: Any) -> Path:
    """The bundle of the collection in `release`, as the playbook makes it on this machine, which has a network."""
    chosen = {"gpushare_bundle_pythons": ["3.11"], "gpushare_bundle_architectures": ["x86_64"], **settings}
    done = play(release, cluster, "playbooks/bundle.yml", "-e", json.dumps({"gpushare_bundle_folder": str(folder), **chosen}))
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr
    (found,) = folder.glob("gpushare-bundle-*.tar")
    return found


def damaged(bundle: Path, folder: Path, name: str) -> Path:
    """A copy, in which one byte of the first file whose name begins so is another one."""
    content = bytearray(bundle.read_bytes())
    with bundle.open("rb") as stream:
        content[next(one for one in tar.members(stream, LIMITS).values() if one.name.startswith(name)).offset] ^= 1
    copy = folder / "damaged.tar"
    copy.write_bytes(content)
    return copy


def words(done: subprocess.CompletedProcess[str]) -> str:
    return " ".join((done.stdout + done.stderr).split())
