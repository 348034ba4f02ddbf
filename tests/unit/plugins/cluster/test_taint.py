# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The taint of GPU nodes: put on, taken away, and nothing else of a node's taints."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.kubectl import Kubectl, KubectlError
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.objects import WantedObjects, converge
from ansible_collections.gpushare.kubernetes.plugins.module_utils._formats.answers import answer_of

Json = dict[str, Any]
OURS = {"key": "gpushare.kubernetes/gpu", "effect": "PreferNoSchedule"}
THEIRS = {"key": "gpu", "value": "a", "effect": "NoSchedule"}
#: Somebody's own, although its key is ours.
STRICT = {**OURS, "effect": "NoSchedule"}


class ApiServer:
    """kubectl with nodes behind it. writes: how often somebody else writes a node just before we do."""

    def __init__(self, *taints: list[Json] | None, writes: int = 0) -> None:
        self.nodes = {
            f"gpu{index}": {
                "kind": "Node",
                "metadata": {"name": f"gpu{index}", "resourceVersion": "1"},
                "spec": {} if of is None else {"taints": of},
            }
            for index, of in enumerate(taints, 1)
        }
        self.writes = writes
        self.patches = 0

    def __call__(self, argv: list[str], data: str | None = None) -> tuple[int, str, str]:
        words = argv[4:]
        if words[0] == "get":
            names = [one["metadata"]["name"] for one in json.loads(data)["items"]] if data else [words[2]]
            return (
                0,
                json.dumps(
                    {"kind": "List", "items": [self.nodes[name] for name in names if name in self.nodes]} if data else self.nodes[names[0]]
                ),
                "",
            )
        assert words[:2] == ["patch", "node"]
        self.patches += 1
        node: Json = self.nodes[words[2]]
        if self.writes:
            self.writes -= 1
            node["metadata"]["resourceVersion"] += "1"
        unchanged, change = json.loads(words[-1].removeprefix("--patch="))
        if (unchanged["op"], unchanged["path"], unchanged["value"]) != (
            "test",
            "/metadata/resourceVersion",
            node["metadata"]["resourceVersion"],
        ):
            return 1, "", "The request is invalid: the server rejected our request: testing path /metadata/resourceVersion failed"
        assert (change["op"], change["path"]) == ("add", "/spec/taints")
        node["spec"]["taints"] = change["value"]
        node["metadata"]["resourceVersion"] += "1"
        return 0, "{}", ""

    def converge(self, wanted: dict[str, bool], *, check_mode: bool = False) -> Json:
        return dict(answer_of(converge(Kubectl(self, "kubectl", "admin.conf"), WantedObjects(taints=wanted), check_mode)))

    def taints(self) -> list[Any]:
        return [node["spec"].get("taints") for node in self.nodes.values()]


def test_it_is_put_beside_those_of_others_and_a_second_run_changes_nothing() -> None:
    api = ApiServer(None, [THEIRS, STRICT], [OURS])
    wanted = dict.fromkeys(("gpu1", "gpu2", "gpu3", "gone"), True)
    predicted = api.converge(wanted, check_mode=True)
    assert (api.patches, api.taints()) == (0, [None, [THEIRS, STRICT], [OURS]])
    done = api.converge(wanted)
    assert done == predicted
    assert done["objects"] == [f"taint gpushare.kubernetes/gpu of node {name}" for name in ("gpu1", "gpu2")]
    assert [json.loads(one["after"]) for one in done["diff"]] == [{"taints": [OURS]}, {"taints": [THEIRS, STRICT, OURS]}]
    assert api.taints() == [[OURS], [THEIRS, STRICT, OURS], [OURS]]
    assert (api.converge(wanted)["changed"], api.patches) == (False, 2)


def test_switched_off_it_goes_and_those_of_others_stay() -> None:
    api = ApiServer([STRICT, OURS, THEIRS], [THEIRS], None)
    assert api.converge(dict.fromkeys(("gpu1", "gpu2", "gpu3"), False))["objects"] == ["taint gpushare.kubernetes/gpu of node gpu1"]
    assert (api.taints(), api.patches) == ([[STRICT, THEIRS], [THEIRS], None], 1)


def test_a_node_that_others_write_is_looked_at_again_but_not_for_ever() -> None:
    api = ApiServer([THEIRS], writes=3)
    assert api.converge({"gpu1": True})["changed"]
    assert (api.taints(), api.patches) == ([[THEIRS, OURS]], 4)
    with pytest.raises(KubectlError, match="testing path"):
        ApiServer([THEIRS], writes=99).converge({"gpu1": True})
