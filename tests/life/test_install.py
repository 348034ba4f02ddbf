# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""site.yml on hosts that it has never seen: what check mode predicts is what the run does, and the next run does nothing at all."""

from __future__ import annotations

import json
from collections import Counter

import pytest

from e2e.cluster import GPU_NODES, Cluster
from hosts.site import Site, Untouched
from labs import Labs
from quality.results import Results
from quality.snapshot import settled

# Each of these has something to do on a host without us; preflight and verify never have.
ROLES = {"container_runtime", "device_plugin", "extender", "kubectl_inspect", "kubelet", "runtime", "scheduler"}
# What a converged run may cost per node: tasks x hosts is what makes an installer slow.
MODULES = 12
TASKS = 40
# As a user's inventory has it, which says nothing: the lab's own changes all nodes at once.
BATCHES = ("--extra-vars", json.dumps({"gpushare_serial": [1, "25%"]}))


def roles(changes: Counter[tuple[str, str, str]]) -> set[str]:
    """The roles that have changed something."""
    return {task.split(" : ")[0].removeprefix("gpushare.kubernetes.") for _host, _play, task in changes}


@pytest.fixture(scope="module")
def predicted(untouched: Untouched, tmp_path_factory: pytest.TempPathFactory) -> tuple[Results, str]:
    """What check mode says of the first run."""
    before = settled(untouched.cluster)
    results, shown = Site(untouched.cluster, tmp_path_factory.mktemp("check")).play("site.yml", "--check", "--diff", *BATCHES)
    assert before.differences(settled(untouched.cluster)) == [], "check mode has written"
    return results, shown


def test_check_mode_shows_what_every_role_would_do(predicted: tuple[Results, str]) -> None:
    results, shown = predicted
    assert roles(results.changes()) >= ROLES
    # The difference is shown of files that the hosts do not have yet, too.
    assert "+ExecStart=" in shown
    assert "+extenders:" in shown or "+  extenders:" in shown


def test_the_run_changes_what_check_mode_predicted(predicted: tuple[Results, str], site: Site, labs: Labs) -> None:
    done, output = site.play("site.yml", *BATCHES)
    labs.has_been_installed()
    assert predicted[0].changes() == done.changes(), output


def test_the_next_run_is_silent_and_within_its_budget(cluster: Cluster, site: Site, capsys: pytest.CaptureFixture[str]) -> None:
    converged = settled(cluster)
    again, output = site.play("site.yml")
    assert again.changes() == {}, output
    assert converged.differences(settled(cluster)) == [], "a second run has written or restarted something"

    modules = {node: again.modules(node) for node in GPU_NODES}
    tasks = {node: again.tasks(node) for node in GPU_NODES}
    with capsys.disabled():
        print(f"\na converged run takes {again.controller_seconds:.1f} CPU seconds on the controller;", end=" ")
        print("; ".join(f"{node}: {len(modules[node])} modules, {len(tasks[node])} results of tasks" for node in GPU_NODES))
    for node in GPU_NODES:
        # Looking at the node alone is one.
        assert 0 < len(modules[node]) <= MODULES, "\n".join(modules[node])
        assert 0 < len(tasks[node]) <= TASKS, "\n".join(tasks[node])
