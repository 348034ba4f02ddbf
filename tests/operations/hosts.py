# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Hosts of a lab that leave their cluster, and join it by `kubeadm join` as people do it; inventories that do not have them yet."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import yaml

from e2e.checks import check_devices, check_runs
from e2e.cluster import REPOSITORY, Cluster, CommandError
from e2e.cluster import run as run_command
from e2e.manifests import pod
from gpushare_lab.podman import container_name
from installer.releases import play

#: The hosts that have not joined when the collection is installed.
LATER_PLANES, LATER_NODE = ("cp2", "cp3"), "gpu2"
COUNTS = re.compile(r"^(\S+)\s+: ok=\d+\s+changed=(\d+)\s+unreachable=(\d+)\s+failed=(\d+)", re.M)
_KUBEADM_SECONDS = 400
#: (changed, failed or unreachable) of a host on which nothing was to be done.
QUIET = (0, 0)


def run(cluster: Cluster, playbook: str, *arguments: str, folder: Path = REPOSITORY) -> str:
    """What a playbook that ends well prints."""
    done = play(folder, cluster, f"playbooks/{playbook}.yml", *arguments)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr
    return done.stdout


def words(done: subprocess.CompletedProcess[str]) -> str:
    return " ".join((done.stdout + done.stderr).split())


def rejected(cluster: Cluster, playbook: str, *arguments: str) -> str:
    done = play(REPOSITORY, cluster, f"playbooks/{playbook}.yml", *arguments)
    assert done.returncode != 0, done.stdout[-6000:]
    assert {changed for changed, _failed in counts(done.stdout).values()} == {0}, done.stdout[-6000:]
    return words(done)


def runs_on(cluster: Cluster, node: str) -> None:
    """A pod with a share of a GPU is placed on the node by the scheduler, and has the right GPU."""
    name = f"on-{node}"
    cluster.create(pod(name, memory=3, node=node))
    assert check_runs(cluster, name) == []
    assert check_devices(cluster, cluster.until_running(name)) == []
    cluster.delete(name)


def unjoin(cluster: Cluster, host: str) -> None:
    """Leave the host as it was before `kubeadm join`, and the cluster without its node."""
    cluster.on(host, "kubeadm", "reset", "--force", seconds=_KUBEADM_SECONDS)
    cluster.kubectl("delete", "node", host, "--ignore-not-found")


def join(cluster: Cluster, host: str, by: str, control_plane: bool = False) -> None:
    """`kubeadm join`, with a token from a control plane that runs."""
    command = cluster.on(by, "kubeadm", "token", "create", "--ttl", "30m", "--print-join-command").split()
    if control_plane:
        uploaded = cluster.on(by, "kubeadm", "init", "phase", "upload-certs", "--upload-certs", seconds=120)
        command += ["--control-plane", "--certificate-key", uploaded.split()[-1], "--apiserver-advertise-address", address(cluster, host)]
    cluster.on(host, *command, "--ignore-preflight-errors=all", seconds=_KUBEADM_SECONDS)
    cluster.until(f"the node {host} is Ready", lambda: ready(cluster, host) == "True", 240)


def address(cluster: Cluster, host: str) -> str:
    """Where Ansible reaches it."""
    for group in _inventory(cluster)["children"].values():
        if host in group["hosts"]:
            return str(group["hosts"][host]["ansible_host"])
    raise AssertionError(f"{host} is not in the lab's inventory")


def ready(cluster: Cluster, node: str) -> str:
    """The condition Ready of a node: True, False or Unknown."""
    return next(str(one["status"]) for one in cluster.node(node)["status"]["conditions"] if one["type"] == "Ready")


def without(cluster: Cluster, folder: Path, *hosts: str) -> Path:
    """The lab's inventory without these hosts."""
    content = _inventory(cluster)
    for group in content["children"].values():
        group["hosts"] = {name: values for name, values in group["hosts"].items() if name not in hosts}
    path = folder / f"without-{'-'.join(hosts)}.yml"
    path.write_text(yaml.safe_dump({"all": content}))
    return path


def kill(cluster: Cluster, host: str) -> None:
    """The host at once, as by a power cut."""
    run_command(["podman", "kill", container_name(cluster.name, host)], seconds=60)


def counts(output: str) -> dict[str, tuple[int, int]]:
    """Host to (changed, failed or unreachable) in the last lines of a run."""
    return {host: (int(changed), int(gone) + int(failed)) for host, changed, gone, failed in COUNTS.findall(output)}


def process(cluster: Cluster, host: str, unit: str) -> tuple[str, str]:
    """(process id, command line) of a daemon."""
    pid = cluster.on(host, "systemctl", "show", "-P", "MainPID", unit).strip()
    return pid, cluster.on(host, "sh", "-c", f"tr '\\0' ' ' < /proc/{pid}/cmdline").strip()


def accounts(cluster: Cluster) -> set[str]:
    """Names of everything of a device plugin's account that the cluster has, as kind/name."""
    kinds = "serviceaccounts,roles,rolebindings,clusterroles,clusterrolebindings"
    items = json.loads(cluster.kubectl("get", kinds, "--all-namespaces", "-o", "json"))["items"]
    return {f"{one['kind']}/{one['metadata']['name']}" for one in items if one["metadata"]["name"].startswith("gpushare-device-plugin-")}


def is_up(cluster: Cluster, host: str, program: str) -> bool:
    """Whether a process of this name runs there."""
    try:
        return bool(cluster.on(host, "pgrep", "-x", program).strip())
    except CommandError:
        return False


def _inventory(cluster: Cluster) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(cluster.inventory.read_text())["all"]
    return found
