# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Every kind of request at the node, and what is steered away from, refused and told of cards that must not be given."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from gpushare_runtime.device_plugin.node import NodeState, Refused
from gpushare_runtime.device_plugin.node_cards import cordons
from gpushare_runtime.device_plugin.pods import parse_local_pod
from gpushare_runtime.device_plugin.refusals import LIFETIME
from gpushare_runtime.device_plugin.report import report
from gpushare_runtime.device_plugin.starts import may_start
from gpushare_runtime.held import Held, HeldEntry
from gpushare_runtime.inventory import Inventory
from unit.runtime.device_plugin.device_manager import RESOURCES, AdmissionError
from unit.runtime.device_plugin.local_pods import bound, memory, whole
from unit.runtime.device_plugin.test_node import Node, stopped
from unit.runtime.pods import card, container, inventory

MEMORY, CARDS = RESOURCES
INDEX, VISIBLE = "ALIYUN_COM_GPU_MEM_IDX", "NVIDIA_VISIBLE_DEVICES"


def cards_of(environments: dict[str, dict[str, str]]) -> dict[str, str]:
    return {name: environment[INDEX] for name, environment in environments.items()}


def sidecar(name: str, **limits: int) -> dict[str, Any]:
    return container(name, **limits) | {"restartPolicy": "Always"}


# Kinds of requests.


def test_memory_on_several_cards_is_the_same_on_each() -> None:
    cards = inventory(16, 16, 16)
    node = Node(cards)
    pod = node.see(bound(cards, {0: {0: 4, 2: 4}}, container(mem=8), labels={"aliyun.com/gpu-count": "2"}))
    got = node.admit(pod)["main"]
    assert got[VISIBLE] == "GPU-00000000,GPU-00000002"
    assert (got["ALIYUN_COM_GPU_MEM_CONTAINER"], got["ALIYUN_COM_GPU_MEM_POD"], got["ALIYUN_COM_GPU_MEM_DEV"]) == ("8", "8", "16")
    ids = node.manager.given[pod["metadata"]["uid"]]["main"][MEMORY]
    assert sorted(i.partition("-_-")[0] for i in ids) == ["GPU-00000000"] * 4 + ["GPU-00000002"] * 4


def test_other_cards_where_the_chosen_have_no_room_and_never_uneven() -> None:
    cards = inventory(8, 8, 8)
    node = Node(cards)
    node.admit(node.see(memory(cards, 0, 6)))
    pod = node.see(bound(cards, {0: {0: 3, 1: 3}}, container(mem=6), labels={"aliyun.com/gpu-count": "2"}))
    assert node.admit(pod)["main"][VISIBLE] == "GPU-00000001,GPU-00000002"
    uneven = node.see(bound(cards, {0: {1: 2, 2: 2}}, container(mem=4), labels={"aliyun.com/gpu-count": "2"}))
    node.state.prefer(MEMORY, [i for i, _ in node.state.devices(MEMORY)], [], 4)
    with pytest.raises(Refused, match=r"3 of card 1 .*, 1 of card 2 .*, it needs the same on each of 2 cards"):
        node.state.allocate(MEMORY, [f"GPU-00000001-_-{slot}" for slot in (5, 6, 7)] + ["GPU-00000002-_-7"])
    assert uneven


def test_init_containers_and_sidecars_get_the_pods_card_in_any_order() -> None:
    cards = inventory(16, 16)
    node = Node(cards)
    node.see(memory(cards, 0, 3))
    pod = node.see(
        bound(
            cards,
            {0: {1: 2}, -2: {1: 1}},
            container("main", mem=2),
            init=[container("first", mem=1), sidecar("side", mem=1), container("second", mem=2)],
        )
    )
    assert cards_of(node.admit(pod)) == {"first": "1", "side": "1", "second": "1", "main": "1"}


@pytest.mark.parametrize("seed", range(6))
def test_whole_cards_stay_the_pods_whichever_of_them_the_init_container_leaves(seed: int) -> None:
    cards = inventory(8, 8, 8, 8)
    node = Node(cards, seed)
    pod = bound(cards, {0: {1: 8}, 1: {2: 8, 3: 8}}, container("a", count=1), container("b", count=2), init=[container("i", count=2)])
    got = node.admit(node.see(pod))
    used = sorted(uuid for name in ("a", "b") for uuid in got[name][VISIBLE].split(","))
    assert used == ["GPU-00000001", "GPU-00000002", "GPU-00000003"]


