# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""docs/reference/kubectl.md shows what is printed."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from docs.pages import blocks
from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.core.quantity import GIB
from gpushare_runtime.core.use_report import GpuUse, PodUse, UseReport
from gpushare_runtime.kubectl_program.main import main
from unit.fakes.runtime.kubectl_gpushare.objects import allocation, held, node, pending, pod
from unit.fakes.runtime.pods import gpu

PAGE = "docs/reference/kubectl.md"


def gpus(*sizes: int, bad: int = -1) -> Inventory:
    return Inventory(GIB, tuple(gpu(i, size, health="XID 79: see dmesg" if i == bad else "ok") for i, size in enumerate(sizes)))


def save(path: Path, *items: dict[str, Any]) -> str:
    kinds = [{**one, "kind": "Pod" if "spec" in one else "Node"} for one in items]
    path.write_text(json.dumps({"kind": "List", "items": kinds}))
    return str(path)


def shown(command: str) -> str:
    """The output below a command on the page."""
    bodies = [block.body for block in blocks(PAGE) if block.body.startswith(f"$ {command}\n")]
    assert len(bodies) == 1, command
    return bodies[0].partition("\n")[2]


def test_the_nodes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gone = {"pod": "default/gone", "uid": "u1", "units": 3, "why": "orphaned"}
    nodes = [held(node("gpu1", "10.0.0.1", gpus=gpus(16, 16, 16, 16, bad=3)), gpu2=[gone]), node("gpu2", "10.0.0.2", 16, 24)]
    whole = pod("whole", "gpu1", annotations=allocation({"0": {"1": 16}}), count=1)
    file = save(tmp_path / "cluster.json", *nodes, pod("a", "gpu1", gpu=0, mem=6), whole, pending("waits", mem=32))
    assert main(["--from-file", file]) == 0
    assert capsys.readouterr().out == shown("kubectl gpushare")


def test_why_a_pod_waits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = [node("gpu1", "10.0.0.1", gpus=gpus(16, 16, 16, bad=2)), node("gpu2", "10.0.0.2", 8)]
    pods = [pod("large", "gpu1", gpu=0, mem=10), pod("small", "gpu1", gpu=0, mem=2), pod("other", "gpu1", gpu=1, mem=9)]
    file = save(tmp_path / "cluster.json", *nodes, *pods, pending("big", "0/2 nodes are available: …", mem=12))
    assert main(["explain", "big", "--from-file", file]) == 3
    assert capsys.readouterr().out == shown("kubectl gpushare explain big")


def test_where_pods_would_go(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nodes = [node("gpu1", "10.0.0.1", 16, 16, 16), node("gpu2", "10.0.0.2", 16, 24)]
    file = save(tmp_path / "cluster.json", *nodes, pod("a", "gpu1", gpu=0, mem=6), pod("b", "gpu2", gpu=0, mem=12))

    def spec(units: int) -> dict[str, Any]:
        return {"containers": [{"name": "main", "resources": {"limits": {"aliyun.com/gpu-mem": units}}}]}

    web = {"kind": "Deployment", "metadata": {"name": "web", "namespace": "team"}, "spec": {"replicas": 2, "template": {"spec": spec(10)}}}
    big = {"kind": "Pod", "metadata": {"name": "big", "namespace": "team"}, "spec": spec(20)}
    (tmp_path / "deployment.yaml").write_text(yaml.safe_dump_all([web, big]))
    assert main(["simulate", "-f", str(tmp_path / "deployment.yaml"), "--from-file", file]) == 3
    assert capsys.readouterr().out == shown("kubectl gpushare simulate -f deployment.yaml")


def test_what_pods_would_need(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    now = int(time.time())
    nodes = [node("gpu1", "10.0.0.1", 24, 24), node("gpu2", "10.0.0.2", 24, 24)]
    pods = [
        *(pod(f"web-{i}", f"gpu{1 + i // 2}", gpu=i % 2, mem=12, namespace="shop") for i in range(4)),
        pod("train-x7", "gpu1", gpu=0, mem=10, namespace="research"),
        pod("book-0", "gpu2", gpu=1, mem=8, namespace="research"),
    ]
    owners = {"web": ("ReplicaSet", "web-6c5f"), "train": ("Job", "train"), "book": ("StatefulSet", "book")}
    for raw in pods:
        kind, name = owners[raw["metadata"]["name"].partition("-")[0]]
        raw["metadata"] |= {"ownerReferences": [{"kind": kind, "name": name}], "labels": {"pod-template-hash": "6c5f"}}
    peaks = {"web-0": 4352, "web-1": 4608, "web-2": 4352, "web-3": 4352, "train-x7": 10_240, "book-0": 0}
    for raw in nodes:
        here = [found["metadata"] for found in pods if found["spec"]["nodeName"] == raw["metadata"]["name"]]
        # On the GPU that each has.
        index = {"web-1": 1, "web-3": 1, "book-0": 1}
        used = {(found["uid"], index.get(found["name"], 0)): PodUse(0, 0, None, peaks[found["name"]], 6 * 86400 + 60) for found in here}
        report = UseReport(now, {0: GpuUse(1)}, used)
        raw["metadata"]["annotations"]["gpushare/use"] = report.to_json()
    file = save(tmp_path / "cluster.json", *nodes, *pods)
    assert main(["simulate", "--as-used", "-A", "--from-file", file]) == 0
    command = "kubectl gpushare simulate --as-used -A"
    assert capsys.readouterr().out == shown(command)
