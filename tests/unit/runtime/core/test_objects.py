# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Raw pods and nodes → what the extender keeps of them."""

from __future__ import annotations

import gc
import json
import tracemalloc
from typing import Any

import pytest

from gpushare_runtime.core import objects, protocol
from gpushare_runtime.core.allocation import Allocation
from gpushare_runtime.core.node_ledger import NodeRecord
from gpushare_runtime.core.objects import PodReader, read_node, unreadable_node, unreadable_pod
from gpushare_runtime.core.overuse import EvictionRequest, Evictions
from gpushare_runtime.core.pods import AllocatedPod, FinishedPod, InvalidPod, PendingPod
from gpushare_runtime.extender.cache import FORCED_SECONDS, ClusterCache
from unit.fakes.runtime.pods import container, inventory, pod


def bound(*containers: dict[str, Any], phase: str = "Running", **metadata: Any) -> dict[str, Any]:
    raw = pod(*containers, uid="u", **metadata)
    raw["spec"]["nodeName"] = "n"
    raw["status"] = {"phase": phase}
    return raw


def test_a_pod_that_asks_for_nothing_is_not_kept() -> None:
    assert PodReader()(pod(container(), uid="u")) is None
    assert PodReader()(bound(container())) is None


def test_pending() -> None:
    record = PodReader()(pod(container(mem=8), uid="u"))
    assert isinstance(record, PendingPod)
    assert (record.uid, record.namespace, record.name, record.request.units) == ("u", "default", "p", 8)


def test_pods_whose_cpu_stands_elsewhere_have_requests_of_their_own() -> None:
    """What was read of a pod is used again for those that ask alike."""
    reader, raw = PodReader(), pod(container(mem=8), uid="u")
    cpus = []
    for more in ({}, {"overhead": {"cpu": "1"}}, {"resources": {"requests": {"cpu": "2"}}}):
        raw["spec"] |= more
        record = reader(raw)
        assert isinstance(record, PendingPod)
        cpus.append(record.request.cpu)
    assert cpus == [0, 1000, 3000]


def test_names_that_many_pods_repeat_are_in_memory_once() -> None:
    reader, text = PodReader(), json.dumps(bound(container(mem=8)))
    first, second = (reader(json.loads(text)) for _ in range(2))
    assert isinstance(first, AllocatedPod)
    assert isinstance(second, AllocatedPod)
    assert first.namespace is second.namespace
    assert first.node is second.node


def test_pending_with_a_request_that_cannot_be_meant() -> None:
    record = PodReader()(pod(container(mem=8, count=1), uid="u"))
    assert isinstance(record, InvalidPod)
    assert "at once" in record.error


def test_bound_with_both_forms_of_the_allocation() -> None:
    json_form = {protocol.ANNOTATION_ALLOCATION: '{"0":{"1":8}}'}
    old_form = {protocol.ANNOTATION_INDEX: "1", protocol.ANNOTATION_POD_UNITS: "8", protocol.ANNOTATION_GPU_UNITS: "16"}
    for form in (json_form, old_form, old_form | json_form):
        record = PodReader()(bound(container(mem=8), annotations=form))
        assert isinstance(record, AllocatedPod)
        assert (record.node, record.allocation) == ("n", Allocation.of({0: {1: 8}}))


def test_a_bound_pod_without_a_gpu_holds_all_the_same() -> None:
    record = PodReader()(bound(container(mem=8)))
    assert isinstance(record, AllocatedPod)
    assert record.allocation is None


def test_what_is_bound_counts_also_where_it_would_be_rejected() -> None:
    record = PodReader()(bound(container(mem=8, count=1), labels={protocol.LABEL_GPUS_PER_POD: "many"}))
    assert isinstance(record, AllocatedPod)
    assert record.whole


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_finished_pod_releases(phase: str) -> None:
    assert PodReader()(bound(container(mem=8), phase=phase)) == FinishedPod("u")


@pytest.mark.parametrize(
    ("states", "alive"), [([], False), (["terminated"], False), (["waiting", "terminated"], False), (["terminated", "running"], True)]
)
def test_a_pod_that_was_failed_before_its_containers_were_ended(states: list[str], alive: bool) -> None:
    """kubelet 1.20 and 1.21 do so at an eviction, or when the node shuts down."""
    raw = bound(container(mem=8), phase="Failed")
    raw["status"]["containerStatuses"] = [{"name": "c", "state": {state: {}}} for state in states]
    assert PodReader()(raw) == FinishedPod("u", alive)


