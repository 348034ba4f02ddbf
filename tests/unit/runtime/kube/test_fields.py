# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The fields that are kept of nodes and pods are those that are read, and what has other types is parsed whole."""

from __future__ import annotations

import json
import types
from collections.abc import Callable, Iterator
from typing import Any, Union, get_args, get_origin, get_type_hints, is_typeddict

import orjson
import pytest

from gpushare_runtime.core.ledger_json import ledger_json
from gpushare_runtime.kube import fields
from gpushare_runtime.kube.client import KubeError
from gpushare_runtime.kubectl_gpushare.api import _put
from gpushare_runtime.kubectl_gpushare.cluster import Cluster
from unit.fakes.runtime.kubectl_gpushare.objects import node, original_node, pod
from unit.fakes.runtime.pods import container
from unit.golden import Golden

READ: set[tuple[str, ...]] = set()


class Watched(dict[str, Any]):
    """An object that notes in READ which of its fields are looked at, below which path."""

    path: tuple[str, ...] = ()

    def get(self, key: str, default: Any = None) -> Any:
        READ.add((*self.path, key))
        return super().get(key, default)

    def __getitem__(self, key: str) -> Any:
        READ.add((*self.path, key))
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        READ.add((*self.path, str(key)))
        return super().__contains__(key)


def watched(value: Any, path: tuple[str, ...] = ()) -> Any:
    if isinstance(value, dict):
        made = Watched({key: watched(of, (*path, key)) for key, of in value.items()})
        made.path = path
        return made
    return [watched(one, path) for one in value] if isinstance(value, list) else value


def is_kept(path: tuple[str, ...]) -> bool:
    """Whether a field is among those of `fields`, or within one that is kept whole."""
    kind: Any = fields._Object
    for key in path:
        if get_origin(kind) in (Union, types.UnionType):
            kind = next(one for one in get_args(kind) if one is not type(None))
        if get_origin(kind) is list:
            kind = get_args(kind)[0]
        if kind is Any:
            return True
        if not is_typeddict(kind) or key not in get_type_hints(kind):
            return False
        kind = get_type_hints(kind)[key]
    return True


STATES = [{"name": "main", "image": "i", "imageID": "i", "state": {"running": {}}}]
CRASHED = {"terminated": {"exitCode": 1, "reason": "Error"}}
CRASHES = [{"name": "main", "state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": CRASHED, "imageID": "i"}]
NOT_READY = {"type": "Ready", "status": "False", "lastTransitionTime": "2026-01-01T00:00:00Z"}
WAITS = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no room", "lastTransitionTime": "t"}
CLAIM = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
NOISE = {"managedFields": [{"manager": "kubelet", "fieldsV1": {"f:metadata": {}}}], "ownerReferences": [{"kind": "Job"}]}


def changed(base: dict[str, Any], **parts: dict[str, Any]) -> dict[str, Any]:
    """With more fields in metadata=, spec= and status=."""
    return {**base, **{part: {**base.get(part, {}), **more} for part, more in parts.items()}}


