# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What check mode predicts is what the run does, and where there is nothing to do nothing is done: on bare hosts and after site.yml."""

from __future__ import annotations

from pathlib import Path

from e2e.cluster import Cluster
from installer.site import ROLES, Site, differences, roles
from installer.snapshot import settled
from labs import Labs


def test_uninstalling_nothing_changes_nothing(bare: Cluster, tmp_path: Path) -> None:
    site = Site(bare, tmp_path)
    untouched = site.state()
    results, output = site.uninstall()
    assert results.changes() == {}, output
    assert differences(untouched, site.state()) == []


def test_the_run_changes_what_check_mode_predicted(bare: Cluster, labs: Labs, tmp_path: Path) -> None:
    site, before = Site(bare, tmp_path), settled(bare)
    predicted, shown = site.play("site.yml", "--check", "--diff")
    assert before.differences(settled(bare)) == [], "check mode has written"
    assert roles(predicted.changes()) >= ROLES
    # The difference is shown of files that the hosts do not have yet, too.
    assert "+ExecStart=" in shown
    assert "+extenders:" in shown or "+  extenders:" in shown

    done, output = site.play("site.yml")
    labs.has_been_installed()
    assert predicted.changes() == done.changes(), output


def test_check_mode_on_a_converged_cluster_is_silent(installed: Cluster, tmp_path: Path) -> None:
    converged = settled(installed)
    checked, output = Site(installed, tmp_path).play("site.yml", "--check", "--diff")
    assert checked.changes() == {}, output
    assert converged.differences(settled(installed)) == [], "check mode on a converged cluster has written"
