# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Of one node at most one state a second is read, the last one; what the cache knows at the end is what the API server has."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.core.node_ledger import NodeRecord
from gpushare_runtime.core.node_report import Held, HeldEntry
from gpushare_runtime.core.objects import NodeTexts, node_texts
from gpushare_runtime.extender.cache import FORCED_SECONDS, ClusterCache
from gpushare_runtime.extender.metrics import families
from gpushare_runtime.extender.node_states import NodeStates, condensed, read
from gpushare_runtime.kube.reflector import Reflector
from unit.fakes.runtime.extender.bound_pods import allocated_pod
from unit.fakes.runtime.kube.fake_api import until
from unit.fakes.runtime.pods import inventory


def raw(name: str, *gpus: int, held: Held | None = None) -> dict[str, Any]:
    said = {"gpushare/held": held.to_json()} if held else {}
    return {"metadata": {"name": name, "annotations": {"gpushare/gpus": inventory(*gpus).to_json(), **said}}}


class Watched:
    """A cache, and the watch of nodes that feeds it."""

    def __init__(self) -> None:
        self.now = 0.0
        self.cluster = ClusterCache(clock=lambda: self.now)
        self.nodes: Reflector[NodeTexts] = self.cluster.watches(None)[0]  # type: ignore[arg-type]

    def event(self, kind: str, node: dict[str, Any]) -> None:
        item = self.nodes._take(node)
        assert item is not None
        self.nodes._on_event(kind, item)

    def listed(self, *nodes: dict[str, Any]) -> None:
        self.nodes._on_replace([item for item in map(self.nodes._take, nodes) if item is not None])

    def second(self) -> None:
        for _ in self.cluster.node_states.end_of_second():
            pass

    def units(self, name: str = "n") -> int | None:
        node = self.cluster.ledger.node(name)
        return node.inventory.units if node is not None and node.inventory is not None else None


def test_a_node_that_writes_all_the_time_is_read_once_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    it, read_of = Watched(), []
    parse = Inventory.from_json
    monkeypatch.setattr(Inventory, "from_json", lambda text: (read_of.append(text), parse(text))[1])
    it.listed(raw("n", 1))
    for seconds in range(1, 4):
        read_of.clear()
        for number in range(100):
            it.event("MODIFIED", raw("n", 100 * seconds + number))
        it.event("MODIFIED", raw("quiet", 7 + seconds))
        assert it.units("quiet") == 7 + seconds, "who is quiet is read at once"
        it.second()
        assert it.units() == 100 * seconds + 99, "the last one counts"
        assert len(read_of) <= 3, "the first, the last, and that of the other node"
        it.second()
    assert it.cluster.node_states.skipped == {"n": 3 * 98}


def test_a_state_in_which_nothing_of_ours_differs_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    it, read_of = Watched(), []
    parse = Inventory.from_json
    monkeypatch.setattr(Inventory, "from_json", lambda text: (read_of.append(text), parse(text))[1])
    it.event("ADDED", raw("n", 1))
    for beat in range(3):
        it.second()
        it.event("MODIFIED", {"metadata": {**raw("n", 1)["metadata"], "labels": {"beat": str(beat)}}})
    assert len(read_of) == 1
    # Such a state is none of the one that a second has.
    it.event("MODIFIED", raw("n", 2))
    assert it.units() == 2
    it.event("MODIFIED", raw("n", 3))
    it.event("MODIFIED", raw("n", 2))
    it.second()
    assert it.units() == 2, "what waited is older than a state that equals the one before it"
    it.event("DELETED", raw("n", 2))
    it.event("ADDED", raw("n", 2))
    assert it.units() == 2


def test_the_states_that_were_not_read_are_counted_by_node() -> None:
    it = Watched()
    it.listed(raw("n", 1), raw("m", 1))
    for number in range(5):
        it.event("MODIFIED", raw("n", 2 + number))

    def skipped() -> dict[str, float]:
        (found,) = (each for each in families(it.cluster) if each.name == "gpushare_extender_node_states_skipped")
        return {sample.labels["node"]: sample.value for sample in found.samples}

    assert skipped() == {"n": 3, "m": 0}
    it.listed(raw("n", 1), raw("m", 1))
    assert skipped() == {"n": 3, "m": 0}
    it.event("DELETED", raw("n", 1))
    assert (skipped(), dict(it.cluster.node_states.skipped)) == ({"m": 0}, {})
    it.event("MODIFIED", raw("m", 2))
    it.event("MODIFIED", raw("m", 3))
    it.event("MODIFIED", raw("m", 4))
    it.listed()
    assert dict(it.cluster.node_states.skipped) == {}, "nothing stays of a node that is gone"


def test_what_is_gone_is_so_at_once_and_what_comes_again_too() -> None:
    it = Watched()
    it.event("ADDED", raw("n", 1))
    it.event("MODIFIED", raw("n", 2))
    it.event("DELETED", raw("n", 2))
    assert it.units() is None
    it.second()
    assert it.units() is None, "what waited is not its state any more"
    for size in (3, 4):
        it.event("ADDED", raw("n", size))
        assert it.units() == size
        it.event("DELETED", raw("n", size))


