# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Every container gets the card that the scheduler chose, and both resources are one accounting."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpushare_runtime.device_plugin.checkpoint import Entry
from gpushare_runtime.device_plugin.node import NodeState, Refused
from gpushare_runtime.device_plugin.pods import PodTable, parse_local_pod
from gpushare_runtime.inventory import Inventory
from gpushare_runtime.ledger import Holder, Ledger
from gpushare_runtime.placement import Binpack
from gpushare_runtime.request import parse_request
from unit.runtime.device_plugin.device_manager import RESOURCES, AdmissionError, DeviceManager
from unit.runtime.device_plugin.local_pods import bound, memory, whole
from unit.runtime.pods import card, container, inventory

MEMORY, CARDS = RESOURCES


class Node:
    """The plugin's state under kubelet's device manager, without sockets. `now` is the clock."""

    def __init__(self, cards: Inventory, seed: int = 0) -> None:
        self.now = 1000.0
        self.pods = PodTable()
        self.pods.replace([])
        self.live: set[str] = set()
        self.state = NodeState(self.pods, lambda: self.now, lambda: 1_774_000_000.0 + self.now, lambda: self.live)
        self.state.set_inventory(cards)
        self.manager = DeviceManager(None, self._prefer, self._allocate, seed)
        self.file: tuple[Entry, ...] = ()
        self.manager.write = self._write  # type: ignore[method-assign]
        for resource in RESOURCES:
            self.manager.healthy[resource] = {i for i, good in self.state.devices(resource) if good}

    def _write(self) -> None:
        self.file = tuple(
            Entry(e["PodUID"], e["ContainerName"], e["ResourceName"], frozenset(e["DeviceIDs"]["-1"])) for e in self.manager.entries()
        )
        self.state.holders.set_checkpoint(self.file)

    async def _prefer(self, resource: str, available: list[str], must: list[str], size: int) -> list[str]:
        try:
            return self.state.prefer(resource, available, must, size)[0]
        except Refused as refusal:
            raise AdmissionError(str(refusal)) from None

    async def _allocate(self, resource: str, ids: list[str]) -> dict[str, str]:
        try:
            return dict(self.state.allocate(resource, ids).environment)
        except Refused as refusal:
            raise AdmissionError(str(refusal)) from None

    def see(self, pod: dict[str, Any]) -> dict[str, Any]:
        """The watch shows the pod."""
        self.pods.event("MODIFIED", parse_local_pod(pod))
        return pod

    def admit(self, pod: dict[str, Any]) -> dict[str, dict[str, str]]:
        return asyncio.run(self.manager.admit(pod))

    def delete(self, pod: dict[str, Any]) -> None:
        """The pod ended, kubelet forgot it and the API server removed it."""
        self.manager.active.discard(pod["metadata"]["uid"])
        self.pods.event("DELETED", parse_local_pod(stopped(pod)))

    def force_delete(self, pod: dict[str, Any], *, alive: bool) -> None:
        """The pod object goes at once, and with it kubelet's memory of it; its processes may stay."""
        self.manager.active.discard(pod["metadata"]["uid"])
        if alive:
            self.live.add(pod["metadata"]["uid"])
        self.pods.event("DELETED", parse_local_pod(pod))


def stopped(pod: dict[str, Any]) -> dict[str, Any]:
    """As kubelet reports it before it lets go of a pod."""
    return {**pod, "status": {"phase": "Succeeded", "containerStatuses": [{"state": {"terminated": {}}}]}}


def environment_of(pod: dict[str, Any], cards: Inventory, units: int) -> dict[str, str]:
    """What the container of a pod with one is to read, by its annotations."""
    annotations = pod["metadata"]["annotations"]
    return {
        "NVIDIA_VISIBLE_DEVICES": cards.by_index[int(annotations["ALIYUN_COM_GPU_MEM_IDX"])].uuid,
        "ALIYUN_COM_GPU_MEM_IDX": annotations["ALIYUN_COM_GPU_MEM_IDX"],
        "ALIYUN_COM_GPU_MEM_DEV": annotations["ALIYUN_COM_GPU_MEM_DEV"],
        "ALIYUN_COM_GPU_MEM_POD": annotations["ALIYUN_COM_GPU_MEM_POD"],
        "ALIYUN_COM_GPU_MEM_CONTAINER": str(units),
    }


