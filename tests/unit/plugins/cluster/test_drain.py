# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Which pods a drain evicts, whose cordon is undone, and what is said of pods that stay. The cluster is a few objects in memory; the words
of kubectl drain are those of 1.36."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.drain import (
    ANNOTATION,
    REASON,
    DrainError,
    cordon,
    drain,
    evictable,
    name_of,
    rejections,
    uncordon,
)
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.kubectl import Kubectl

Json = dict[str, Any]
BUDGET = (
    'error when evicting pods/"train-0" -n "team-a" (will retry after 5s): Cannot evict pod as it would violate the pod\'s disruption '
    "budget.\n"
)
TIMEOUT = 'error when evicting pods/"train-0" -n "team-a": global timeout reached: 20s\n'


def pod(name: str, owner: str | None = "ReplicaSet", phase: str = "Running", **annotations: str) -> Json:
    owners = [{"kind": owner, "name": "x", "controller": True}] if owner else []
    return {
        "metadata": {"namespace": "team-a", "name": name, "ownerReferences": owners, "annotations": annotations},
        "status": {"phase": phase},
    }


class Cluster:
    """One node with pods. stays: those that a drain does not get rid of."""

    def __init__(self, *pods: Json, stays: tuple[str, ...] = ()) -> None:
        self.pods = list(pods)
        self.stays = stays
        self.node: Json = {"metadata": {"name": "n", "annotations": {}}, "spec": {}}
        self.calls: list[list[str]] = []
        self.kubectl = Kubectl(self._run, "kubectl", "/k")

    def _run(self, argv: list[str], _data: str | None) -> tuple[int, str, str]:
        words = argv[4:]
        if words[:2] == ["get", "node"]:
            return 0, json.dumps(self.node) if words[2] == "n" else "", ""
        if words[:2] == ["get", "pods"]:
            assert "--field-selector=spec.nodeName=n" in words
            return 0, json.dumps({"kind": "List", "items": self.pods}), ""
        self.calls.append(words)
        if words[0] == "patch":
            self._owned(next(word for word in words if word.startswith("--field-manager="))[16:])
            patch = json.loads(next(word for word in words if word.startswith("--patch="))[8:])
            for part, values in patch.items():
                target = self.node[part]
                if part == "metadata":
                    target, values = target["annotations"], values["annotations"]
                for key, value in values.items():
                    target.pop(key, None) if value is None else target.update({key: value})
            return 0, "patched", ""
        gone = {name_of(one) for one in evictable(self.pods)} - {f"team-a/{name}" for name in self.stays}
        self.pods = [one for one in self.pods if name_of(one) not in gone]
        if self.stays:
            return 1, "", BUDGET * 3 + TIMEOUT + 'error: unable to drain node "n" due to error: drain did not complete within 20s'
        return 0, "", ""

    def _owned(self, manager: str) -> None:
        """Whose change the node's `unschedulable` is, as the API server has it."""
        fields = {"f:spec": {"f:unschedulable": {}}, "f:metadata": {"f:annotations": {}}}
        self.node["metadata"]["managedFields"] = [
            {"manager": "kubelet", "operation": "Update", "fieldsV1": {"f:status": {}}, "subresource": "status"},
            {"manager": manager, "operation": "Update", "fieldsV1": fields},
        ]

    def by_hand(self, cordoned: bool) -> None:
        """What `kubectl cordon` and `kubectl uncordon` do: they leave annotations."""
        self.node["spec"].pop("unschedulable", None)
        self.node["metadata"].pop("managedFields", None)
        if cordoned:
            self.node["spec"]["unschedulable"] = True
            self._owned("kubectl")

    @property
    def cordoned(self) -> bool:
        return bool(self.node["spec"].get("unschedulable"))


def test_pods_that_a_drain_evicts() -> None:
    pods = [
        pod("a"),
        pod("b", owner=None),
        pod("c", owner="DaemonSet"),
        pod("d", phase="Succeeded"),
        pod("e", phase="Failed"),
        pod("f", **{"kubernetes.io/config.mirror": "x"}),
        pod("g", owner="StatefulSet", phase="Pending"),
    ]
    assert [name_of(one) for one in evictable(pods)] == ["team-a/a", "team-a/b", "team-a/g"]


def test_a_node_is_cordoned_drained_and_made_schedulable_again() -> None:
    cluster = Cluster(pod("a"), pod("c", owner="DaemonSet"))
    found = drain(cluster.kubectl, "n", "nvidia_driver", 20, False, False)
    assert (found.changed, found.done, found.left) == (True, True, ())
    assert cluster.cordoned
    assert cluster.node["metadata"]["annotations"] == {ANNOTATION: "nvidia_driver"}
    assert cluster.calls[-1] == ["drain", "n", "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=20s"]
    assert uncordon(cluster.kubectl, "n", False)
    assert not cluster.cordoned
    assert cluster.node["metadata"]["annotations"] == {}
    assert not uncordon(cluster.kubectl, "n", False)


def test_an_administrators_own_cordon_stays() -> None:
    cluster = Cluster(pod("a"))
    cluster.node["spec"]["unschedulable"] = True
    assert drain(cluster.kubectl, "n", "nvidia_driver", 20, False, False).done
    assert not cordon(cluster.kubectl, "n", "take_over", dry=False)
    assert not uncordon(cluster.kubectl, "n", False)
    assert cluster.cordoned


def test_the_cordon_of_a_run_that_was_killed_is_ours() -> None:
    cluster = Cluster(pod("a"))
    drain(cluster.kubectl, "n", "nvidia_driver", 20, False, False)
    drain(cluster.kubectl, "n", "nvidia_driver", 20, False, False)
    assert uncordon(cluster.kubectl, "n", False)
    assert not cluster.cordoned


