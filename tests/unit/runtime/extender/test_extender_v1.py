# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The verbs' JSON, on what kube-scheduler 1.36.3 really sent (recorded/) and on what others may send."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpushare_runtime.extender import extender_v1
from gpushare_runtime.extender.extender_v1 import Arguments, Filtered, WireError

RECORDED = Path(__file__).parent / "recorded"


def test_filter_with_names_as_recorded() -> None:
    args = extender_v1.read_arguments((RECORDED / "filter_names.json").read_bytes())
    assert args.names == ["gpu1", "gpu2"]
    assert args.nodes is None
    assert args.pod["metadata"]["name"] == "a"
    assert args.pod["spec"]["containers"][0]["resources"]["limits"] == {"aliyun.com/gpu-mem": "6"}
    answer = extender_v1.write_filtered(args, Filtered(["gpu1"], {"gpu2": "no"}))
    assert answer == b'{"Nodes":null,"NodeNames":["gpu1"],"FailedNodes":{"gpu2":"no"},"FailedAndUnresolvableNodes":{},"Error":""}'


def test_filter_with_nodes_as_recorded() -> None:
    body = (RECORDED / "filter_nodes.json").read_bytes()
    args = extender_v1.read_arguments(body)
    assert args.names == ["gpu1", "gpu2"]
    answer = json.loads(extender_v1.write_filtered(args, Filtered(["gpu2"], {"gpu1": "no"})))
    sent = json.loads(body)["Nodes"]["items"]
    assert answer == {
        "Nodes": {"metadata": {}, "items": [sent[1]]},
        "NodeNames": None,
        "FailedNodes": {"gpu1": "no"},
        "FailedAndUnresolvableNodes": {},
        "Error": "",
    }


@pytest.mark.parametrize(("nodes", "twice"), [(1310, True), (1311, False)])
def test_reasons_of_thousands_of_nodes_are_written_once(nodes: int, twice: bool) -> None:
    """In the map that schedulers of today look at first. The name of each node is in both all the same."""
    names = [f"n{number}" for number in range(nodes)]
    reasons = dict.fromkeys(names, "x" * 100) | {"m": "evict somebody"}
    answer = json.loads(extender_v1.write_filtered(Arguments({}, names), Filtered(failed=reasons, unresolvable=names)))
    assert answer["FailedAndUnresolvableNodes"] == dict.fromkeys(names, "x" * 100)
    assert answer["FailedNodes"] == (
        reasons if twice else {**dict.fromkeys(names, "see FailedAndUnresolvableNodes"), "m": "evict somebody"}
    )


def test_hopeless_nodes_are_in_both_maps() -> None:
    answer = json.loads(extender_v1.write_filtered(Arguments({}, ["n"]), Filtered(failed={"n": "no"}, hopeless=True)))
    assert answer["FailedNodes"] == answer["FailedAndUnresolvableNodes"] == {"n": "no"}
    assert answer["NodeNames"] == []


def test_filter_error() -> None:
    assert extender_v1.write_filter_error("why") == (
        b'{"Nodes":null,"NodeNames":null,"FailedNodes":{},"FailedAndUnresolvableNodes":{},"Error":"why"}'
    )


def test_scores() -> None:
    assert extender_v1.write_scores({"b": 3, "a": 10}) == b'[{"Host":"b","Score":3},{"Host":"a","Score":10}]'
    assert extender_v1.write_scores({}) == b"[]"


def test_bind_as_recorded() -> None:
    args = extender_v1.read_bind((RECORDED / "bind.json").read_bytes())
    assert (args.namespace, args.name, args.node, len(args.uid)) == ("default", "a", "gpu1", 36)
    assert str(args) == "default/a"
    assert extender_v1.write_bound("") == b'{"Error":""}'
    assert extender_v1.write_bound("why") == b'{"Error":"why"}'