def objects() -> list[dict[str, Any]]:
    """Nodes and pods in which every field that is read is there, and others besides."""
    gpu = {"index": 0, "uuid": "GPU-0", "minor": 0, "pci": "", "model": "T4", "mib": 16384, "units": 16, "numa": None, "health": "ok"}
    gpus = json.dumps({"v": 1, "unit": "GiB", "gpus": [{**gpu, "cordoned": False}]})
    held = json.dumps({"v": 1, "gpus": {"GPU-0": [{"uid": "gone", "pod": "a/gone", "units": 2, "why": "orphaned"}]}, "rejected": []})
    first = node("a", "10.0.0.1", gpus=gpus)
    first["metadata"]["annotations"]["gpushare/held"] = held
    nodes = [
        changed(
            first, metadata={"labels": {"x": "y"}, **NOISE}, spec={"unschedulable": True, "podCIDR": "10.1.0.0/24"}, status={"images": [1]}
        ),
        original_node("b", "10.0.0.2", memory=32, count=2),
    ]
    init = {"initContainers": [{**container("i", mem=1), "image": "i", "restartPolicy": "Always"}], "priority": 7, "volumes": [CLAIM]}
    init |= {"overhead": {"cpu": "250m"}, "resources": {"requests": {"cpu": "2"}}}
    evict = {"deletionTimestamp": "2026-11-24T00:00:00Z", "labels": {"app": "x"}, **NOISE}
    pods = [
        changed(pod("p", "a", gpu=0, mem=3), metadata=evict, spec={"priority": 5}, status={"containerStatuses": STATES}),
        changed(pod("q", "a", gpu=0, mem=2), spec=init, status={"initContainerStatuses": STATES, "podIP": "10.1.0.3"}),
        changed(pod("w", None, mem=9), spec=init, status={"phase": "Pending", "conditions": [WAITS], "nominatedNodeName": "a"}),
        changed(pod("c", "a", gpu=0, mem=1), status={"containerStatuses": CRASHES, "conditions": [NOT_READY]}),
        changed(pod("v", None, mem=1), spec={"volumes": [{"name": "e", "ephemeral": {}}], "resourceClaims": []}),
        changed(pod("g", None, mem=1), spec={"schedulingGroup": {"podGroupName": "g"}}),
        changed(pod("h", None, mem=1), spec={"workloadRef": {"name": "w"}}),
        changed(pod("bad", None, mem=1, count=1)),
        pod("done", "a", gpu=0, mem=1, phase="Succeeded"),
        {"metadata": {"uid": "u", "name": "n", "namespace": "d"}, "spec": None, "status": None},
    ]
    return [{"kind": "Node", **one} for one in nodes] + [{"kind": "Pod", **one} for one in pods]


def filled(items: Iterator[Any] | list[Any]) -> dict[str, Any]:
    """What a cluster makes of them."""
    cluster = Cluster()
    for item in items:
        _ = cluster.set_node(item) if item["kind"] == "Node" else cluster.set_pod(item)
    cluster.settle()
    waiting = [(one.pod, one.reported, one.labels) for one in cluster.waiting.values()]
    return {**ledger_json(cluster.ledger, cluster.problems()), "waiting": waiting, "infos": cluster.infos, "pods": cluster.pods}


def test_every_field_that_a_cluster_reads_is_kept() -> None:
    READ.clear()
    filled([watched(one) for one in objects()])
    assert {("status", "conditions", "message"), ("spec", "initContainers", "restartPolicy"), ("metadata", "deletionTimestamp")} <= READ
    assert sorted(path for path in READ if not is_kept(path)) == []


def test_nothing_else_is_kept() -> None:
    made = [item for _, item in fields.read_objects(orjson.dumps({"kind": "List", "items": objects()}))]
    text = orjson.dumps(made)
    assert b"GPU-0" in text
    for left_out in (b"managedFields", b"podCIDR", b"images", b"podIP", b"imageID", b"claimName", b'"i"},'):
        assert (left_out in text) == (left_out == b"claimName"), left_out


def test_a_cluster_of_them_is_the_same() -> None:
    whole = filled(objects())
    assert filled([item for _, item in fields.read_objects(orjson.dumps({"kind": "List", "items": objects()}))]) == whole
    assert filled(list(fields.read_page(orjson.dumps({"metadata": {}, "items": objects()}))["items"])) == whole


def test_a_page_has_its_continue() -> None:
    assert fields.read_page(b'{"metadata":{"continue":"x"},"items":[]}')["metadata"] == {"continue": "x"}
    assert list(fields.read_page(b'{"metadata":{},"items":null}')["items"] or ()) == []


DEEP = b"[" * 100_000 + b"]" * 100_000
LABELS = b'{"kind":"Pod","metadata":{"labels":%s}}'