def test_a_model_that_was_asked_for_is_not_exchanged_for_room_on_another_card() -> None:
    cards = inventory(8, 8)
    node = Node(cards)
    node.admit(node.see(memory(cards, 0, 6)))
    with pytest.raises(AdmissionError, match="card 1 has 8 free but is not the one it was placed on"):
        node.admit(node.see(memory(cards, 0, 4, annotations={"gpushare.request/models": "T4"})))
    assert cards_of(node.admit(node.see(memory(cards, 0, 4))))["main"] == "1"


def test_pods_of_the_same_shape_may_have_each_others_cards_whatever_they_asked_for() -> None:
    cards = inventory(8, 8)
    node = Node(cards)
    wish = {"gpushare.request/models": "T4"}
    first = node.see(memory(cards, 0, 6, annotations=wish))
    second = node.see(memory(cards, 1, 6, annotations=wish))
    # kubelet took them the other way round: a pod that arrived later went first.
    assert cards_of(node.admit(second))["main"] == "0"
    assert cards_of(node.admit(first))["main"] == "1"


# What processes hold although kubelet has freed it.


def test_what_a_force_deleted_pod_still_uses_is_steered_away_from() -> None:
    cards = inventory(16, 16)
    node = Node(cards)
    zombie = node.see(memory(cards, 0, 12, phase="Running"))
    node.admit(zombie)
    node.force_delete(zombie, alive=True)
    assert cards_of(node.admit(node.see(memory(cards, 0, 4))))["main"] == "0"
    assert cards_of(node.admit(node.see(memory(cards, 0, 4))))["main"] == "1"
    with pytest.raises(AdmissionError, match=r"card 0 has 0 free \(processes of pod default/p\d+ hold some that kubelet has freed\)"):
        node.admit(node.see(memory(cards, 0, 14)))
    node.live.clear()
    assert cards_of(node.admit(node.see(memory(cards, 0, 12))))["main"] == "0"


def test_ids_that_processes_hold_are_refused_where_kubelet_gives_them_all_the_same() -> None:
    cards = inventory(4)
    node = Node(cards)
    zombie = node.see(memory(cards, 0, 2, phase="Running", name="zombie"))
    node.admit(zombie)
    ids = node.manager.given[zombie["metadata"]["uid"]]["main"][MEMORY]
    node.force_delete(zombie, alive=True)
    with pytest.raises(Refused, match="is still held by processes of pod default/zombie, though kubelet has freed it"):
        node.state.allocate(MEMORY, ids)
    with pytest.raises(Refused, match="is still held by processes of pod default/zombie, though kubelet has freed it; kubelet tries"):
        may_start(node.state, MEMORY, [*ids, "GPU-00000000-_-3"])


def test_a_card_that_processes_use_is_not_given_whole_and_the_other_way_round() -> None:
    cards = inventory(4, 4)
    node = Node(cards)
    for pod in (memory(cards, 0, 2, phase="Running", name="part"), whole(cards, 1, phase="Running", name="all")):
        node.admit(node.see(pod))
        node.force_delete(pod, alive=True)
    with pytest.raises(AdmissionError, match="card 0 has memory held by pod default/part"):
        node.admit(node.see(whole(cards, 0)))
    with pytest.raises(AdmissionError, match="card 1 is held whole by pod default/all"):
        node.admit(node.see(memory(cards, 1, 3)))


def test_containers_that_start_again_without_kubelets_record_get_their_own_ids() -> None:
    cards = inventory(8, 8)
    node = Node(cards)
    pod = node.see(memory(cards, 1, 6, phase="Running"))
    node.admit(pod)
    node.live.add(pod["metadata"]["uid"])
    before = node.manager.given[pod["metadata"]["uid"]]["main"][MEMORY]
    node.manager.restore([], RESOURCES)
    node._write()
    for resource in RESOURCES:
        node.manager.healthy[resource] = {i for i, good in node.state.devices(resource) if good}
    # Another pod meanwhile: kubelet offers it everything.
    assert cards_of(node.admit(node.see(memory(cards, 1, 4))))["main"] == "0"
    assert cards_of(node.admit(pod))["main"] == "1"
    assert node.manager.given[pod["metadata"]["uid"]]["main"][MEMORY] <= before | {"GPU-00000001-_-6", "GPU-00000001-_-7"}


# What the scheduler's side is told.


def said(state: NodeState) -> Held:
    state.settle()
    return report(state)


