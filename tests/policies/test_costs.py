# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What the policies cost the API server for objects as large as anybody may send: CPU time, compared within one run.

The API server makes an object of each request's JSON, which takes time as its size does. What our expressions add is measured beside that:
it stays below a multiple that does not grow with what tenants send.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

import pytest

from gpushare_runtime.core import protocol
from policies.engine import (
    EXTENDER,
    KUBELET,
    PLUGIN,
    POD_PLUGIN,
    POD_SCHEDULER,
    TENANT,
    Answer,
    Json,
    Request,
    ask,
    policies,
    policies_in_cluster,
)
from policies.requests import MOST_BYTES, binding, changed, many, node, pod

MOST = 4
MEASURED = 4
#: Enough to see the square of it, which would be a thousand times what a request of that size takes.
NUMBER = 10000
IDX, GPUS = protocol.ANNOTATION_INDEX, protocol.ANNOTATION_GPUS
ALL = many(NUMBER)
SMALL, LARGE, LONG = pod(), pod(ALL), pod({f"a{number}": "x" * 16000 for number in range(16)})
RUNNING = {"phase": "Running"}
OF_GPU, OF_NODE = pod({**ALL, IDX: "0"}, "gpu1", "1"), node({**ALL, GPUS: "{}"})


def resources(number: int) -> Json:
    """A pod that says where it runs, and asks for that many devices."""
    made = pod(node="gpu1")
    made["spec"]["containers"][0]["resources"] = {"limits": {f"example.com/{number:x}": "1" for number in range(number)}}
    return made


def containers(number: int) -> Json:
    made = pod(node="gpu1")
    made["spec"]["containers"] = [{"name": f"c{number}", "image": "x"} for number in range(number)]
    return made


REQUESTS = {
    "a tenant creates a pod": Request(TENANT, "pods", LARGE),
    "kubelet reports a pod's status": Request(KUBELET, "pods/status", changed(LARGE, status=RUNNING), LARGE),
    "kubelet reports the status of a pod with GPUs": Request(KUBELET, "pods/status", changed(OF_GPU, status=RUNNING), OF_GPU),
    "kubelet reports its node": Request(KUBELET, "nodes/status", changed(OF_NODE, status={"capacity": {"cpu": "8"}}), OF_NODE),
    "a tenant binds": Request(TENANT, "pods/binding", binding(ALL)),
    "a tenant forges one of them": Request(TENANT, "pods", pod({**ALL, IDX: "1"})),
    "a tenant removes all of them": Request(TENANT, "pods", pod(), LARGE),
    "a tenant places a pod with many devices": Request(TENANT, "pods", resources(NUMBER)),
    "a tenant places a pod with many containers": Request(TENANT, "pods", containers(NUMBER)),
    "a tenant places a pod with as many as are looked at": Request(TENANT, "pods", containers(250)),
    "a plugin marks a pod": Request(PLUGIN, "pods/status", changed(OF_GPU, annotations={IDX: "1"}), OF_GPU),
    "a plugin replaces all of them": Request(PLUGIN, "pods/status", changed(pod(node="gpu1"), annotations=ALL), pod(node="gpu1")),
    "a plugin publishes": Request(PLUGIN, "nodes/status", changed(OF_NODE, annotations={GPUS: "{1}"}), OF_NODE),
    "the extender requeues": Request(EXTENDER, "pods/status", changed(LARGE, annotations={protocol.ANNOTATION_REQUEUED: "1"}), LARGE),
    "the extender binds with labels": Request(
        EXTENDER, "pods/binding", binding(labels={f"topology.kubernetes.io/{name}": "" for name in ALL})
    ),
}

WAITS = {"conditions": [{"type": "PodScheduled", "status": "False"}]}
NODE = {"volume.kubernetes.io/selected-node": "gpu1"}
A_CLAIM = {
    "apiVersion": "v1",
    "kind": "PersistentVolumeClaim",
    "metadata": {"name": "c", "namespace": "default", "annotations": ALL},
    "spec": {},
    "status": {},
}
# The same, and what is only there, where the daemons are pods.
IN_CLUSTER = {
    **{name: one for name, one in REQUESTS.items() if one.who in (TENANT, KUBELET)},
    "a tenant creates a pod with many devices": Request(TENANT, "pods", resources(NUMBER)),
    "a tenant creates a pod with many containers": Request(TENANT, "pods", containers(NUMBER)),
    "a plugin marks a pod": replace(REQUESTS["a plugin marks a pod"], who=POD_PLUGIN),
    "a plugin publishes": replace(REQUESTS["a plugin publishes"], who=POD_PLUGIN),
    "preemption deletes a pod": Request(POD_SCHEDULER, "pods", None, OF_GPU),
    "kube-scheduler names a claim's node": Request(POD_SCHEDULER, "persistentvolumeclaims", changed(A_CLAIM, annotations=NODE), A_CLAIM),
    "kube-scheduler says why a pod waits": Request(POD_SCHEDULER, "pods/status", changed(LARGE, status=WAITS), LARGE),
    "the extender requeues": replace(REQUESTS["the extender requeues"], who=POD_SCHEDULER),
    "the extender binds with labels": replace(REQUESTS["the extender binds with labels"], who=POD_SCHEDULER),
}


# The walk over containers ends at a bound, where it takes less than reading the largest of such pods does.
AS_LARGE = {"a tenant places a pod with as many as are looked at": "a tenant places a pod with many containers"}


def measured(requests: Iterable[Request], of: Sequence[Json] | None = None) -> list[Answer]:
    return ask([replace(one, measured=MEASURED) for one in requests], policies() if of is None else of)


def test_the_objects_are_as_large_as_they_may_be() -> None:
    most = many()
    for notes in (most, LONG["metadata"]["annotations"]):
        size = sum(len(key) + len(value) for key, value in notes.items())
        assert MOST_BYTES - 7000 < size <= MOST_BYTES
    assert len(most) > 80000


@pytest.mark.parametrize("name", REQUESTS)
def test_a_large_object_costs_in_proportion_to_its_size(name: str) -> None:
    one, like = measured([REQUESTS[name], REQUESTS[AS_LARGE.get(name, name)]])
    assert one.seconds <= MOST * like.reading, (one, like)


@pytest.mark.parametrize("name", IN_CLUSTER)
def test_so_it_does_where_the_daemons_are_pods(name: str) -> None:
    one, like = measured([IN_CLUSTER[name], IN_CLUSTER[AS_LARGE.get(name, name)]], policies_in_cluster())
    assert one.seconds <= MOST * like.reading, (one, like)


def test_so_does_the_largest() -> None:
    (one,) = measured([Request(TENANT, "pods", pod(many()))])
    assert one.seconds <= MOST * one.reading, one


def test_long_annotations_cost_what_none_do() -> None:
    small, long = measured([Request(TENANT, "pods", SMALL), Request(TENANT, "pods", LONG)])
    assert long.seconds <= MOST * small.seconds