def test_the_container_reads_what_the_annotations_say() -> None:
    cards = inventory(16, 24)
    node = Node(cards)
    pod = node.see(memory(cards, 1, 8))
    assert node.admit(pod) == {"main": environment_of(pod, cards, 8)}


def test_pods_of_one_size_get_their_own_cards_in_the_order_of_arrival() -> None:
    cards = inventory(16, 16, 16)
    node = Node(cards)
    pods = [node.see(memory(cards, card, 6)) for card in (2, 0, 1, 0)]
    assert [node.admit(pod)["main"]["ALIYUN_COM_GPU_MEM_IDX"] for pod in pods] == ["2", "0", "1", "0"]


def test_two_at_once_get_their_own_cards_before_the_checkpoint_shows_the_first() -> None:
    cards = inventory(16, 16)
    node = Node(cards)
    for index in (1, 0):
        node.see(memory(cards, index, 6))
    free = [i for i, _ in node.state.devices(MEMORY)]
    for index in (1, 0):
        ids, _ = node.state.prefer(MEMORY, free, [], 6)
        assert node.state.allocate(MEMORY, ids).environment["ALIYUN_COM_GPU_MEM_IDX"] == str(index)
        free = [i for i in free if i not in ids]


def test_an_allocation_that_did_not_come_about_is_asked_again() -> None:
    cards = inventory(16, 16)
    node = Node(cards)
    pod = node.see(memory(cards, 1, 6))
    node.manager.failing.add(pod["metadata"]["uid"])
    free = [i for i, _ in node.state.devices(MEMORY)]
    for _ in range(2):
        ids, turn = node.state.prefer(MEMORY, free, [], 6)
        assert turn is not None
        assert turn.pod.uid == pod["metadata"]["uid"]
        node.state.allocate(MEMORY, ids)


def test_containers_of_a_pod_come_in_order_and_before_other_pods() -> None:
    cards = inventory(16, 16)
    node = Node(cards)
    pair = node.see(bound(cards, {0: {0: 4}, 1: {1: 4}}, container("a", mem=4), container("b", mem=4)))
    node.see(memory(cards, 0, 4))
    got = node.admit(pair)
    assert [got[name]["ALIYUN_COM_GPU_MEM_IDX"] for name in ("a", "b")] == ["0", "1"]
    assert [got[name]["ALIYUN_COM_GPU_MEM_POD"] for name in ("a", "b")] == ["8", "8"]


def test_a_pod_with_only_the_annotations_of_the_original_is_steered() -> None:
    cards = inventory(16, 16)
    node = Node(cards)
    pod = memory(cards, 1, 4)
    del pod["metadata"]["annotations"]["scheduler.framework.gpushare.allocation"]
    assert node.admit(node.see(pod))["main"]["ALIYUN_COM_GPU_MEM_IDX"] == "1"


def test_a_pod_that_the_scheduler_did_not_place_leaves_room_for_those_it_placed() -> None:
    cards = inventory(16, 16)
    node = Node(cards)
    stray = node.see(memory(None, 0, 10))
    placed = node.see(memory(cards, 0, 16))
    assert node.admit(stray)["main"]["ALIYUN_COM_GPU_MEM_IDX"] == "1"
    assert node.admit(placed)["main"]["ALIYUN_COM_GPU_MEM_IDX"] == "0"


def test_a_pod_that_the_watch_has_not_shown_gets_one_card_with_its_own_size_as_total() -> None:
    cards = inventory(4, 16)
    node = Node(cards)
    assert node.admit(memory(cards, 0, 6))["main"] == {
        "NVIDIA_VISIBLE_DEVICES": cards.by_index[1].uuid,
        "ALIYUN_COM_GPU_MEM_IDX": "1",
        "ALIYUN_COM_GPU_MEM_DEV": "16",
        "ALIYUN_COM_GPU_MEM_POD": "6",
        "ALIYUN_COM_GPU_MEM_CONTAINER": "6",
    }


