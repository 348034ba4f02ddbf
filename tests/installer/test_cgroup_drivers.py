# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The arguments that real containerds give runc, with the options of its runtime as kubespray's releases spell them.

kubespray 2.16 to 2.23 writes `systemdCgroup`, 2.24 to 2.27 `binaryName` as well, and from 2.28 on both with a capital (defaults of its role
container-engine/containerd, by branch, looked up on 2026-11-28). The program of either runtime is one that notes how it was called: a pod
need not start here, because kubelet has the other cgroup driver.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import tomllib  # type: ignore[import-not-found,unused-ignore]

from e2e.cluster import Cluster
from installer.shared import container_runtime
from labs import FOUR_RUNTIMES, VISIBILITY, Labs

CONFIG, CALLS = "/etc/containerd/config.toml", "/run/calls-of-runtimes"
RUNC, NVIDIA = "/usr/local/bin/runc", "/usr/local/bin/noted-nvidia-container-runtime"
LOWER, BINARY = "systemdCgroup = true", f'binaryName = "{RUNC}"'
#: The options of runc, those of an entry nvidia that is there already ([] for none), and then the right ones of nvidia.
SPELLINGS: dict[str, tuple[list[str], list[str], dict[str, Any]]] = {
    "kubespray 2.16": ([LOWER], [], {"systemdCgroup": True, "BinaryName": NVIDIA}),
    "kubespray 2.24": ([LOWER, BINARY], [], {"systemdCgroup": True, "binaryName": NVIDIA}),
    "kubespray 2.28": (["SystemdCgroup = true", f'BinaryName = "{RUNC}"'], [], {"SystemdCgroup": True, "BinaryName": NVIDIA}),
    # What a release of ours made of kubespray 2.24.
    "two spellings that disagree": (
        [LOWER, BINARY],
        [LOWER, BINARY, "SystemdCgroup = false", f'BinaryName = "{NVIDIA}"'],
        {"systemdCgroup": True, "SystemdCgroup": True, "binaryName": NVIDIA, "BinaryName": NVIDIA},
    ),
}


@pytest.fixture(scope="module")
def cluster(labs: Labs) -> Cluster:
    return labs.bare(VISIBILITY)


@pytest.fixture(params=[node for node, runtime in FOUR_RUNTIMES.items() if runtime != "docker"], ids=lambda node: FOUR_RUNTIMES[node])
def node(request: pytest.FixtureRequest, cluster: Cluster) -> Iterator[str]:
    """A node whose runtimes note their calls; its configuration comes back."""
    name: str = request.param
    before = cluster.on(name, "cat", CONFIG)
    for program, real in ((RUNC, "/usr/sbin/runc"), (NVIDIA, "/usr/bin/nvidia-container-runtime")):
        write(cluster, name, program, f'#!/bin/sh\necho "{program} $*" >> {CALLS}\nexec {real} "$@"\n')
        sh(cluster, name, f"chmod 755 {program}; test -x {real}")
    yield name
    write(cluster, name, CONFIG, before)
    sh(cluster, name, f"rm -rf {RUNC} {NVIDIA} {CALLS} /etc/containerd/conf.d /var/lib/gpushare; systemctl restart containerd")


def sh(cluster: Cluster, node: str, script: str) -> str:
    return cluster.on(node, "sh", "-ec", script, seconds=120)


def write(cluster: Cluster, node: str, path: str, text: str) -> None:
    cluster.lab("exec", node, "sh", "-c", f"cat > {path}", stdin=text)


def with_runtimes(text: str, runc: list[str], nvidia: list[str]) -> str:
    """The node's own configuration, with the runtimes as kubespray writes them."""
    name = "io.containerd.grpc.v1.cri" if tomllib.loads(text)["version"] == 2 else "io.containerd.cri.v1.runtime"
    section = f'plugins."{name}".containerd'
    lines = [f"[{section}]", f'default_runtime_name = "{"nvidia" if nvidia else "runc"}"']
    for runtime, options in (("runc", runc), ("nvidia", nvidia)):
        if options:
            lines += [f"[{section}.runtimes.{runtime}]", 'runtime_type = "io.containerd.runc.v2"', 'base_runtime_spec = ""']
            lines += [f"[{section}.runtimes.{runtime}.options]", *options]
    # The lab's own runtimes are of no use here.
    tables = re.split(r"(?m)^(?=[ \t]*\[)", text)
    return "".join(table for table in tables if not table.lstrip().startswith(f"[{section}")) + "\n".join(lines) + "\n"


def started_with(cluster: Cluster, node: str, program: str) -> bool:
    """Whether a new pod of the node is made by this program, and by the systemd cgroup driver."""
    sh(cluster, node, f": > {CALLS}")
    name = f"noted-{node}"
    container = {"name": "main", "image": "ubuntu:24.04", "imagePullPolicy": "IfNotPresent", "command": ["sleep", "86400"]}
    spec = {"nodeName": node, "terminationGracePeriodSeconds": 0, "containers": [container]}
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": spec}

    def call() -> str | None:
        lines = [line for line in sh(cluster, node, f"cat {CALLS}").splitlines() if line.startswith(program) and " create " in f"{line} "]
        return lines[0] if lines else None

    cluster.create(pod)
    try:
        found: str = cluster.until(f"{program} on {node} makes a container", call, 120, name)
    finally:
        cluster.delete(name)
    return "--systemd-cgroup" in found.split()


def options_of_nvidia(cluster: Cluster, node: str) -> dict[str, Any]:
    """Over all files, as they are written."""
    found: dict[str, Any] = {}
    # In containerd's order: what is imported wins.
    for path in [CONFIG, *sh(cluster, node, "ls /etc/containerd/conf.d/*.toml 2>/dev/null || true").split()]:
        for plugin in tomllib.loads(cluster.on(node, "cat", path)).get("plugins", {}).values():
            found |= plugin.get("containerd", {}).get("runtimes", {}).get("nvidia", {}).get("options", {})
    return found


@pytest.mark.timeout(900)
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_pods_keep_the_cgroup_driver_whatever_the_spelling(cluster: Cluster, node: str, spelling: str) -> None:
    runc, nvidia, right = SPELLINGS[spelling]
    original = with_runtimes(cluster.on(node, "cat", CONFIG), runc, nvidia)
    write(cluster, node, CONFIG, original)
    sh(cluster, node, "systemctl restart containerd")
    if not nvidia:
        assert started_with(cluster, node, RUNC), "this containerd does not take the option: the test proves nothing"

    answer = container_runtime(cluster, node, f"program={NVIDIA}", "default_runtime=nvidia")
    assert (answer["failed"], answer["changed"]) == (False, True), json.dumps(answer)
    assert options_of_nvidia(cluster, node) == right
    assert started_with(cluster, node, NVIDIA)
    assert container_runtime(cluster, node, f"program={NVIDIA}", "default_runtime=nvidia")["changed"] is False

    assert container_runtime(cluster, node, "state=absent")["failed"] is False
    assert cluster.on(node, "cat", CONFIG) == original