@pytest.mark.parametrize(
    "item",
    [
        b'{"kind":"Pod","metadata":3}',
        b'{"kind":"Pod","metadata":{},"spec":[1]}',
        b'{"kind":"Pod","metadata":{},"spec":{"containers":{"a":1}}}',
        b'{"kind":"Pod","metadata":{},"status":{"conditions":["x"],"more":{"a":[1,2]}}}',
        b'{"kind":"Pod","metadata":{},"metadata":{"name":"second"}}',
        b'{"kind":1e400}',
        LABELS % b'"\\ud800"',
        LABELS % b'"\\udc00"',
        LABELS % b'"\\ud800\\u0041"',
        LABELS % b'"\xff"',
        LABELS % (b"9" * 5000),
        LABELS % DEEP,
        LABELS % b"NaN",
        b'{"kind":"Pod","spec":{"nodeName":"\x01"}}',
        b'{"kind":"Pod"',
        b"[]",
        b"3",
        b"null",
    ],
)
@pytest.mark.parametrize(
    "read",
    [
        lambda data: [item for _, item in fields.read_objects(data)],
        lambda data: list(fields.read_page(data)["items"]),
        lambda data: [fields.read_event(b'{"type":"ADDED","object":%s}' % data.partition(b"[")[2][:-2])["object"]],
    ],
)
def test_what_is_odd_reads_as_without_this_module(item: bytes, read: Callable[[bytes], list[Any]]) -> None:
    data = b'{"kind":"List","items":[%s]}' % item
    try:
        expected = orjson.loads(data)["items"]
    except orjson.JSONDecodeError:
        with pytest.raises(orjson.JSONDecodeError):
            read(data)
        return
    try:
        assert read(data) == expected
    except fields.NoListError:
        assert not isinstance(expected[0], dict)


def test_an_event_has_only_those_fields_and_an_error_all_of_its_own() -> None:
    for one in objects():
        event = fields.read_event(orjson.dumps({"type": "MODIFIED", "object": one}))
        assert (event["type"], [event["object"]]) == ("MODIFIED", list(fields.read_page(orjson.dumps({"items": [one]}))["items"]))
    error = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired", "details": {"causes": [{"reason": "Old"}]}}}
    assert fields.read_event(orjson.dumps(error)) == error
    assert fields.read_event(b'{"type":"ADDED"}') == {"type": "ADDED"}


@pytest.mark.parametrize("text", ["[1]", '"x"', "null", '{"items":3}', '{"items":[1]}', '{"items":null}'])
def test_what_is_no_list(text: str) -> None:
    with pytest.raises(fields.NoListError):
        list(fields.read_objects(text.encode()))


@pytest.mark.parametrize(("written", "priority"), [(7, 7), (-(2**31), -(2**31)), (10**3000, 0), ("7", 0)])
def test_a_priority_that_no_api_server_takes_is_none(written: object, priority: int) -> None:
    """A file may have a number of thousands of digits."""
    pods = filled([{"kind": "Pod", **changed(pod("p", "a", gpu=0, mem=3), spec={"priority": written})}])["nodes"][0]["pods"]
    assert [one["priority"] for one in pods] == [priority]


def test_one_object_is_a_list_of_one() -> None:
    assert [kind for kind, _ in fields.read_objects(b'{"kind":"Node","metadata":{"name":"a"}}')] == ["Node"]
    assert [kind for kind, _ in fields.read_objects(b'{"kind":"PodList","items":[{"metadata":{}},{"kind":"Node"}]}')] == ["Pod", "Node"]


def test_the_api_server_that_sends_such_an_item_is_named(golden: Golden) -> None:
    items = fields.read_page(b'{"items":[{"metadata":{"name":"\xff"}}]}')["items"]
    with golden.raised(KubeError):
        _put(items, set(), lambda item: str(item["metadata"]["name"]))