def test_after_a_lost_checkpoint_a_pod_marked_assigned_gets_its_card_again() -> None:
    cards = inventory(16, 16)
    node = Node(cards)
    pod = node.see(memory(cards, 1, 6, annotations={"ALIYUN_COM_GPU_MEM_ASSIGNED": "true"}))
    assert node.admit(pod)["main"]["ALIYUN_COM_GPU_MEM_IDX"] == "1"


def test_an_init_containers_ids_go_on_in_the_same_pod() -> None:
    cards = inventory(16, 16)
    node = Node(cards)
    other = node.see(memory(cards, 0, 4))
    pod = node.see(bound(cards, {0: {1: 4}}, container(mem=4), init=[container("first", mem=4)]))
    node.admit(other)
    got = node.admit(pod)
    assert got["first"]["NVIDIA_VISIBLE_DEVICES"] == got["main"]["NVIDIA_VISIBLE_DEVICES"]
    assert got["main"]["ALIYUN_COM_GPU_MEM_POD"] == "4"


def test_more_than_the_init_container_had_comes_from_its_card() -> None:
    cards = inventory(16, 16)
    node = Node(cards)
    pod = node.see(bound(None, {}, container(mem=8), init=[container("first", mem=4)]))
    got = node.admit(pod)
    assert got["first"]["NVIDIA_VISIBLE_DEVICES"] == got["main"]["NVIDIA_VISIBLE_DEVICES"]


def test_whole_cards_are_those_of_the_annotation() -> None:
    cards = inventory(16, 24, 16)
    node = Node(cards)
    pod = node.see(whole(cards, 1, 2))
    assert node.admit(pod)["main"] == {
        "NVIDIA_VISIBLE_DEVICES": f"{cards.by_index[1].uuid},{cards.by_index[2].uuid}",
        "ALIYUN_COM_GPU_MEM_IDX": "1",
        "ALIYUN_COM_GPU_MEM_DEV": "24",
        "ALIYUN_COM_GPU_MEM_POD": "40",
        "ALIYUN_COM_GPU_MEM_CONTAINER": "40",
    }


def test_units_of_two_cards_are_refused_with_both_numbers() -> None:
    cards = inventory(4, 4)
    node = Node(cards)
    with pytest.raises(Refused, match=r"units of 2 cards \(1 of card 0 .*, 2 of card 1 .*\), it needs one card; delete the pod"):
        node.state.allocate(MEMORY, ["GPU-00000000-_-0", "GPU-00000001-_-0", "GPU-00000001-_-1"])


def test_no_card_with_enough_room_is_said_in_numbers() -> None:
    cards = inventory(4, 8, 4)
    node = Node(cards)
    node.admit(node.see(memory(cards, 1, 3, name="first")))
    node.admit(node.see(whole(cards, 2, name="second")))
    with pytest.raises(
        AdmissionError,
        match=(
            r"aliyun.com/gpu-mem: asked for 6 units of 1 GiB on one card, but card 0 has 4 free, card 1 has 5 free, "
            r"card 2 is held whole by pod default/second; delete the pod so that the scheduler places it anew.*"
            r"check that kube-scheduler is configured to call it"
        ),
    ):
        node.admit(node.see(memory(None, 0, 6)))


def test_an_id_of_no_card_is_refused() -> None:
    with pytest.raises(Refused, match="id 'GPU-gone-_-1', of no card in this node"):
        Node(inventory(4)).state.allocate(MEMORY, ["GPU-gone-_-1"])


def test_a_card_that_does_not_answer_is_refused() -> None:
    cards = inventory(4)
    node = Node(cards)
    node.state.set_inventory(Inventory(cards.unit, (card(0, 4, health="lost"),)))
    with pytest.raises(Refused, match=r"card 0 .* is not usable \(lost\)"):
        node.state.allocate(CARDS, ["GPU-00000000"])


