# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A driver that limits memory by control group: each pod has its units and no more, from its first process on.

The driver is simulated below NVML. It also takes control groups of version 1, which no real driver does: the lab's hosts have no others.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from e2e.api import Json
from e2e.cluster import MEMORY, Cluster, annotations_of
from e2e.limits import GIB, LIMITS, Memory, limits, processes, seen, strict
from e2e.manifests import pod
from e2e.running import NODE, PLUGIN, gpu

pytestmark = pytest.mark.suite("gpus")


def published(cluster: Cluster, node: str) -> str:
    found: str = json.loads(annotations_of(cluster.node(node))["gpushare/gpus"]).get("isolation", "")
    return found


def main_pid(cluster: Cluster) -> str:
    """Of the node's device plugin that has started, "" while it starts."""
    state = cluster.on(NODE, "systemctl", "show", "-p", "ActiveState,MainPID", PLUGIN).split()
    return next(line for line in state if line.startswith("MainPID=")) if "ActiveState=active" in state else ""


@pytest.fixture
def limiting(empty: Cluster) -> Iterator[Cluster]:
    """The node's driver limits memory; the other's does not."""
    gpu(empty, "limits", "any-hierarchy")
    empty.on(NODE, "systemctl", "restart", PLUGIN)
    empty.until("the node publishes that it limits pods", lambda: published(empty, NODE) == "driver", 300)
    yield empty
    empty.clear()
    gpu(empty, "limits", "off")
    empty.on(NODE, "rm", "-f", LIMITS)
    empty.on(NODE, "systemctl", "restart", PLUGIN)
    empty.until("the node publishes that it limits nothing", lambda: published(empty, NODE) == "watch", 300)


@pytest.fixture
def memory(limiting: Cluster) -> Iterator[Memory]:
    """Free again after the test."""
    made = Memory(limiting)
    yield made
    made.free()


def uid_of(thing: Json) -> str:
    found: str = thing["metadata"]["uid"]
    return found


def index_of(cluster: Cluster, name: str) -> int:
    return int(annotations_of(cluster.pod(name))["ALIYUN_COM_GPU_MEM_IDX"])


def test_each_pod_has_its_units_and_no_more(limiting: Cluster, memory: Memory) -> None:
    limiting.create(strict("four", 4))
    pair = pod("pair", memory=2, node=NODE)
    (first,) = pair["spec"]["containers"]
    pair["spec"]["containers"] = [first, {**first, "name": "second", "resources": {"limits": {MEMORY: "3"}}}]
    limiting.create(pair)
    limiting.until_running("four", "pair")
    four, pair = limiting.pod("four"), limiting.pod("pair")
    assert four["spec"]["nodeName"] == NODE, "the other node limits nothing"
    known = limits(limiting)
    assert {uid: most // GIB for uid, (_, most) in known.items()} == {uid_of(four): 4, uid_of(pair): 5}
    one = processes(limiting, known[uid_of(four)][0])[0]
    two = processes(limiting, known[uid_of(pair)][0])
    assert len(two) >= 2
    assert index_of(limiting, "four") == index_of(limiting, "pair"), "they share a GPU"
    index = index_of(limiting, "four")
    # These groups are of version 1, so no container has a limit of its own: it would count instead of the pod's.
    assert [seen(limiting, index, known[uid_of(one)][0]) for one in (four, pair)] == [{4096}, {5120}]
    assert memory.allocate(index, one, 4096) == ""
    assert "CUDA_ERROR_OUT_OF_MEMORY" in memory.allocate(index, one, 1)
    assert memory.allocate(index, two[0], 2048) == "", "a neighbour is untouched"
    assert memory.allocate(index, two[1], 3072) == "", "its containers share one limit"
    assert "CUDA_ERROR_OUT_OF_MEMORY" in memory.allocate(index, two[0], 1)


def test_limits_outlive_the_plugin_and_end_with_their_pod(limiting: Cluster) -> None:
    limiting.create(strict("kept", 4))
    limiting.until_running("kept")
    uid = uid_of(limiting.pod("kept"))
    (group, most) = limits(limiting)[uid]
    killed = main_pid(limiting)
    limiting.on(NODE, "systemctl", "kill", "-s", "SIGKILL", PLUGIN)
    assert limits(limiting)[uid] == (group, most)
    # What is lost while no plugin runs, the next one sets again, or this one a minute later.
    limiting.on(NODE, "truncate", "-s", "0", LIMITS)
    # It has started when kubelet knows of it.
    limiting.until("another plugin serves", lambda: main_pid(limiting) not in ("", killed), 120)
    limiting.until("the pod has its limit again", lambda: uid in limits(limiting), 300)
    limiting.create(strict("next", 2))
    limiting.until_running("next", seconds=240)
    assert {found // GIB for _, found in limits(limiting).values()} == {4, 2}
    limiting.clear()
    limiting.until(
        "no control group of the pod is left", lambda: limiting.on(NODE, "sh", "-c", f"[ -e '{group}' ] || echo gone").strip(), 120
    )


def test_a_pod_whose_limit_cannot_be_set_does_not_start_and_says_why(limiting: Cluster) -> None:
    gpu(limiting, "limits", "dmem")
    limiting.create(strict("waits", 4))

    def told() -> bool:
        states = (limiting.pod("waits").get("status") or {}).get("containerStatuses") or []
        return any("memory limit of pod default/waits could not be set" in json.dumps(state["state"]) for state in states)

    limiting.until("the pod's status says why it does not start", told, 120)
    gpu(limiting, "limits", "any-hierarchy")
    limiting.until_running("waits", seconds=300)
    assert [most // GIB for _, most in limits(limiting).values()] == [4]


def test_a_pod_that_requires_a_limit_waits_where_no_node_has_one(empty: Cluster) -> None:
    empty.create(strict("strict", 4))
    assert "the node has another isolation" in empty.until_unschedulable("strict")
