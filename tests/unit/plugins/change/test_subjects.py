# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The tables of what this collection brings to a host: every owner has its row, and nothing else is taken for ours."""

from __future__ import annotations

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.subjects import DAEMONS, is_ours, owner_of, units
from ansible_collections.gpushare.kubernetes.plugins.module_utils._daemon import mps
from ansible_collections.gpushare.kubernetes.plugins.module_utils._driver.apply import OWNER as DRIVER
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.container_runtimes import KINDS
from ansible_collections.gpushare.kubernetes.plugins.module_utils._kubelet.converge import KubeletGates
from ansible_collections.gpushare.kubernetes.plugins.module_utils._packages.converge import OWNER as PACKAGES
from ansible_collections.gpushare.kubernetes.plugins.module_utils._scheduler.apply import OWNER as SCHEDULER
from ansible_collections.gpushare.kubernetes.plugins.module_utils._toolkit.toolkit import CdiSpec, ToolkitConfig

MARK = b"# SPDX\n# Copyright: gpushare.kubernetes contributors\n"


def test_the_part_of_an_owner_with_a_service_to_verify_is_taken_out_by_its_own_module() -> None:
    runtimes = [kind.owner for kind in KINDS.values()]
    elsewhere = [SCHEDULER, DRIVER, KubeletGates.owner, ToolkitConfig.owner, *runtimes, "container_runtime.another", PACKAGES + "tk"]
    assert [owner for owner in elsewhere if not owner_of(owner).cure] == []
    with_daemons = [CdiSpec.owner, mps.OWNER, "mps.x", *(daemon.name for daemon in DAEMONS)]
    assert [owner for owner in with_daemons if owner_of(owner).cure] == []


@pytest.mark.parametrize(
    "name", [*units(), *(name for daemon in DAEMONS for name in daemon.settings), "gpushare-mps-GPU-1.service", "gpushare-mps-GPU-1.env"]
)
def test_units_and_settings_with_our_first_lines_are_ours(name: str) -> None:
    folder = "/etc/gpushare" if name.endswith(".env") else "/etc/systemd/system"
    assert is_ours(f"{folder}/{name}", MARK)
    assert not is_ours(f"{folder}/{name}", b"[Unit]\n")
    assert not is_ours(f"{folder}/{name}", None)
    assert not is_ours(f"/etc/elsewhere/{name}", MARK)
    assert not is_ours(f"{folder}/{name}.d/{name}", MARK)
