# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The playbook `cluster` takes the CDI specs away with everything else, and the operator's stays."""

from __future__ import annotations

from cdi_nodes.operator_nodes import SPEC, Operator
from cluster_mode.conftest import Bare
from e2e.cluster import GPU_NODES, Cluster
from installer.site import Site, differences


def test_afterwards_everything_is_as_it_was(cluster: Cluster, bare: Bare, here: Operator) -> None:
    cluster.clear()
    predicted, _ = here.play("--check", gpushare_cluster_state="absent")
    done, output = here.play(gpushare_cluster_state="absent")
    assert done.changes() == predicted.changes(), output
    assert set(here.objects()) == bare.objects
    for node in GPU_NODES:
        assert cluster.on(node, "sh", "-c", "ls -A /run/cdi").split() == ["management.nvidia.com-gpu.yaml"], SPEC
    after = Site(cluster, here.folder, GPU_NODES).state(resources=False)
    # kubelet names a removed plugin's resources for five minutes, and the lab keeps each driver that it has had.
    others = ({k: v for k, v in one.items() if not k.startswith("node ") and "gpushare-lab" not in k} for one in (bare.files, after))
    assert differences(*others) == []
