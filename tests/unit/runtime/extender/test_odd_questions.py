# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Questions that are JSON but not what kube-scheduler asks: each is answered or rejected by the reader, and the next one is as if
it had not been."""

from __future__ import annotations

import asyncio
import copy
import json
from pathlib import Path
from typing import Any, Final

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.core.ledger_json import ledger_json
from gpushare_runtime.core.node_ledger import NodeRecord
from gpushare_runtime.core.placement.policies import Placement
from gpushare_runtime.core.protocol import EXTENDER_PREFIX
from gpushare_runtime.daemon import exposition
from gpushare_runtime.extender import inspect_json
from gpushare_runtime.extender.binder import Binder
from gpushare_runtime.extender.cache import ClusterCache
from gpushare_runtime.extender.extender_v1 import WireError
from gpushare_runtime.extender.http_server import Endpoints, VerbAnswer
from gpushare_runtime.extender.metrics import families
from gpushare_runtime.extender.verbs import Verbs
from unit.fakes.runtime.extender.in_memory import NoApi
from unit.fakes.runtime.pods import container, inventory, pod
from unit.golden import Golden

RECORDED: Final = Path(__file__).parent / "recorded"
NAMES: Final = ["gpu1", "gpu2"]


def full_pod() -> dict[str, Any]:
    """With all that is read of a pending pod."""
    raw = pod(
        container(mem=4, core=20),
        init=[container("i", mem=2) | {"restartPolicy": "Always"}],
        uid="odd",
        labels={"app": "a", "aliyun.com/gpu-count": "1"},
        annotations={"gpushare.request/not-with": "app=b", "gpushare.request/models": "Tesla T4"},
    )
    raw["metadata"]["resourceVersion"] = "1"
    raw["spec"] |= {
        "priority": 5,
        "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}],
        "resourceClaims": [],
        "schedulingGroup": {},
    }
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "none"}
    raw["status"] = {"phase": "Pending", "nominatedNodeName": "gpu1", "conditions": [condition]}
    return raw


def questions() -> list[tuple[str, Any]]:
    """Each verb with good questions."""
    victims = {"gpu1": {"Pods": [{"UID": "a"}], "NumPDBViolations": 0}}
    asked = {"Pod": full_pod(), "Nodes": None, "NodeNames": NAMES}
    by_nodes = {**asked, "NodeNames": None, "Nodes": {"metadata": {}, "items": [{"metadata": {"name": name}} for name in NAMES]}}
    whole = {"gpu1": {"Pods": [{"metadata": {"uid": "a"}}], "NumPDBViolations": 1}}
    return [
        *(("filter", json.loads((RECORDED / f"filter_{form}.json").read_text())) for form in ("names", "nodes")),
        ("bind", json.loads((RECORDED / "bind.json").read_text())),
        *((verb, args) for verb in ("filter", "prioritize") for args in (asked, by_nodes)),
        ("preempt", {"Pod": full_pod(), "NodeNameToVictims": None, "NodeNameToMetaVictims": victims}),
        ("preempt", {"Pod": full_pod(), "NodeNameToVictims": whole, "NodeNameToMetaVictims": None}),
    ]


ODD: Final = [
    *(None, True, 0, -1, 7, 2**63 - 1, 2**64 - 1, 1.5, 1e300, "", "x", "0", "\n", "\x00", "x" * 10_000),
    *([], {}, [[]], [None], [1], ["x"], [{}, {}]),
    *({"": None}, {"x": {}}, {"metadata": 1}, {"name": []}, {"uid": {}}, {"limits": 1}, {"limits": {"x": []}}),
]


@st.composite
def odd(draw: st.DrawFn, good: Any) -> Any:
    """The same with something else in up to three places."""
    changed = json.loads(json.dumps(good))
    for _ in range(draw(st.integers(1, 3))):
        place, depth = changed, draw(st.integers(0, 9))
        while isinstance(place, (dict, list)) and place:
            key = draw(st.sampled_from(sorted(place) if isinstance(place, dict) else list(range(len(place)))))
            if not depth or not isinstance(place[key], (dict, list)) or not place[key]:
                how = draw(st.integers(0, 5))
                if how == 0:
                    del place[key]
                elif how == 1 and isinstance(place, dict):
                    place[draw(st.sampled_from(["", "x", "metadata", "Pod", "pod", "NODENAMES", "gpushare.request/x"]))] = copy.deepcopy(
                        draw(st.sampled_from(ODD))
                    )
                else:
                    place[key] = copy.deepcopy(draw(st.sampled_from(ODD)))
                break
            place, depth = place[key], depth - 1
    return changed


class Asked:
    """An extender without HTTP."""

    def __init__(self) -> None:
        self.cluster = ClusterCache(clock=lambda: 0.0)
        placement = Placement(scarcity=self.cluster.scarcity)
        for name in NAMES:
            self.cluster.node_event("ADDED", NodeRecord(name, Inventory(inventory(16).unit, inventory(16).gpus, 100)))
        service = Verbs(self.cluster.ledger, placement, clock=lambda: 0.0)
        self.endpoints = Endpoints(self.cluster, service, Binder(NoApi(), self.cluster, placement), lambda: "")  # type: ignore[arg-type]

    def verb(self, name: str, question: Any) -> Any:
        made = self.endpoints._handlers[f"{EXTENDER_PREFIX}/{name}"](orjson.dumps(question))
        answer = made if isinstance(made, VerbAnswer) else asyncio.run(made)  # type: ignore[arg-type]
        if answer.after is not None:
            answer.after()
        return orjson.loads(answer.body)


QUESTIONS: Final = questions()


@settings(max_examples=300, deadline=None)
@given(st.lists(st.sampled_from(QUESTIONS).flatmap(lambda one: st.tuples(st.just(one[0]), odd(one[1]))), min_size=1, max_size=3))
def test_an_odd_question_is_answered_or_rejected_and_harms_no_other(asked: list[tuple[str, Any]]) -> None:
    it = Asked()
    for verb, question in asked:
        rejected = ""
        try:
            assert isinstance(it.verb(verb, question), list if verb == "prioritize" else dict)
        except WireError as error:
            rejected = str(error)
        assert (len(rejected) < 500, rejected.isprintable()) == (True, True)
    orjson.dumps(ledger_json(it.cluster.ledger))
    orjson.dumps(inspect_json.inspect(it.cluster.ledger))
    assert "".join(exposition.render(families(it.cluster)))
    good = pod(container(mem=1), name="good", uid="good")
    answer = it.verb("filter", {"Pod": good, "NodeNames": NAMES})
    assert (answer["Error"], set(answer["NodeNames"])) == ("", set(NAMES))


@pytest.mark.parametrize("verb", ["filter", "prioritize", "preempt"])
@pytest.mark.parametrize(
    "change",
    [
        {"metadata": 1},
        {"metadata": {"uid": [], "resourceVersion": "1"}},
        {"metadata": {"uid": "u", "resourceVersion": {}}},
        {"metadata": {"uid": "u", "name": {}}},
        {"metadata": {"uid": "u", "namespace": 7}},
        {"metadata": {"uid": "u", "labels": {"a": 1}}},
        {"metadata": {"uid": "u", "annotations": ["gpushare.request/models"]}},
        {"spec": 7},
        {"spec": {"containers": 7}},
        {"spec": {"containers": [7]}},
        {"spec": {"containers": [container(mem=1)], "volumes": 7}},
        {"status": 7},
        {"status": {"conditions": 7}},
    ],
)
def test_a_pod_that_is_none_is_said_to_be_so(verb: str, change: dict[str, Any], golden: Golden) -> None:
    question = {"Pod": {**full_pod(), **change}, "NodeNames": NAMES, "NodeNameToMetaVictims": {}}
    with golden.raised(WireError):
        Asked().verb(verb, question)


def test_the_good_questions_are_good() -> None:
    """Otherwise nothing above is about one odd place."""
    it = Asked()
    for verb, question in QUESTIONS:
        answer = it.verb(verb, question)
        if verb == "filter" and question["Pod"]["metadata"]["uid"] == "odd":
            assert (answer["Error"], answer["FailedNodes"]) == ("", {})
        if verb == "prioritize":
            assert answer[0]["Score"] == 10
