# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What is said to pods that can never run."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.core.node_ledger import NodeRecord
from gpushare_runtime.core.objects import PodReader
from gpushare_runtime.core.placement.explain import Largest, largest_of
from gpushare_runtime.core.pods import InvalidPod, PendingPod
from gpushare_runtime.core.protocol import EVENT_INVALID, EVENT_TOO_LARGE, EVENT_UNSUPPORTED
from gpushare_runtime.core.quantity import GIB, parse_unit
from gpushare_runtime.extender.cache import ClusterCache
from gpushare_runtime.extender.diagnosis import Advisor, advise
from gpushare_runtime.kube.events import ObjectReference
from unit.fakes.runtime.extender import virtual
from unit.fakes.runtime.pods import container, gpu, inventory, pod

LARGEST = Largest(GIB, 24, 2)


def pending(*containers: dict[str, object], uid: str = "u", **metadata: object) -> PendingPod | InvalidPod:
    record = PodReader()(pod(*containers, uid=uid, **metadata))
    assert isinstance(record, (PendingPod, InvalidPod))
    return record


class Recorder:
    """Keeps what is emitted."""

    def __init__(self) -> None:
        self.said: list[tuple[str, str, str]] = []

    def emit(self, about: ObjectReference, type: str, reason: str, message: str) -> None:
        assert (about.kind, about.namespace, type) == ("Pod", "default", "Warning")
        self.said.append((about.uid, reason, message))


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ("10G", "10G means 10000000000 units of 1 GiB; the largest GPU has 24; write 10"),
        ("8192", "8192 means 8192 units of 1 GiB; the largest GPU has 24; write 8"),
        ("25", "25 means 25 units of 1 GiB; the largest GPU has 24; write at most 24"),
    ],
)
def test_memory(asked: str, said: str) -> None:
    assert advise(pending(container(mem=asked)), LARGEST) == (EVENT_TOO_LARGE, said)


def test_what_fits_on_an_empty_cluster_gets_no_advice() -> None:
    for fits in (container(mem=24), container(count=2)):
        assert advise(pending(fits), LARGEST) is None


def test_several_containers() -> None:
    assert advise(pending(container("a", mem=20), container("b", mem=20)), LARGEST) == (
        EVENT_TOO_LARGE,
        "the pod's containers ask for 40 units of 1 GiB together, which must be on one GPU; "
        "the largest GPU has 24; write at most 24 in total",
    )
    advice = advise(pending(container("a", mem=1), container("b", mem="10G")), LARGEST)
    assert advice is not None
    assert advice[1].startswith("container 'b': 10G means")


def test_whole_gpus() -> None:
    advice = advise(pending(container(count=3)), LARGEST)
    assert advice == (
        EVENT_TOO_LARGE,
        "3 whole GPUs of one node are asked for (aliyun.com/gpu-count); the largest node has 2; write at most 2",
    )


def test_memory_on_several_gpus() -> None:
    def several(units: int, gpus: int) -> tuple[str, str] | None:
        return advise(pending(container(mem=units), labels={"aliyun.com/gpu-count": str(gpus)}), LARGEST)

    assert several(48, 2) is None
    assert several(3, 3) == (
        EVENT_TOO_LARGE,
        "the pod label aliyun.com/gpu-count: '3' asks for memory on so many GPUs of one node; the largest node has 2; write at most 2",
    )
    assert several(50, 2) == (
        EVENT_TOO_LARGE,
        "the pod label aliyun.com/gpu-count: '2' spreads 50 units of 1 GiB, 25 on each GPU; the largest GPU has 24; "
        "write at most 48 in total, or more GPUs",
    )


def test_invalid_and_unsupported_need_no_inventory() -> None:
    advice = advise(pending(container(mem=1, count=1)), None)
    assert advice is not None
    assert advice[0] == EVENT_INVALID
    assert "at once" in advice[1]
    advice = advise(pending(container(mem=2), init=[container("warm", mem=4)], labels={"aliyun.com/gpu-count": "2"}), None)
    assert advice is not None
    assert advice[0] == EVENT_UNSUPPORTED
    assert "at random" in advice[1]


def test_sizes_wait_for_the_inventories() -> None:
    assert advise(pending(container(mem="10G")), None) is None


