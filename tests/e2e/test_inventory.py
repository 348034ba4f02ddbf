# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Inventories as users have them: other names, one new node, and mistakes that must stop before anything is changed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from blocks import lines
from e2e.checks import check_devices, check_follows, check_runs
from e2e.cluster import Cluster, CommandError
from e2e.manifests import pod


def inventory(cluster: Cluster) -> dict[str, Any]:
    """The lab's own. host_vars beside it belong to it, and to every copy."""
    found: dict[str, Any] = yaml.safe_load(cluster.inventory.read_text())["all"]
    for group in found["children"].values():
        for host in group["hosts"]:
            beside = cluster.inventory.parent / "host_vars" / f"{host}.yml"
            if beside.exists():
                group["hosts"][host] = {**(group["hosts"][host] or {}), **yaml.safe_load(beside.read_text())}
    return found


def written(folder: Path, content: dict[str, Any]) -> Path:
    path = folder / "hosts.yml"
    path.write_text(yaml.safe_dump({"all": content}))
    return path


def recap(output: str) -> dict[str, dict[str, int]]:
    """Host to its counts in the last lines of a run."""
    lines = re.findall(r"^(\S+) +: (ok=.*)$", output, re.MULTILINE)
    return {host: {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", counts)} for host, counts in lines}


def changed(output: str) -> list[str]:
    return [host for host, counts in recap(output).items() if counts["changed"]]


def test_hosts_and_groups_have_other_names_than_the_nodes(cluster: Cluster, tmp_path: Path) -> None:
    own = inventory(cluster)
    nodes = {name: own["children"][group]["hosts"] for name, group in (("masters", "kube_control_plane"), ("accelerators", "gpu_nodes"))}
    named = {name: {**(spec or {}), "gpushare_node_name": name} for hosts in nodes.values() for name, spec in hosts.items()}
    children = {group: {"hosts": {f"host-of-{name}": named[name] for name in hosts}} for group, hosts in nodes.items()}
    groups = {"gpushare_control_plane_group": "masters", "gpushare_gpu_group": "accelerators"}
    other = written(tmp_path, {"vars": own["vars"] | groups, "children": children})
    output = cluster.playbook(inventory=other)
    assert sorted(recap(output)) == ["host-of-cp1", "host-of-gpu1", "host-of-gpu2"]
    assert changed(output) == [], output


@pytest.fixture
def three(cluster: Cluster) -> Iterator[Cluster]:
    """A node more, with one GPU, joined to the cluster and not installed yet."""
    cluster.clear()
    cluster.lab("up", "--gpu-nodes", "3", seconds=300)
    try:
        yield cluster
    finally:
        cluster.clear()
        cluster.lab("up", "--gpu-nodes", "2", seconds=300)


def test_a_new_node_joins_by_limit(three: Cluster) -> None:
    output = three.playbook("--limit", "gpu3")
    assert changed(output) == ["gpu3"], output
    assert check_follows(three, "gpu3") == []
    three.create(pod("on-the-new-one", memory=3, node="gpu3"))
    assert check_runs(three, "on-the-new-one") == []
    assert check_devices(three, three.until_running("on-the-new-one")) == []
    output = three.playbook()
    assert changed(output) == [], output


def test_mistakes_stop_the_run_before_anything_is_changed(cluster: Cluster, tmp_path: Path) -> None:
    own = inventory(cluster)
    gpu_nodes = own["children"]["gpu_nodes"]["hosts"]
    # It has no GPU; nobody listens on that port; an impossible value for one host, an unknown name for all.
    gpu_nodes |= {"cp1": None, "gone": {**gpu_nodes["gpu1"], "ansible_port": 1}}
    gpu_nodes["gpu2"]["gpushare_start_timeout"] = 0
    own["vars"]["gpushare_memory_units"] = "GiB"
    with pytest.raises(CommandError) as rejected:
        cluster.playbook(inventory=written(tmp_path, own))
    said = str(rejected.value)
    for words in (
        r"cp1: gpus: found .*nvidia-smi",
        r"gone: unreachable: found no connection",
        r"gpu2: variables: found gpushare_start_timeout: 0",
        r"gpu1: variables: found the variable gpushare_memory_units, .* did you mean gpushare_memory_unit\?",
    ):
        assert re.search(words, lines(said)), (words, said)
    assert changed(said) == []


def test_an_inventory_without_control_plane_stops_at_once(cluster: Cluster) -> None:
    with pytest.raises(CommandError, match="has no host in the group control_planes") as rejected:
        cluster.playbook("-e", "gpushare_control_plane_group=control_planes")
    assert changed(str(rejected.value)) == []
