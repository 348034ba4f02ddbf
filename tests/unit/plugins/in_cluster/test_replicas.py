# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The scheduler's pods on nodes that have become GPU nodes: they are told, and end one by one while others serve."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._in_cluster.replicas import ReplicaError, findings, live, move

from unit.fakes.plugins.in_cluster.kubectl import Fake, Json, named

SPACE = "gpushare-system"


def replica(name: str, on: str) -> Json:
    labels = {"app.kubernetes.io/name": "gpushare-scheduler"}
    return {"metadata": {"name": name, "namespace": SPACE, "labels": labels}, "spec": {"nodeName": on}, "status": {"phase": "Running"}}


def node(name: str) -> Json:
    """By its name: with our label, with NVIDIA's, or with GPUs that no label tells of."""
    labels = {"gpu": {"gpushare.kubernetes/node": "true"}, "nvi": {"nvidia.com/gpu.present": "true"}}.get(name[:3], {})
    return {"metadata": {"name": name, "labels": labels}, "status": {"capacity": {"nvidia.com/gpu.shared": "4"} if name == "bare" else {}}}


class Cluster(Fake):
    """gpu1 and gpu2 are GPU nodes. A pod that is deleted comes back as another one, on `home`. good: of the two pods, those that serve."""

    def __init__(self, *pods: Json, home: str = "cp1", good: int = 2) -> None:
        self.pods, self._home = list(pods), home
        status = {"observedGeneration": 1, "replicas": 2, "updatedReplicas": 2, "availableReplicas": good}
        deployment = named("Deployment", "gpushare-scheduler", SPACE, spec={"replicas": 2}, status=status)
        super().__init__(
            {
                "get nodes": lambda: [node(name) for name in self.asked[-1].split()[2:-3]],
                "get pods --namespace gpushare-system --selector app.kubernetes.io/name=": lambda: self.pods,
                "get deployments.apps": [deployment],
            }
        )

    def __call__(self, argv: list[str], data: str | None = None) -> tuple[int, str, str]:
        if argv[4:6] == ["delete", "pod"]:
            self.pods = [one for one in self.pods if one["metadata"]["name"] != argv[6]]
            self.pods.append(replica(f"after-{argv[6]}", self._home))
        return super().__call__(argv, data)


def moved(cluster: Cluster) -> list[str]:
    now: Iterator[int] = iter(range(1000))
    return move(cluster.kubectl, SPACE, 5, lambda: float(next(now)), lambda seconds: None)


def test_those_on_gpu_nodes_are_told() -> None:
    cluster = Cluster(replica("a", "gpu1"), replica("b", "cp1"))
    (said,) = findings(cluster.kubectl, SPACE)
    assert said.startswith("pod a: found the scheduler on the GPU node gpu1, whose root can read its token")
    assert live(cluster.kubectl, SPACE, ["cp1"]) == {"a": "gpu1", "b": "cp1"}
    # Of others; from the second the Deployment cannot keep away.
    others = Cluster(replica("a", "nvidia1"), replica("b", "bare"))
    assert [said.split(":")[0] for said in findings(others.kubectl, SPACE)] == ["pod a", "pod b"]
    assert live(others.kubectl, SPACE) == {"a": "nvidia1"}


def test_they_end_one_by_one() -> None:
    cluster = Cluster(replica("a", "gpu1"), replica("b", "gpu2"))
    assert moved(cluster) == ["Pod gpushare-system/a", "Pod gpushare-system/b"]
    assert [one["spec"]["nodeName"] for one in cluster.pods] == ["cp1", "cp1"]


def test_without_any_nothing_is_waited_for() -> None:
    cluster = Cluster(replica("a", "cp1"), good=0)
    assert moved(cluster) == []
    assert not any(words.startswith("get deployments") for words in cluster.asked)


def test_none_ends_while_another_one_does_not_serve() -> None:
    cluster = Cluster(replica("a", "gpu1"), replica("b", "cp1"), good=1)
    with pytest.raises(ReplicaError, match="1 of 2 pods serve"):
        moved(cluster)
    assert cluster.writes() == []