def test_fields_in_any_case() -> None:
    args = extender_v1.read_arguments(b'{"pod":{},"nodes":null,"nodenames":["n"]}')
    assert args == Arguments({}, ["n"])
    bind = extender_v1.read_bind(b'{"podName":"p","podNamespace":"ns","podUID":"u","node":"n"}')
    assert (bind.namespace, bind.name, bind.uid, bind.node) == ("ns", "p", "u", "n")


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "the body is not JSON"),
        (b"[]", r"the body is \[\]; expected ExtenderArgs"),
        (b"{}", r"Pod must be a v1\.Pod, found None"),
        (b'{"Pod":{}}', "neither NodeNames nor Nodes is there"),
        (b'{"Pod":{},"NodeNames":"n"}', "NodeNames must be a list of names, found 'n'"),
        (b'{"Pod":{},"NodeNames":[1]}', "NodeNames must be a list"),
        (b'{"Pod":{},"Nodes":{"items":[{}]}}', r"Nodes.items must be nodes with metadata.name"),
        (b'{"Pod":{},"Nodes":{"items":3}}', r"Nodes.items must be nodes with metadata.name"),
    ],
)
def test_arguments_that_are_none(body: bytes, said: str) -> None:
    with pytest.raises(WireError, match=said):
        extender_v1.read_arguments(body)


@pytest.mark.parametrize(
    ("field", "value", "said"),
    [
        ("PodName", "../../nodes/x", "PodName must be a Kubernetes name, found '../../nodes/x'"),
        ("PodName", None, "PodName must be"),
        ("PodNamespace", "", "PodNamespace must be"),
        ("Node", "a\nb", "Node must be"),
        ("Node", "x" * 254, "Node must be"),
        ("PodUID", "", "PodUID must be a UID"),
        ("PodUID", 7, "PodUID must be a UID"),
    ],
)
def test_bind_arguments_that_are_none(field: str, value: object, said: str) -> None:
    args = {"PodName": "p", "PodNamespace": "ns", "PodUID": "u", "Node": "n"}
    extender_v1.read_bind(json.dumps(args).encode())
    with pytest.raises(WireError, match=said):
        extender_v1.read_bind(json.dumps(args | {field: value}).encode())


def preempt_body(key: str, pods: list[dict[str, object]]) -> bytes:
    nodes = {"NodeNameToVictims": None, "NodeNameToMetaVictims": None} | {key: {"n1": {"Pods": pods, "NumPDBViolations": 1}}}
    return json.dumps({"Pod": {"metadata": {"uid": "p"}}, **nodes}).encode()


def test_preempt_as_the_scheduler_sends_it_with_and_without_whole_pods() -> None:
    meta = preempt_body("NodeNameToMetaVictims", [{"UID": "a"}, {"UID": "b"}])
    full = preempt_body("NodeNameToVictims", [{"metadata": {"uid": "a"}}, {"metadata": {"uid": "b"}}])
    for body in (meta, full):
        args = extender_v1.read_preempt(body)
        assert (args.pod, args.victims) == ({"metadata": {"uid": "p"}}, {"n1": extender_v1.Victims(("a", "b"), 1)})


def test_the_answer_to_preempt_names_uids_and_never_a_node_without_victims() -> None:
    written = extender_v1.write_preempted({"n1": extender_v1.Victims(("a",), 2), "n2": extender_v1.Victims(())})
    assert json.loads(written) == {"NodeNameToMetaVictims": {"n1": {"Pods": [{"UID": "a"}], "NumPDBViolations": 2}}}


@pytest.mark.parametrize(
    "body",
    [
        b"[]",
        b'{"Pod":1}',
        b'{"Pod":{},"NodeNameToMetaVictims":[1]}',
        preempt_body("NodeNameToMetaVictims", [{}]),
        b'{"Pod":{},"NodeNameToMetaVictims":{"n1":{"Pods":[{"UID":"a"}],"NumPDBViolations":"x"}}}',
        b'{"Pod":{},"NodeNameToMetaVictims":{"n1":{"Pods":[{"UID":"a"}],"NumPDBViolations":1e400}}}',
    ],
)
def test_what_is_no_question_about_victims_is_an_error(body: bytes) -> None:
    with pytest.raises(extender_v1.WireError):
        extender_v1.read_preempt(body)


def test_only_the_nodes_that_nothing_helps_are_unresolvable() -> None:
    args = extender_v1.Arguments({}, ["a", "b"])
    answer = json.loads(
        extender_v1.write_filtered(args, extender_v1.Filtered([], {"a": "full", "b": "too small"}, unresolvable=frozenset({"b"})))
    )
    assert answer["FailedNodes"] == {"a": "full", "b": "too small"}
    assert answer["FailedAndUnresolvableNodes"] == {"b": "too small"}
