# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""site.yml on hosts that it has never seen, batch by batch; the next run does nothing at all."""

from __future__ import annotations

import json

import pytest

from e2e.cluster import GPU_NODES, Cluster
from installer.shared import run_again_in_silence
from installer.site import ROLES, Site, roles
from labs import Labs

# What a converged run may cost per node: tasks x hosts is what makes an installer slow.
MODULES = 3
TASKS = 17
# As a user's inventory has it, which says nothing: the lab's own changes all nodes at once.
BATCHES = ("--extra-vars", json.dumps({"gpushare_serial": [1, "25%"]}))


def test_the_playbook_installs_what_every_role_is_for(site: Site, labs: Labs) -> None:
    done, _output = site.play("site.yml", *BATCHES)
    labs.has_been_installed()
    assert roles(done.changes()) >= ROLES


def test_the_next_run_is_silent_and_within_its_budget(cluster: Cluster, site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    again = run_again_in_silence(cluster, site)

    modules = {node: again.modules(node) for node in GPU_NODES}
    tasks = {node: again.tasks(node) for node in GPU_NODES}
    with capsys.disabled():
        print(f"\na converged run takes {again.controller_seconds:.1f} CPU seconds on the controller;", end=" ")
        print("; ".join(f"{node}: {len(modules[node])} modules, {len(tasks[node])} results of tasks" for node in GPU_NODES))
    for node in GPU_NODES:
        # Looking at the node alone is one.
        assert 0 < len(modules[node]) <= MODULES, "\n".join(modules[node])
        assert 0 < len(tasks[node]) <= TASKS, "\n".join(tasks[node])
