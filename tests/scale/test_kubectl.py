# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""`kubectl gpushare` on the largest cluster that Kubernetes is built for."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from pathlib import Path
from typing import Any, Final

import pytest

from unit.runtime.kubectl_gpushare.objects import node, pod
from unit.runtime.pods import inventory

NODES: Final = 5000
PODS_PER_NODE: Final = 10
TARGET_SECONDS: Final = 3.0


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As kubectl writes them, with labels, images and statuses: 100 MB."""
    cards = inventory(*[80] * 8)
    labels = {f"label-{number}": "x" * 20 for number in range(10)}
    items: list[dict[str, Any]] = []
    for at in range(NODES):
        name = f"node-{at:05d}"
        one = node(name, f"10.0.{at // 250}.{at % 250}", cards=cards) | {"kind": "Node"}
        one["metadata"]["labels"] = labels
        one["status"]["images"] = [{"names": [f"registry.example/image@sha256:{'0' * 64}"], "sizeBytes": 12345}] * 20
        items.append(one)
        for number in range(PODS_PER_NODE):
            card, units = number % 8, 8 + number
            said = {"scheduler.framework.gpushare.allocation": json.dumps({"0": {str(card): units}})}
            it = pod(f"pod-{at}-{number}", name, annotations=said, mem=units, namespace=f"team-{number}") | {"kind": "Pod"}
            it["metadata"]["labels"] = labels
            it["status"]["containerStatuses"] = [{"name": "main", "state": {"running": {}}, "image": "image", "imageID": "x" * 80}]
            it["spec"]["volumes"] = [{"name": "a", "projected": {"sources": [{"a": "b" * 200}] * 3}}]
            items.append(it)
    path = tmp_path_factory.mktemp("kubectl") / "cluster.json"
    path.write_text(json.dumps({"kind": "List", "items": items}))
    return path


@pytest.mark.parametrize(
    ("argv", "lines"),
    [(("nodes",), NODES + 3), (("cards",), NODES * 8 + 1), (("pods", "-A"), NODES * PODS_PER_NODE + 1), (("namespaces",), 11)],
)
def test_5000_nodes_and_50000_pods(argv: tuple[str, ...], lines: int, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "gpushare_runtime.kubectl_gpushare.main", *argv, "--from-file", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ, timeout=600)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) == lines
    seconds = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    with capsys.disabled():
        size = file.stat().st_size // 1_000_000
        print(f"\nkubectl gpushare {' '.join(argv)}: {seconds:.1f} s of CPU for {NODES} nodes, {NODES * PODS_PER_NODE} pods, {size} MB")
    # On a busy machine CPU time grows as well.
    assert seconds < 10 * TARGET_SECONDS