def test_a_cordon_by_an_administrator_after_a_run_that_was_killed_stays() -> None:
    cluster = Cluster(pod("a"))
    drain(cluster.kubectl, "n", "nvidia_driver", 20, False, False)
    cluster.by_hand(cordoned=False)
    cluster.by_hand(cordoned=True)
    assert ANNOTATION in cluster.node["metadata"]["annotations"]
    assert drain(cluster.kubectl, "n", "nvidia_driver", 20, False, False).done
    assert not uncordon(cluster.kubectl, "n", False)
    assert cluster.cordoned


def test_an_annotation_that_was_left_on_a_schedulable_node_is_removed() -> None:
    cluster = Cluster(pod("a"))
    drain(cluster.kubectl, "n", "nvidia_driver", 20, False, False)
    cluster.by_hand(cordoned=False)
    assert uncordon(cluster.kubectl, "n", False)
    assert cluster.node["metadata"]["annotations"] == {}
    assert not cluster.cordoned


def test_a_pod_that_its_budget_keeps_is_named() -> None:
    cluster = Cluster(pod("train-0"), pod("b"), stays=("train-0",))
    found = drain(cluster.kubectl, "n", "nvidia_driver", 20, False, False)
    assert (found.done, found.left) == (False, ("team-a/train-0",))
    assert found.why == "team-a/train-0: Cannot evict pod as it would violate the pod's disruption budget."


def test_pods_that_nobody_brings_back_stop_it_before_anything_is_changed() -> None:
    cluster = Cluster(*(pod(f"alone-{number}", owner=None) for number in range(10)))
    with pytest.raises(DrainError, match=r"team-a/alone-0, .* and 2 more; expected none. Nothing was changed"):
        drain(cluster.kubectl, "n", "nvidia_driver", 20, False, False)
    assert (cluster.calls, cluster.cordoned) == ([], False)
    assert drain(cluster.kubectl, "n", "nvidia_driver", 20, True, False).done
    assert "--force" in cluster.calls[-1]


def test_check_mode_changes_nothing() -> None:
    cluster = Cluster(pod("a"))
    found = drain(cluster.kubectl, "n", "nvidia_driver", 20, False, True)
    assert (found.changed, found.left, cluster.calls) == (True, ("team-a/a",), [])
    cluster.node["metadata"]["annotations"][ANNOTATION] = "x"
    assert uncordon(cluster.kubectl, "n", True)
    assert cluster.calls == []


def test_a_node_that_is_drained_already_is_not_changed() -> None:
    cluster = Cluster()
    cluster.node["spec"]["unschedulable"] = True
    assert not drain(cluster.kubectl, "n", "nvidia_driver", 20, False, False).changed
    assert cluster.calls == []


def test_a_node_that_there_is_not() -> None:
    with pytest.raises(DrainError, match="no node other"):
        drain(Cluster().kubectl, "other", "nvidia_driver", 20, False, False)


def test_words_that_name_no_pod_are_shortened() -> None:
    assert rejections("kubectl drain n failed: " + "x" * 5000) == "x" * 300


def test_a_cordon_says_why_until_it_ends() -> None:
    cluster = Cluster(pod("a"))
    drain(cluster.kubectl, "n", "nvidia_driver", 20, False, False, "A run changes the driver.")
    assert cluster.node["metadata"]["annotations"] == {ANNOTATION: "nvidia_driver", REASON: "A run changes the driver."}
    cluster.calls.clear()
    assert not cordon(cluster.kubectl, "n", "nvidia_driver", False)
    assert cordon(cluster.kubectl, "n", "nvidia_driver", True, "broken")
    assert cluster.calls == []
    hostile = "Its driver\n\x1b[31m does not work: " + "x" * 10_000
    assert cordon(cluster.kubectl, "n", "nvidia_driver", False, hostile)
    said = cluster.node["metadata"]["annotations"][REASON]
    assert said.startswith("Its driver  [31m does not work: xx")
    assert len(said) <= 500
    assert cluster.cordoned
    assert not cordon(cluster.kubectl, "n", "nvidia_driver", False, hostile), "nothing is new"
    assert uncordon(cluster.kubectl, "n", dry=False)
    assert cluster.node["metadata"]["annotations"] == {}


def test_a_cordon_of_an_administrator_gets_no_reason_of_ours() -> None:
    cluster = Cluster()
    cluster.by_hand(cordoned=True)
    assert not cordon(cluster.kubectl, "n", "nvidia_driver", False, "broken")
    # Nor one that follows a run of ours, whose annotations are left.
    drain(cluster.kubectl, "n", "nvidia_driver", 20, False, False, "first")
    cluster.node["metadata"]["annotations"] = {ANNOTATION: "nvidia_driver", REASON: "first"}
    assert not cordon(cluster.kubectl, "n", "nvidia_driver", False, "broken")
    assert cluster.calls == []
    # Who takes our cordon back leaves its reason, which the next cordon does not have.
    cluster.by_hand(cordoned=False)
    assert cordon(cluster.kubectl, "n", "take_over", False)
    assert cluster.node["metadata"]["annotations"] == {ANNOTATION: "take_over"}


def test_a_cordon_leaves_the_pods_and_is_undone() -> None:
    cluster = Cluster(pod("a"), pod("b", owner=None))
    assert cordon(cluster.kubectl, "n", "take_over", dry=True)
    assert not cluster.cordoned
    assert cordon(cluster.kubectl, "n", "take_over", dry=False)
    assert cluster.cordoned
    assert cluster.node["metadata"]["annotations"] == {ANNOTATION: "take_over"}
    assert len(cluster.pods) == 2
    assert not cordon(cluster.kubectl, "n", "take_over", dry=False)
    assert uncordon(cluster.kubectl, "n", dry=False)
    assert not cluster.cordoned
