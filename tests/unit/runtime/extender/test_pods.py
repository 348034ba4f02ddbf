# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Raw pods and nodes → what the extender keeps of them."""

from __future__ import annotations

from typing import Any

import pytest

from gpushare_runtime import protocol
from gpushare_runtime.allocation import Allocation
from gpushare_runtime.extender.pods import FinishedPod, NodeRecord, PendingPod, PodReader, read_node
from gpushare_runtime.ledger import Holder
from unit.runtime.pods import container, inventory, pod


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
    assert record.request is not None
    assert (record.uid, record.namespace, record.name, record.request.units, record.error) == ("u", "default", "p", 8, "")


def test_pending_with_a_request_that_cannot_be_meant() -> None:
    record = PodReader()(pod(container(mem=8, count=1), uid="u"))
    assert isinstance(record, PendingPod)
    assert record.request is None
    assert "at once" in record.error


def test_bound_with_both_forms_of_the_allocation() -> None:
    json_form = {protocol.ANNOTATION_ALLOCATION: '{"0":{"1":8}}'}
    old_form = {protocol.ANNOTATION_INDEX: "1", protocol.ANNOTATION_POD_UNITS: "8", protocol.ANNOTATION_CARD_UNITS: "16"}
    for form in (json_form, old_form, old_form | json_form):
        record = PodReader()(bound(container(mem=8), annotations=form))
        assert isinstance(record, Holder)
        assert (record.node, record.allocation) == ("n", Allocation.of({0: {1: 8}}))


def test_a_bound_pod_without_a_card_holds_all_the_same() -> None:
    record = PodReader()(bound(container(mem=8)))
    assert isinstance(record, Holder)
    assert record.allocation is None


def test_what_is_bound_counts_also_where_it_would_be_refused() -> None:
    record = PodReader()(bound(container(mem=8, count=1), labels={protocol.LABEL_CARDS_PER_POD: "many"}))
    assert isinstance(record, Holder)
    assert record.whole


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_finished_pod_releases(phase: str) -> None:
    assert PodReader()(bound(container(mem=8), phase=phase)) == FinishedPod("u")


def test_deletion_under_way_does_not_release() -> None:
    record = PodReader()(bound(container(mem=8), deletionTimestamp="2026-01-01T00:00:00Z"))
    assert isinstance(record, Holder)


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
def test_whether_containers_may_be_running(statuses: dict[str, Any], alive: bool) -> None:
    raw = bound(container(mem=8))
    raw["status"] |= statuses
    record = PodReader()(raw)
    assert isinstance(record, Holder)
    assert record.alive is alive


def test_broken_annotations_are_said_once(caplog: pytest.LogCaptureFixture) -> None:
    raw = bound(container(mem=8), annotations={protocol.ANNOTATION_ALLOCATION: "{"})
    reader = PodReader()
    for _ in range(3):
        record = reader(raw)
        assert isinstance(record, Holder)
        assert record.allocation is None
    assert len(caplog.records) == 1
    assert "pod default/p: scheduler.framework.gpushare.allocation is not JSON" in caplog.text


def test_alike_pods_share_their_request_and_allocation() -> None:
    annotations = {protocol.ANNOTATION_ALLOCATION: '{"0":{"1":8}}'}
    reader = PodReader()
    one, two = reader(bound(container(mem=8), annotations=annotations)), reader(bound(container(mem=8), annotations=annotations))
    assert isinstance(one, Holder)
    assert isinstance(two, Holder)
    assert one.request is two.request
    assert one.allocation is two.allocation


def test_nodes() -> None:
    def node(**annotations: str) -> dict[str, Any]:
        return {"metadata": {"name": "n", "annotations": annotations}}

    cards = inventory(16, 24)
    assert read_node(node(**{protocol.ANNOTATION_CARDS: cards.to_json()})) == NodeRecord("n", cards)
    assert read_node(node()) == NodeRecord("n", None)
    assert read_node({"metadata": {"name": "n"}}) == NodeRecord("n", None)
    broken = read_node(node(**{protocol.ANNOTATION_CARDS: "{"}))
    assert broken.inventory is None
    assert "not JSON" in broken.error
