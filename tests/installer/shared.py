# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What must hold on GPU nodes with two GPUs of 16 GiB, whatever kubelet and container runtime they have."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from e2e.checks import check_devices, check_environment, check_no_gpu
from e2e.cluster import REPOSITORY, Cluster, allocation
from e2e.manifests import pod
from installer.site import Site
from installer.snapshot import settled
from results import Results
from timeline import span

CONTAINER_RUNTIME = "gpushare.kubernetes.container_runtime"


def container_runtime(cluster: Cluster, node: str, *options: str, check: bool = False) -> dict[str, Any]:
    """What the module answers on that node, by default to state=present; `failed` is added."""
    environment = {**os.environ, "ANSIBLE_CONFIG": str(REPOSITORY / "ansible.cfg"), "ANSIBLE_FORCE_COLOR": "0"}
    program = str(Path(sys.executable).with_name("ansible"))
    command = [program, "-i", str(cluster.inventory), node, "-b", "-o", "-m", CONTAINER_RUNTIME, "-a", " ".join(options)]
    with span("playbook", f"{CONTAINER_RUNTIME} on {node}"):
        done = subprocess.run(
            command + ["--check"] * check, cwd=REPOSITORY, env=environment, capture_output=True, text=True, timeout=300, check=False
        )
    assert " => {" in done.stdout, done.stdout + done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.partition(" => ")[2])
    return {**answer, "failed": "FAILED!" in done.stdout}


def share_two_gpus(cluster: Cluster, nodes: Sequence[str]) -> None:
    """Three pods of 6 GiB on each node: two of them on one GPU, each with that GPU alone in /dev and in the variables of PID 1."""
    names = [f"{node}-{number}" for node in nodes for number in (1, 2, 3)]
    for name in names:
        cluster.create(pod(name, memory=6, node=name.partition("-")[0]))
    pods = {one["metadata"]["name"]: one for one in cluster.until_running(*names, seconds=120)}
    for node in nodes:
        gpus = [tuple(allocation(pods[f"{node}-{number}"])) for number in (1, 2, 3)]
        assert len(set(gpus)) == 2, f"{node}: three pods of 6 GiB on two GPUs of 16 are on {gpus}"
    assert check_devices(cluster, pods.values()) == []
    assert check_environment(cluster, pods.values()) == []
    cluster.clear()


def see_their_own_gpus_only(cluster: Cluster, node: str) -> None:
    """Neither a pod that names another GPU than its own, nor one that asks for none."""
    first, second = cluster.gpus(node)
    asking = {
        "one": pod("one", memory=1, node=node),
        "beside": pod("beside", memory=16, node=node),
        "names-another": pod("names-another", memory=1, node=node, environment={"NVIDIA_VISIBLE_DEVICES": second.uuid}),
    }
    idle = {"nothing": pod("nothing", node=node), "all": pod("all", node=node, environment={"NVIDIA_VISIBLE_DEVICES": "all"})}
    for manifest in (asking | idle).values():
        cluster.create(manifest)
    pods = {one["metadata"]["name"]: one for one in cluster.until_running(*asking, *idle, seconds=120)}
    assert [allocation(pods[name]) for name in asking] == [{first.index: 1}, {second.index: 16}, {first.index: 1}]
    assert check_devices(cluster, [pods[name] for name in asking]) == []
    assert check_no_gpu(cluster, [pods[name] for name in idle]) == []
    cluster.clear()


def run_again_in_silence(cluster: Cluster, site: Site, *arguments: str) -> Results:
    """The next run of site.yml, which reports no change, writes no byte and restarts nothing."""
    converged = settled(cluster)
    again, output = site.play("site.yml", *arguments)
    assert again.changes() == {}, output
    assert converged.differences(settled(cluster)) == [], "a second run has written or restarted something"
    return again