def test_on_the_normal_path_there_is_nothing_to_say() -> None:
    cards = inventory(8, 8)
    node = Node(cards)
    pod = node.see(memory(cards, 0, 4, phase="Running"))
    node.admit(pod)
    assert said(node.state) == Held()
    node.delete(pod)
    assert said(node.state) == Held()


def test_units_of_pods_that_are_gone_are_leaving_until_their_processes_are() -> None:
    cards = inventory(8, 8)
    node = Node(cards)
    part, all_of_it = node.see(memory(cards, 0, 4, phase="Running", name="part")), node.see(whole(cards, 1, phase="Running", name="all"))
    for pod in (part, all_of_it):
        node.admit(pod)
        node.force_delete(pod, alive=True)
    assert said(node.state).entries == (
        HeldEntry("GPU-00000000", part["metadata"]["uid"], "default/part", 4, "leaving"),
        HeldEntry("GPU-00000001", all_of_it["metadata"]["uid"], "default/all", 8, "leaving", whole=True),
    )
    node.live.clear()
    assert said(node.state) == Held()


def test_a_static_pod_is_unmanaged() -> None:
    cards = inventory(8)
    node = Node(cards)
    copy = memory(None, 0, 3, uid="of-the-copy", name="static", annotations={"kubernetes.io/config.mirror": "of-the-file"})
    node.see(copy)
    node.admit({**copy, "metadata": {**copy["metadata"], "uid": "of-the-file"}})
    assert said(node.state).entries == (HeldEntry("GPU-00000000", "of-the-copy", "default/static", 3, "unmanaged"),)


def test_a_refusal_is_told_until_its_time_is_over_or_the_card_has_changed() -> None:
    cards = inventory(8, 8)
    node = Node(cards)
    holder = node.see(memory(cards, 0, 6, phase="Running"))
    node.admit(holder)
    node.admit(node.see(memory(cards, 1, 6, phase="Running")))
    for _ in range(2):
        late = node.see(memory(cards, 0, 4))
        with pytest.raises(AdmissionError):
            node.admit(late)
    refused = said(node.state).refused
    assert [(r.card, r.units, r.whole, r.until - 1_774_000_000 - node.now) for r in refused] == [("GPU-00000000", 4, False, LIFETIME)] * 2
    node.now += LIFETIME
    assert said(node.state).refused == ()
    with pytest.raises(AdmissionError):
        node.admit(node.see(memory(cards, 0, 4)))
    assert said(node.state).refused
    node.delete(holder)
    assert said(node.state).refused == ()


# Cards that must not be given.


def with_card(node: Node, index: int, **changes: Any) -> None:
    read = node.state.inventory
    assert read is not None
    node.state.set_inventory(Inventory(read.unit, tuple(replace(c, **changes) if c.index == index else c for c in read.cards)))


def healthy(node: Node, resource: str) -> set[str]:
    return {device_id for device_id, good in node.state.devices(resource) if good}


def test_of_a_bad_card_free_ids_go_at_once_and_held_ones_as_they_are_released() -> None:
    cards = inventory(4, 4)
    node = Node(cards)
    pod = node.see(memory(cards, 0, 3, phase="Running"))
    node.admit(pod)
    held = node.manager.given[pod["metadata"]["uid"]]["main"][MEMORY]
    key = node.state.devices_key(MEMORY)
    with_card(node, 0, health="XID 79")
    assert node.state.devices_key(MEMORY) != key
    assert healthy(node, MEMORY) == held | {f"GPU-00000001-_-{slot}" for slot in range(4)}
    # kubelet's sum: 7 healthy, 3 of them taken, so 4 left, which is what the good card has.
    assert healthy(node, CARDS) == {"GPU-00000001"}
    node.pods.event("DELETED", parse_local_pod(stopped(pod)))
    node.state.settle()
    assert healthy(node, MEMORY) == {f"GPU-00000001-_-{slot}" for slot in range(4)}
    with_card(node, 0, health="ok")
    assert (len(healthy(node, MEMORY)), len(healthy(node, CARDS))) == (8, 2)


def test_a_bad_card_that_is_held_whole_stays_in_kubelets_sum_of_whole_cards() -> None:
    cards = inventory(4, 4)
    node = Node(cards)
    node.admit(node.see(whole(cards, 0, phase="Running")))
    with_card(node, 0, health="XID 79")
    assert healthy(node, CARDS) == {"GPU-00000000", "GPU-00000001"}
    assert healthy(node, MEMORY) == {f"GPU-00000001-_-{slot}" for slot in range(4)}