def test_largest() -> None:
    assert largest_of([]) is None
    assert largest_of([Inventory(GIB, ())]) is None
    broken = Inventory(GIB, (gpu(0, 80, health="XID 79"),))
    small_units = Inventory(parse_unit("256MiB"), (gpu(0, 90), gpu(1, 90), gpu(2, 90)))
    assert largest_of([inventory(16, 24), broken]) == Largest(GIB, 80, 2)
    assert largest_of([inventory(16, 24), small_units]) == Largest(GIB, 24, 3)


def test_once_per_pod_and_wording() -> None:
    async def run() -> None:
        cluster, recorder = ClusterCache(), Recorder()
        task = asyncio.create_task(Advisor(cluster, recorder).run())  # type: ignore[arg-type]
        cluster.pod_event("ADDED", pending(container(mem="10G"), uid="a"))
        await asyncio.sleep(5)
        assert recorder.said == []
        cluster.replace_nodes([NodeRecord("n", inventory(16, 24))])
        await asyncio.sleep(5)
        cluster.pod_event("MODIFIED", pending(container(mem="10G"), uid="a"))
        cluster.pod_event("ADDED", pending(container(mem="10G"), uid="b"))
        cluster.pod_event("ADDED", pending(container(mem="1"), uid="fine"))
        await asyncio.sleep(5)
        assert [(uid, message[-8:]) for uid, _, message in recorder.said] == [("a", "write 10"), ("b", "write 10")]
        cluster.node_event("MODIFIED", NodeRecord("n", inventory(8)))
        await asyncio.sleep(5)
        assert len(recorder.said) == 4
        assert recorder.said[-1][2].endswith("the largest GPU has 8; write at most 8")
        # With a larger node what was too large is so no more.
        cluster.pod_event("ADDED", pending(container(mem="9"), uid="c"))
        await asyncio.sleep(5)
        cluster.node_event("ADDED", NodeRecord("large", inventory(24)))
        await asyncio.sleep(5)
        cluster.pod_event("ADDED", pending(container(mem="25"), uid="d"))
        await asyncio.sleep(5)
        assert [(uid, message.split()[-1]) for uid, _, message in recorder.said if uid in "cd"] == [("c", "8"), ("d", "24")]
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    virtual.run(run())


def test_what_is_just_right_is_no_mistake() -> None:
    two = {"labels": {"aliyun.com/gpu-count": "2"}}
    for asked, said in (
        (pending(container("a", mem=12), container("b", mem=12)), None),
        (pending(container("a", mem=12), container("b", mem=13)), "together, which must be on one GPU"),
        (pending(container(mem=48), **two), None),
        (pending(container(mem=4), container("b", mem=44), **two), None),
        (pending(container("a", mem=2), init=[container("i", mem=25)]), "container 'i': 25 means 25 units"),
    ):
        advice = advise(asked, LARGEST)
        assert (advice is None) == (said is None)
        assert advice is None or said in advice[1]


def test_the_first_of_equal_gpus_says_the_unit_and_every_node_counts() -> None:
    mib = Inventory(parse_unit("MiB"), (gpu(0, 24 * 1024),))
    assert largest_of([inventory(24), mib]) == Largest(GIB, 24, 1)
    assert largest_of([mib, inventory(24)]) == Largest(parse_unit("MiB"), 24 * 1024, 1)
    assert largest_of([inventory(8, 8, 8), inventory(16), Inventory(GIB, ())]) == Largest(GIB, 16, 3)


def test_a_pod_that_comes_again_is_told_again_and_all_is_looked_at_once_a_second() -> None:
    async def run() -> None:
        cluster, recorder, reviews = ClusterCache(), Recorder(), []
        cluster.replace_nodes([NodeRecord("n", inventory(16)), NodeRecord("broken", None, "odd")])
        advisor = Advisor(cluster, recorder)  # type: ignore[arg-type]
        review = advisor.review

        def noted() -> None:
            reviews.append(asyncio.get_running_loop().time())
            review()

        advisor.review = noted  # type: ignore[method-assign]
        task = asyncio.create_task(advisor.run())
        for _ in range(2):
            cluster.pod_event("ADDED", pending(container(mem=17), uid="a"))
            await asyncio.sleep(2)
            cluster.pod_event("DELETED", pending(container(mem=17), uid="a"))
            cluster.changed.set()
            await asyncio.sleep(2)
        assert [uid for uid, _, _ in recorder.said] == ["a", "a"]
        assert reviews == [0, 2, 4, 6]
        cluster.changed.set()
        await asyncio.sleep(0.5)
        cluster.changed.set()
        await asyncio.sleep(3)
        assert reviews[4:] == [8, 9]
        task.cancel()

    virtual.run(run())
