# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Where there is nothing to do nothing is done: uninstall.yml on bare hosts, and check mode on an installed cluster."""

from __future__ import annotations

from pathlib import Path

from e2e.cluster import Cluster
from hosts.site import Site, differences
from quality.snapshot import settled


def test_uninstalling_nothing_changes_nothing(bare: Cluster, tmp_path: Path) -> None:
    site = Site(bare, tmp_path)
    untouched = site.state()
    results, output = site.uninstall()
    assert results.changes() == {}, output
    assert differences(untouched, site.state()) == []


def test_check_mode_on_a_converged_cluster_is_silent(installed: Cluster, tmp_path: Path) -> None:
    converged = settled(installed)
    checked, output = Site(installed, tmp_path).play("site.yml", "--check", "--diff")
    assert checked.changes() == {}, output
    assert converged.differences(settled(installed)) == [], "check mode on a converged cluster has written"
