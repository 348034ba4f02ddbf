# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The work of the controller grows with the hosts and no faster: real playbooks on stand-ins of the benchmark of fleets."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.fleet.__main__ import Cost, Fleet

SIZES = (1, 2, 3)


def costs(folder: Path, step: str) -> list[Cost]:
    return [Fleet(folder / str(nodes), nodes, forks=4, settled=True).run(step, gpushare_serial="100%")[0] for nodes in SIZES]


@pytest.mark.timeout(1200)
def test_each_node_costs_what_the_one_before_has_cost(tmp_path: Path) -> None:
    """What the third node adds is what the second has added: a loop over all hosts that each host makes would add more."""
    few, more, most = costs(tmp_path, "verify")
    for name in ("modules", "results", "reads"):
        counts = [getattr(cost, name) for cost in (few, more, most)]
        assert counts[2] - counts[1] == counts[1] - counts[0] > 0, (name, counts)
    assert few.changed == more.changed == most.changed == 0


@pytest.mark.timeout(1200)
def test_a_gpu_node_that_needs_nothing_costs_three_modules(tmp_path: Path) -> None:
    """Facts with all plans, the service, verify: the other roles get what the host has said to preflight."""
    fleet = Fleet(tmp_path / "fleet", 2, forks=4, settled=True)
    cost, found = fleet.run("site", gpushare_serial="100%")
    assert cost.changed == 0
    calls = [line.split() for line in (fleet.folder / "calls").read_text().splitlines()]
    modules = [module for host, module, *_sizes in calls if host == "gpu002"]
    assert modules == ["gpushare_sharing", "gpushare_daemon", "gpushare_verify_host"]
    assert len(found.tasks("gpu002")) == 16, found.tasks("gpu002")
