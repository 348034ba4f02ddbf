# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What a run on a converged cluster costs per node: tasks × hosts is what makes an installer slow."""

from __future__ import annotations

from pathlib import Path

import pytest

from e2e.cluster import GPU_NODES, Cluster
from quality.results import run_site

MODULES = 12
TASKS = 40


def test_a_converged_run_stays_within_its_budget(cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    results, output = run_site(cluster.inventory, tmp_path)
    assert results.changes() == {}, output
    modules = {node: results.modules(node) for node in GPU_NODES}
    tasks = {node: results.tasks(node) for node in GPU_NODES}
    with capsys.disabled():
        print(f"\na converged run takes {results.controller_seconds:.1f} CPU seconds on the controller;", end=" ")
        print("; ".join(f"{node}: {len(modules[node])} modules, {len(tasks[node])} results of tasks" for node in GPU_NODES))
    for node in GPU_NODES:
        # Looking at the node alone is one.
        assert 0 < len(modules[node]) <= MODULES, "\n".join(modules[node])
        assert 0 < len(tasks[node]) <= TASKS, "\n".join(tasks[node])
