# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A user with the ClusterRole `edit` in one namespace walks first-pod.md: a pod that asks for bytes, `explain`, the cure, its GPU."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from e2e.cluster import Cluster
from gpushare_lab import cluster as lab_cluster
from gpushare_lab import state as lab_state
from gpushare_runtime.core.protocol import PUBLIC_NAMESPACE, SIZES
from users import User, first_pod, granted

TEAM = "research"


@pytest.fixture
def analyst(installed: Cluster, tmp_path: Path) -> Iterator[User]:
    objects = {"apiVersion": "v1", "kind": "List", "items": granted("analyst", TEAM, ["edit"])}
    installed.kubectl("apply", "-f", "-", stdin=json.dumps(objects))
    program = lab_cluster.kubectl_file(lab_state.existing(installed.name))
    try:
        yield User(program, installed.kubeconfig, "analyst", TEAM, tmp_path / "analyst.json")
    finally:
        installed.kubectl("delete", "namespace", TEAM, "--wait=true", seconds=180)


def test_from_the_first_pod_to_the_cure(installed: Cluster, analyst: User) -> None:
    assert analyst.kubectl("get", "nodes")[0] == 1
    # The extender writes them soon after it leads.
    config_map = f"/api/v1/namespaces/{PUBLIC_NAMESPACE}/configmaps/{SIZES}"
    installed.until("the sizes are public", lambda: (installed.api.get(config_map).get("data") or {}).get("sizes"), 60)
    analyst.create(first_pod("8Gi"))
    verdict = analyst.until_told("first", "fits on no GPU, even an empty one: 8Gi means 8589934592 units of 1 GiB; the largest GPU has")
    assert analyst.gpushare("explain", "first")[0] == 3
    assert analyst.gpushare("status")[1].endswith("As you are: kubectl gpushare pods\n")
    (number,) = re.findall(r"; write (\d+)$", verdict)
    analyst.delete("first")
    analyst.create(first_pod(number))

    def runs() -> bool:
        return analyst.kubectl("get", "pod", "first", "-o", "jsonpath={.status.phase}")[1] == "Running"

    installed.until("his pod runs", runs, 120)
    assert re.search(rf"^pod {TEAM}/first is on node gpu\d and has 8 GiB of GPU \d$", analyst.gpushare("explain", "first")[1], re.M)
    # Of that GPU, and that he has it, he is told in words.
    said = "Allocated 8 GiB of GPU "
    installed.until("the Event is there", lambda: said in analyst.kubectl("describe", "pod", "first")[1], 60)
    assert "8 GiB" in analyst.gpushare("pods")[1]