def test_a_list_is_newer_than_what_waits() -> None:
    it = Watched()
    it.event("ADDED", raw("n", 1))
    it.event("MODIFIED", raw("n", 2))
    it.listed(raw("n", 3))
    assert it.units() == 3
    it.second()
    assert it.units() == 3


def test_a_nodes_word_counts_before_the_wait_for_it_is_over() -> None:
    """A pod that was deleted by force keeps its GPUs until its node has reported what is left of it."""
    it = Watched()
    it.listed(raw("n", 16))
    it.cluster.pod_event("ADDED", allocated_pod("a"))
    it.cluster.pod_event("DELETED", replace(allocated_pod("a"), alive=True))
    entry = HeldEntry(inventory(16).gpus[0].uuid, "a", "default/a", 8, "orphaned")
    it.event("MODIFIED", raw("n", 16))
    it.event("MODIFIED", raw("n", 16, held=Held((entry,))))
    it.now = FORCED_SECONDS
    it.cluster.expire()
    node = it.cluster.ledger.nodes["n"]
    assert (node.free, it.cluster.ledger.held_until) == (8, set()), "nobody got its GPUs in between"


def test_a_fault_in_reading_one_node_concerns_that_node(caplog: pytest.LogCaptureFixture) -> None:
    """Of a kind that nobody has thought of."""

    class Odd(NodeTexts):
        def read(self) -> NodeRecord:
            raise ArithmeticError if self.gpus else super().read()

    record = read(NodeTexts("n", gpus=7))  # type: ignore[arg-type]
    assert (record.name, record.inventory, record.error) == (
        "n",
        None,
        "metadata cannot be read; the log of gpushare-extender has the error",
    )
    assert [one.message for one in caplog.records] == ["cannot read the annotations of node n"]


async def test_every_second_what_waits_is_taken_and_others_run_in_between() -> None:
    it = Watched()
    names = [f"n{number}" for number in range(50)]
    for size in (1, 2):
        for name in names:
            it.event("MODIFIED", raw(name, size))
    assert {it.units(name) for name in names} == {1}
    seen: set[int] = set()

    async def others() -> None:
        while True:
            seen.add(sum(it.units(name) == 2 for name in names))
            await asyncio.sleep(0)

    tasks = [asyncio.create_task(it.cluster.expire_for_ever()), asyncio.create_task(others())]
    try:
        await until(lambda: {it.units(name) for name in names} == {2})
    finally:
        for task in tasks:
            task.cancel()
    assert len(seen) > 10


STEPS = st.one_of(
    st.tuples(st.sampled_from(["ADDED", "MODIFIED", "DELETED"]), st.sampled_from("mn"), st.integers(1, 5)),
    st.tuples(st.just("second"), st.just(""), st.just(0)),
    st.tuples(st.just("list"), st.sampled_from(["", "m", "n", "mn"]), st.integers(1, 5)),
)


@given(st.lists(STEPS, max_size=20))
def test_whatever_happens_the_last_state_is_known_after_a_second(steps: list[tuple[str, str, int]]) -> None:
    it = Watched()
    expected: dict[str, int] = {}
    reads: Counter[str] = Counter()
    it.cluster.node_states._take = lambda kind, record: (reads.update([record.name]), it.cluster.node_event(kind, record))[1]
    for kind, name, size in [*steps, ("second", "", 0)]:
        if kind == "second":
            reads.clear()
            it.second()
            assert {one: it.units(one) for one in "mn"} == {one: expected.get(one) for one in "mn"}
        elif kind == "list":
            expected = dict.fromkeys(name, size)
            it.listed(*(raw(one, size) for one in name))
            reads = Counter({one: count for one, count in reads.items() if one in name})
            assert {one: it.units(one) for one in "mn"} == {one: expected.get(one) for one in "mn"}
        elif kind == "DELETED":
            expected.pop(name, None)
            it.event(kind, raw(name, size))
            del reads[name]
            assert it.units(name) is None
        else:
            expected[name] = size
            it.event(kind, raw(name, size))
            assert it.units(name) is not None, "the first state of a node is known at once"
        assert all(count <= 1 for count in reads.values())


def test_of_a_list_no_texts_stay_while_it_is_read() -> None:
    listed = [condensed(node_texts(raw("n", 16))), condensed(node_texts(raw("broken", 16) | {"metadata": {"name": "broken"}}))]
    assert [(one.name, one.gpus, one.held, one.evictions) for one in listed] == [("n", None, None, None), ("broken", None, None, None)]
    assert NodeStates(lambda kind, record: None).replace(listed) == [NodeRecord("n", inventory(16)), NodeRecord("broken", None)]


def test_the_texts_are_those_of_ours() -> None:
    node = raw("n", 16)
    node["metadata"]["annotations"]["others"] = "x"
    node["metadata"]["labels"] = {"aliyun.accelerator/nvidia_name": "T4", "ack.node.gpu.placement": "spread", "others": "y"}
    assert node_texts(node) == NodeTexts("n", inventory(16).to_json(), None, "T4", "spread")
    assert node_texts({"metadata": {"name": "n"}}) == NodeTexts("n")
    taken: list[tuple[str, NodeRecord]] = []
    NodeStates(lambda kind, record: taken.append((kind, record))).event("ADDED", node_texts(node))
    assert taken == [("ADDED", NodeRecord("n", inventory(16), model="T4", placement="spread"))]