def test_other_words_for_the_same_trouble_are_no_new_list() -> None:
    node = Node(inventory(4))
    with_card(node, 0, health="XID 79")
    key = node.state.devices_key(MEMORY)
    with_card(node, 0, health="lost")
    assert node.state.devices_key(MEMORY) == key


@pytest.mark.parametrize(
    ("text", "named"),
    [("", set()), ("1", {1}), ("0, 1", {0, 1}), ("GPU-00000001", {1}), ("all", {0, 1}), ("10", set()), ("1;0", set()), (",", set())],
)
def test_an_administrator_names_cards_by_index_or_uuid(text: str, named: set[int]) -> None:
    assert {index for index in (0, 1) if cordons(text, card(index, 4))} == named


def test_a_cordoned_card_takes_no_new_pods_and_those_on_it_may_start_again() -> None:
    cards = inventory(8, 8)
    node = Node(cards)
    running = node.see(memory(cards, 0, 4, phase="Running"))
    node.admit(running)
    node.state.set_cordon("0")
    assert node.state.inventory is not None
    assert [c.cordoned for c in node.state.inventory.cards] == [True, False]
    assert cards_of(node.admit(node.see(memory(cards, 0, 4))))["main"] == "1"
    with pytest.raises(AdmissionError, match="card 0 is cordoned"):
        node.admit(node.see(memory(cards, 0, 8)))
    assert may_start(node.state, MEMORY, node.manager.given[running["metadata"]["uid"]]["main"][MEMORY])
    node.state.set_cordon("")
    assert cards_of(node.admit(node.see(memory(cards, 0, 4))))["main"] == "0"


# Starts.


def test_a_container_starts_with_what_kubelet_recorded() -> None:
    cards = inventory(8)
    node = Node(cards)
    pod = node.see(memory(cards, 0, 4))
    node.admit(pod)
    ids = node.manager.given[pod["metadata"]["uid"]]["main"][MEMORY]
    assert may_start(node.state, MEMORY, ids)
    free = node.state.devices(MEMORY)[-2:]
    assert not may_start(node.state, MEMORY, [i for i, _ in free])


def test_a_container_does_not_start_with_ids_that_are_another_containers() -> None:
    cards = inventory(8)
    node = Node(cards)
    pods = [node.see(memory(cards, 0, 2, name=name)) for name in ("one", "two")]
    for pod in pods:
        node.admit(pod)
    first, second = (node.manager.given[pod["metadata"]["uid"]]["main"][MEMORY] for pod in pods)
    with pytest.raises(Refused, match=r"1 of its 2 ids .* are those of container main of pod default/two by kubelet's record"):
        may_start(node.state, MEMORY, [min(second), "GPU-00000000-_-7"])
    assert may_start(node.state, MEMORY, first)


def test_a_container_does_not_start_on_a_card_that_is_bad_or_gone() -> None:
    cards = inventory(8)
    node = Node(cards)
    pod = node.see(memory(cards, 0, 4))
    node.admit(pod)
    ids = node.manager.given[pod["metadata"]["uid"]]["main"][MEMORY]
    with_card(node, 0, health="XID 79")
    with pytest.raises(Refused, match=r"card 0 .* is not usable \(XID 79\); kubelet tries to start"):
        may_start(node.state, MEMORY, ids)
    node.state.set_inventory(inventory(8, 8))
    assert may_start(node.state, MEMORY, ids)
    with pytest.raises(Refused, match="1 of its ids are of no card in this node"):
        may_start(node.state, MEMORY, ["GPU-gone-_-0"])


def test_a_container_that_got_a_pods_cards_which_asked_for_another_number_of_them_does_not_start() -> None:
    cards = inventory(8, 8)
    node = Node(cards)
    first = node.see(bound(cards, {0: {0: 2, 1: 2}}, container(mem=4), labels={"aliyun.com/gpu-count": "2"}, name="two"))
    second = node.see(memory(cards, 0, 4, name="one"))
    # kubelet dropped the first one for another reason, and asks for the second: nobody can tell yet.
    assert node.admit(second)["main"][VISIBLE] == "GPU-00000000,GPU-00000001"
    ids = node.manager.given[second["metadata"]["uid"]]["main"][MEMORY]
    with pytest.raises(Refused, match="container main of pod default/one has units of 2 cards, it needs one card; delete the pod"):
        may_start(node.state, MEMORY, ids)
    assert first