def test_a_card_with_memory_in_use_is_not_given_whole_and_the_holder_is_named() -> None:
    cards = inventory(16, 16)
    node = Node(cards)
    node.admit(node.see(memory(cards, 0, 1, name="small")))
    with pytest.raises(Refused, match=r"card 0 .* has memory held by pod default/small"):
        node.state.allocate(CARDS, [cards.by_index[0].uuid])
    assert node.state.allocate(CARDS, [cards.by_index[1].uuid])


def test_a_card_held_whole_has_no_memory() -> None:
    cards = inventory(16, 16)
    node = Node(cards)
    node.admit(node.see(whole(cards, 0, name="big")))
    with pytest.raises(Refused, match=r"card 0 .* is held whole by pod default/big"):
        node.state.allocate(MEMORY, ["GPU-00000000-_-0"])


def test_a_card_given_a_moment_ago_counts_before_the_checkpoint_shows_it() -> None:
    cards = inventory(16)
    node = Node(cards)
    node.state.allocate(CARDS, [cards.by_index[0].uuid])
    with pytest.raises(Refused, match="held whole by a pod admitted just now"):
        node.state.allocate(MEMORY, ["GPU-00000000-_-0"])


@pytest.mark.parametrize("watched", [True, False], ids=["seen to go", "gone before the first list"])
def test_what_ended_pods_held_is_free_although_the_file_still_lists_it(watched: bool) -> None:
    cards = inventory(16)
    node = Node(cards)
    pod = whole(cards, 0)
    if watched:
        node.see(pod)
    node.admit(pod)
    if watched:
        node.delete(pod)
    else:
        node.manager.active.clear()
        node.now += 60
    assert any(entry.pod == pod["metadata"]["uid"] for entry in node.file)
    next_pod = node.see(memory(cards, 0, 16))
    assert node.admit(next_pod)["main"]["ALIYUN_COM_GPU_MEM_IDX"] == "0"


def test_a_pod_in_the_checkpoint_that_the_watch_has_not_shown_yet_holds_its_card() -> None:
    cards = inventory(16)
    node = Node(cards)
    node.admit(whole(cards, 0))
    with pytest.raises(Refused, match="held whole"):
        node.state.allocate(MEMORY, ["GPU-00000000-_-0"])


def test_while_the_api_server_has_not_been_reached_every_entry_counts() -> None:
    cards = inventory(16)
    node = Node(cards)
    node.pods.synced = False
    node.admit(whole(cards, 0, uid="unknown"))
    node.now += 3600
    with pytest.raises(Refused, match="held whole by the pod with UID unknown"):
        node.state.allocate(MEMORY, ["GPU-00000000-_-0"])


@st.composite
def histories(draw: st.DrawFn) -> tuple[list[int], list[tuple[str, int]], int]:
    cards = draw(st.lists(st.integers(2, 12), min_size=1, max_size=4))
    steps = st.one_of(
        st.tuples(st.just("memory"), st.integers(1, 6)),
        st.tuples(st.just("pair"), st.integers(1, 3)),
        st.tuples(st.just("whole"), st.integers(1, 2)),
        st.tuples(st.just("stray"), st.integers(1, 4)),
        st.tuples(st.just("admit"), st.integers(1, 3)),
        st.tuples(st.just("end"), st.integers(0, 20)),
        st.tuples(st.just("fail"), st.integers(0, 0)),
    )
    return cards, draw(st.lists(steps, max_size=40)), draw(st.integers(0, 1000))


