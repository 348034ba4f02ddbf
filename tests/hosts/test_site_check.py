# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""site.yml on hosts that it has never seen: what check mode predicts is what the run does, and the next run does nothing at all."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from e2e.cluster import Cluster
from quality.results import Results, run_site
from quality.snapshot import Snapshot, objects, take

# Each of these has something to do on a host without us; preflight and verify never have.
ROLES = {"container_runtime", "device_plugin", "extender", "kubectl_inspect", "kubelet", "runtime", "scheduler"}


def settled(cluster: Cluster) -> Snapshot:
    """The cluster once its own controllers have nothing left to write."""
    last: list[object] = []

    def still() -> bool:
        last.append(objects(cluster))
        return len(last) > 1 and last[-1] == last[-2]

    cluster.until("the cluster's objects stay as they are", still, 60)
    return take(cluster)


def roles(changes: Counter[tuple[str, str, str]]) -> set[str]:
    """The roles that have changed something."""
    return {task.split(" : ")[0].removeprefix("gpushare.kubernetes.") for _host, _play, task in changes}


def run(cluster: Cluster, folder: Path, name: str, *arguments: str) -> tuple[Results, str]:
    (folder / name).mkdir()
    return run_site(cluster.inventory, folder / name, *arguments)


def test_check_mode_predicts_what_the_run_does_and_the_next_run_is_silent(bare: Cluster, tmp_path: Path) -> None:
    untouched = settled(bare)
    predicted, shown = run(bare, tmp_path, "check", "--check", "--diff")
    assert untouched.differences(settled(bare)) == [], "check mode has written"
    assert roles(predicted.changes()) >= ROLES
    # The difference is shown of files that the hosts do not have yet, too.
    assert "+ExecStart=" in shown
    assert "+extenders:" in shown or "+  extenders:" in shown

    done, output = run(bare, tmp_path, "run")
    assert predicted.changes() == done.changes(), output

    converged = settled(bare)
    again, output = run(bare, tmp_path, "again")
    assert again.changes() == {}, output
    assert converged.differences(settled(bare)) == [], "a second run has written or restarted something"

    checked, output = run(bare, tmp_path, "check-again", "--check", "--diff")
    assert checked.changes() == {}, output
    assert converged.differences(settled(bare)) == [], "check mode on a converged cluster has written"