def test_deletion_under_way_does_not_release() -> None:
    record = PodReader()(bound(container(mem=8), deletionTimestamp="2026-01-01T00:00:00Z"))
    assert isinstance(record, AllocatedPod)


@pytest.mark.parametrize(
    ("statuses", "alive"),
    [
        # Bound a moment ago: kubelet may admit it although it is deleted.
        ({}, True),
        ({"containerStatuses": [{"state": {"running": {}}}]}, True),
        ({"containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}}]}, True),
        ({"containerStatuses": [{"state": {"terminated": {}}}], "initContainerStatuses": [{"state": {"terminated": {}}}]}, False),
        ({"containerStatuses": [{"state": {"terminated": {}}}], "initContainerStatuses": [{"state": {"running": {}}}]}, True),
    ],
)
def test_whether_containers_of_a_pod_that_kubelet_ends_may_be_running(statuses: dict[str, Any], alive: bool) -> None:
    raw = bound(container(mem=8), deletionTimestamp="2026-01-01T00:00:00Z")
    raw["status"] |= statuses
    record = PodReader()(raw)
    assert isinstance(record, AllocatedPod)
    assert record.alive is alive


def test_what_has_ended_may_run_again_until_kubelet_ends_the_pod() -> None:
    """kubelet starts it again within milliseconds, and its word of that comes later than a deletion by force."""
    raw = bound(container(mem=8))
    raw["status"]["containerStatuses"] = [{"state": {"terminated": {"exitCode": 1}}}]
    record = PodReader()(raw)
    assert isinstance(record, AllocatedPod)
    assert record.alive


def test_broken_annotations_are_said_once() -> None:
    raw = bound(container(mem=8), annotations={protocol.ANNOTATION_ALLOCATION: "{"})
    complaints: list[str] = []
    reader = PodReader(complaints.append)
    for _ in range(3):
        record = reader(raw)
        assert isinstance(record, AllocatedPod)
        assert record.allocation is None
    assert len(complaints) == 1
    assert "pod default/p on node n: scheduler.framework.gpushare.allocation is not JSON" in complaints[0]


def test_only_its_node_can_say_what_a_static_pod_has() -> None:
    """Who may set spec.nodeName may also write the annotation by which a pod is the copy of a static one, and ours beside it."""
    for mirror in ("", "0123456789abcdef"):
        record = PodReader()(bound(container(mem=8), annotations={"kubernetes.io/config.mirror": mirror, "ALIYUN_COM_GPU_MEM_IDX": "0"}))
        assert isinstance(record, AllocatedPod)
        assert (record.mirror, record.allocation) == (True, None)
    record = PodReader()(bound(container(mem=8), annotations={"ALIYUN_COM_GPU_MEM_IDX": "0"}))
    assert isinstance(record, AllocatedPod)
    assert not record.mirror


def test_requests_for_evictions_are_read_from_the_node_and_their_fault_is_no_fault_of_its_gpus() -> None:
    evictions = Evictions((EvictionRequest("u", 0, 9000, 8192, 60),), 1_700_000_000)
    gpus = inventory(16)
    for text, read in (
        (evictions.to_json(), evictions),
        ("", Evictions()),
        ('{"v":1,"pods":7}', Evictions(error="annotation gpushare/evictions cannot be used: pods must be list, found 7")),
    ):
        annotations = {"gpushare/gpus": gpus.to_json(), "gpushare/evictions": text}
        record = read_node({"metadata": {"name": "n", "annotations": annotations}})
        assert (record.evictions, record.inventory, record.error) == (read, gpus, "")
        assert record == NodeRecord("n", gpus), "nothing that the ledger has to take"


def test_more_than_any_machine_has_is_counted_as_that() -> None:
    """What JSON can write ends at 64 bits, and a bound pod was perhaps checked by nobody."""
    record = PodReader()(bound(*(container(f"c{n}", mem=2**63 - 1, count=2**63 - 1, core=2**63 - 1) for n in range(3))))
    assert isinstance(record, AllocatedPod)
    assert (record.request.units, record.request.whole_gpus, record.request.core) == (3 * (2**31 - 1),) * 3


def test_what_asks_with_too_many_containers_is_rejected_or_left_to_its_node() -> None:
    for count, fine in ((64, True), (65, False), (5000, False)):
        containers = [container(f"c{n}", mem=1) for n in range(count)]
        waiting, complaints = PodReader()(pod(*containers, container("asks for nothing"), uid="u")), list[str]()
        assert isinstance(waiting, PendingPod if fine else InvalidPod)
        assert isinstance(PodReader(complaints.append)(bound(*containers)), AllocatedPod) == fine
    assert isinstance(waiting, InvalidPod)
    assert waiting.error == "more than 64 containers of the pod ask for a part of a GPU; write at most so many"
    assert "pod default/p on node n is left out of the ledger: more than 64 containers" in complaints[0]


@pytest.mark.parametrize("how", ["too many containers", "not at all"])
def test_a_running_pod_that_cannot_be_read_any_more_keeps_its_gpu_until_its_node_can_have_spoken(how: str) -> None:
    """As one whose processes may live on: the node says in gpushare/held what such a pod has."""
    now = 0.0
    cluster, reader = ClusterCache(clock=lambda: now), PodReader()
    cluster.node_event("ADDED", NodeRecord("n", inventory(16)))

    def see(raw: dict[str, Any], *, running: bool = True) -> None:
        raw["status"]["containerStatuses"] = [{"state": {"running": {}} if running else {"terminated": {}}}]
        record = reader(raw) if how == "too many containers" or raw is good else unreadable_pod(raw)
        assert record is not None
        cluster.pod_event("MODIFIED", record)

    good = bound(container(mem=8), annotations={"ALIYUN_COM_GPU_MEM_IDX": "0"})
    bad = bound(*(container(f"c{n}", mem=1) for n in range(65)))
    see(good)
    see(bad)
    now = FORCED_SECONDS - 0.1
    see(bad)
    cluster.expire()
    assert cluster.ledger.nodes["n"].free == 8
    now = FORCED_SECONDS
    cluster.expire()
    assert cluster.ledger.nodes["n"].free == 16
    if how == "too many containers":
        for phase, ends in (("Succeeded", {}), ("Running", {"deletionTimestamp": "2026-01-01T00:00:00Z"})):
            see(good)
            bad["status"]["phase"] = phase
            bad["metadata"] |= ends
            see(bad, running=False)
            assert cluster.ledger.nodes["n"].free == 16, "by its status it has ended"


def test_pods_that_came_and_went_leave_little_behind() -> None:
    """What is kept once for many pods is bounded by its size as well as by its number."""
    reader = PodReader()

    tracemalloc.start()
    for number in range(50):
        labels = {f"l{n}": f"{number}-{n}" for n in range(2000)}
        rules = {"gpushare.request/gpus": ",".join(f"GPU-{number}-{n}" for n in range(60))}
        assert reader(pod(container(mem=8), uid=f"u{number}", labels=labels, annotations=rules))
    del labels, rules
    gc.collect()
    left, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert left < 4 * 1024 * 1024, "each has 200 kB of its own"


def test_what_cannot_be_read_at_all_stands_for_what_was_known() -> None:
    assert unreadable_pod({"metadata": {"uid": "u"}, "spec": 1}) == FinishedPod("u", alive=True)
    record = unreadable_node({"metadata": {"name": "n", "annotations": 1}}).read()
    assert (record.name, record.inventory, bool(record.error)) == ("n", None, True)


def test_alike_pods_share_their_request_and_allocation() -> None:
    annotations = {protocol.ANNOTATION_ALLOCATION: '{"0":{"1":8}}'}
    reader = PodReader()
    one, two = reader(bound(container(mem=8), annotations=annotations)), reader(bound(container(mem=8), annotations=annotations))
    assert isinstance(one, AllocatedPod)
    assert isinstance(two, AllocatedPod)
    assert one.request is two.request
    assert one.allocation is two.allocation


def test_what_is_remembered_of_a_pod_is_not_given_to_one_that_differs() -> None:
    """One reader of all of these in any order finds what a fresh one finds of each."""
    init = {"init": [container("i", mem=4)]}
    sidecar = {"init": [{**container("i", mem=4), "restartPolicy": "Always"}]}
    pods = [
        bound(container(mem=8)),
        bound(container(mem=8), container("c")),
        bound(container(mem="8")),
        bound(container("other", mem=8)),
        bound(container(mem=8), **init),
        bound(container(mem=8), **sidecar),
        bound(container(mem=8), labels={protocol.LABEL_GPUS_PER_POD: "2"}),
        bound(container(mem=8), labels={protocol.LABEL_GPUS_PER_POD: "4"}),
        bound(container(mem=8), labels={"app": "a"}),
        bound(container(mem=8), annotations={protocol.ASK_NOT_WITH: "app=a"}),
        bound(container(mem=8), annotations={protocol.ASK_NOT_WITH: "app=b"}),
        bound(container(mem=8), annotations={protocol.ANNOTATION_ALLOCATION: '{"0":{"1":8}}'}),
        bound(container(mem=9), annotations={protocol.ANNOTATION_ALLOCATION: '{"0":{"1":8}}'}),
        bound(container(mem=8), annotations={protocol.ANNOTATION_ALLOCATION: '{"0":{"2":8}}'}),
        bound(container(count=1)),
        bound(container(mem=0)),
        bound(container(mem=-1)),
        bound(container()),
    ]
    fresh = [PodReader()(one) for one in pods]
    assert len({repr(record) for record in fresh}) >= len(pods) - 3, "they do differ"
    reader = PodReader()
    for _ in range(2):
        assert [reader(one) for one in pods] == fresh
        assert [reader(one) for one in reversed(pods)] == fresh[::-1]


def test_a_pod_is_left_out_unread_only_without_a_name_of_ours() -> None:
    assert all(name.startswith(objects._RESOURCES) for name in protocol.RESOURCES)


def test_nodes() -> None:
    def node(**annotations: str) -> dict[str, Any]:
        return {"metadata": {"name": "n", "annotations": annotations}}

    gpus = inventory(16, 24)
    assert read_node(node(**{protocol.ANNOTATION_GPUS: gpus.to_json()})) == NodeRecord("n", gpus)
    assert read_node(node()) == NodeRecord("n", None)
    assert read_node({"metadata": {"name": "n"}}) == NodeRecord("n", None)
    broken = read_node(node(**{protocol.ANNOTATION_GPUS: "{"}))
    assert broken.inventory is None
    assert "not JSON" in broken.error


def test_a_waiting_pod_that_cannot_be_meant_waits_no_more_once_it_is_bound_or_gone() -> None:
    cluster, reader = ClusterCache(), PodReader()
    containers = [container(f"c{n}", mem=1) for n in range(65)]
    for raw in (bound(*containers), pod(*containers, uid="u")):
        for kind, after in (("ADDED", pod(*containers, uid="u")), ("MODIFIED" if "nodeName" in raw["spec"] else "DELETED", raw)):
            record = reader(after)
            assert record is not None
            cluster.pod_event(kind, record)
        assert not cluster.pending


def test_what_was_read_of_one_pod_is_not_taken_for_another() -> None:
    """Equal annotations mean something else for another request."""
    said = {"ALIYUN_COM_GPU_MEM_IDX": "1", "ALIYUN_COM_GPU_MEM_DEV": "16"}
    read = PodReader()
    found = []
    for uid, limits in (("a", {"mem": 2}), ("b", {"mem": 3}), ("c", {"count": 1}), ("d", {"mem": 2})):
        raw = pod(container(**limits), uid=uid, annotations=said)
        raw["spec"]["nodeName"] = "n"
        one = read(raw)
        assert isinstance(one, AllocatedPod)
        assert one.allocation is not None
        found.append(dict(one.allocation.by_gpu))
    assert found == [{1: 2}, {1: 3}, {1: 16}, {1: 2}]
    broken = pod(container(mem=2), uid="e", annotations={**said, "ALIYUN_COM_GPU_MEM_POD": "9"})
    broken["spec"]["nodeName"] = "n"
    one = read(broken)
    assert isinstance(one, AllocatedPod)
    assert one.allocation is None