class Cluster:
    """A scheduler with its own ledger that places pods on one node, and a kubelet that admits them in order of arrival."""

    def __init__(self, units: list[int], seed: int) -> None:
        self.cards = inventory(*units)
        self.node = Node(self.cards, seed)
        self.ledger = Ledger()
        self.ledger.set_inventory("gpu1", self.cards)
        self.waiting: list[dict[str, Any]] = []
        self.running: list[dict[str, Any]] = []
        self.environments: dict[str, dict[str, dict[str, str]]] = {}

    def schedule(self, *containers: dict[str, Any]) -> None:
        request = parse_request({"metadata": {}, "spec": {"containers": list(containers)}})
        assert request is not None
        node = self.ledger.node("gpu1")
        assert node is not None
        allocation = Binpack().choose(request, node)
        if allocation is None:
            return
        pod = bound(self.cards, {c: dict(cards) for c, cards in allocation.containers}, *containers)
        uid, name = pod["metadata"]["uid"], pod["metadata"]["name"]
        self.ledger.apply(Holder(uid, "default", name, "gpu1", request, allocation))
        self.waiting.append(self.node.see(pod))

    def admit(self) -> bool | None:
        """The oldest waiting pod; whether kubelet took it."""
        if not self.waiting:
            return None
        pod = self.waiting.pop(0)
        uid = pod["metadata"]["uid"]
        try:
            self.environments[uid] = self.node.admit(pod)
        except AdmissionError:
            self.ledger.remove(uid)
            self.node.pods.event("MODIFIED", parse_local_pod({**pod, "status": {"phase": "Failed"}}))
            return False
        self.running.append(pod)
        return True

    def end(self, number: int) -> None:
        if self.running:
            pod = self.running.pop(number % len(self.running))
            self.node.delete(pod)
            self.node.now += random.Random(number).choice((0, 60))
            self.ledger.remove(pod["metadata"]["uid"])

    def check_cards(self) -> None:
        """Of what kubelet has given: one card per container, no card in both resources, no id twice."""
        seen: set[str] = set()
        used: dict[str, set[str]] = {MEMORY: set(), CARDS: set()}
        for pod in self.running:
            for container_name, resources in self.node.manager.given.get(pod["metadata"]["uid"], {}).items():
                for resource, ids in resources.items():
                    cards = {i.rpartition("-_-")[0] if resource == MEMORY else i for i in ids}
                    assert resource == CARDS or len(cards) == 1
                    assert seen.isdisjoint(ids)
                    seen |= ids
                    used[resource] |= cards
                    told = self.environments[pod["metadata"]["uid"]][container_name]["NVIDIA_VISIBLE_DEVICES"]
                    assert set(told.split(",")) == cards
        assert used[MEMORY].isdisjoint(used[CARDS])


def run(history: tuple[list[int], list[tuple[str, int]], int]) -> tuple[Cluster, int]:
    """The cluster after the history, and how many pods kubelet refused."""
    units, steps, seed = history
    cluster, refused = Cluster(units, seed), 0
    for step, number in [*steps, ("admit", 100)]:
        if step == "memory":
            cluster.schedule(container(mem=number))
        elif step == "pair":
            cluster.schedule(container("a", mem=number), container("b", mem=number))
        elif step == "whole":
            cluster.schedule(container(count=number))
        elif step == "stray":
            cluster.waiting.append(cluster.node.see(memory(None, 0, number)))
        elif step == "end":
            cluster.end(number)
        elif step == "fail" and cluster.waiting:
            cluster.node.manager.failing.add(cluster.waiting[0]["metadata"]["uid"])
        elif step == "admit":
            for _ in range(number):
                refused += cluster.admit() is False
                cluster.check_cards()
    return cluster, refused


@settings(max_examples=100, deadline=None)
@given(histories().map(lambda h: (h[0], [s for s in h[1] if s[0] not in ("stray", "fail")], h[2])))
def test_what_the_scheduler_placed_is_admitted_on_exactly_those_cards(history: tuple[list[int], list[tuple[str, int]], int]) -> None:
    cluster, refused = run(history)
    assert refused == 0
    for pod in cluster.running:
        local = parse_local_pod(pod)
        for ask in local.asks:
            told = cluster.environments[local.uid][ask.container]
            assert told["NVIDIA_VISIBLE_DEVICES"] == ",".join(cluster.cards.by_index[index].uuid for index in sorted(ask.cards))
            assert told["ALIYUN_COM_GPU_MEM_CONTAINER"] == str(sum(ask.cards.values()))
            assert told["ALIYUN_COM_GPU_MEM_POD"] == pod["metadata"]["annotations"]["ALIYUN_COM_GPU_MEM_POD"]


@settings(max_examples=100, deadline=None)
@given(histories())
def test_never_two_cards_and_never_both_resources_whatever_comes(history: tuple[list[int], list[tuple[str, int]], int]) -> None:
    run(history)
