# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Links between GPUs, and the sets that are chosen by them."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import combinations

import hypothesis.strategies as st
import pytest
from hypothesis import given

from gpushare_runtime.core.bounds import ReportError
from gpushare_runtime.core.constraints import Rules
from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.core.ledger import Ledger
from gpushare_runtime.core.links import UNKNOWN, GpuLink, GpuLinks, read_links
from gpushare_runtime.core.placement.explain import exact, no_fit
from gpushare_runtime.core.placement.policies import Placement
from gpushare_runtime.core.request import Request
from unit.fakes.runtime.pods import allocated_pod, inventory, memory, on, whole
from unit.golden import Golden

EIGHT = tuple(range(8))


def linked(count: int, nvlinks: dict[tuple[int, int], int], ways: dict[tuple[int, int], str], otherwise: str) -> GpuLinks:
    indexes = tuple(range(count))
    rows = [[GpuLink(ways.get((other, gpu), otherwise), nvlinks.get((other, gpu), 0)) for other in range(gpu)] for gpu in indexes]
    return GpuLinks(indexes, tuple(map(tuple, rows)))


def dgx_1(nvlinks: dict[tuple[int, int], int], switches: list[tuple[int, int]]) -> GpuLinks:
    """Two sockets of four GPUs; of each, two PCIe switches of two."""
    ways = {pair: "h" for side in ((0, 1, 2, 3), (4, 5, 6, 7)) for pair in combinations(side, 2)} | dict.fromkeys(switches, "p")
    return linked(8, nvlinks, ways, "s")


# NVIDIA, go-gpuallocator, gpuallocator/common_test.go at 876e7b76 (2026-08-14): links of its machines. Tests of the same folder: choices.
_MESH = {(0, 1): 1, (0, 2): 1, (0, 3): 2, (0, 4): 2, (1, 2): 2, (1, 3): 1, (1, 5): 2, (2, 3): 2, (2, 6): 1, (3, 7): 1}
DGX_1_VOLTA = dgx_1(_MESH | {(4, 5): 1, (4, 6): 1, (4, 7): 2, (5, 6): 2, (5, 7): 1, (6, 7): 2}, [(0, 1), (2, 3), (4, 5), (6, 7)])
DGX_1_PASCAL = dgx_1(dict.fromkeys(_MESH, 1) | dict.fromkeys(combinations((4, 5, 6, 7), 2), 1), [(0, 2), (1, 3), (4, 6), (5, 7)])
RTX_8000 = linked(4, {(0, 3): 2, (1, 2): 2}, {(0, 1): "n", (2, 3): "n"}, "s")
# Links of all 16 GPUs through NVSwitches; two sockets, each a tree of PCIe switches. Choices: staticdgx_policies.go, same folder.
DGX_2 = linked(
    16, dict.fromkeys(combinations(range(16), 2), 6), {(a, b): "_pmns"[(a ^ b).bit_length()] for a, b in combinations(range(16), 2)}, "s"
)
NVSWITCH = linked(8, dict.fromkeys(combinations(EIGHT, 2), 18), dict.fromkeys(combinations((0, 1, 2, 3), 2), "n"), "s")


@pytest.mark.parametrize(
    ("links", "size", "chosen"),
    [
        (RTX_8000, 2, [(0, 3), (1, 2)]),
        (RTX_8000, 4, [(0, 1, 2, 3)]),
        (DGX_1_PASCAL, 2, [(0, 2), (1, 3), (4, 6), (5, 7)]),
        (DGX_1_PASCAL, 4, [(0, 1, 2, 3), (4, 5, 6, 7)]),
        (DGX_1_VOLTA, 2, [(0, 3), (1, 2), (4, 7), (5, 6)]),
        (DGX_1_VOLTA, 4, [(0, 1, 2, 3), (4, 5, 6, 7)]),
        (DGX_1_VOLTA, 8, [EIGHT]),
        *((DGX_2, size, [tuple(range(at, at + size)) for at in range(0, 16, size)]) for size in (2, 4, 8, 16)),
    ],
)
def test_pods_of_one_size_get_the_sets_that_nvidias_own_allocator_gives(links: GpuLinks, size: int, chosen: list[tuple[int, ...]]) -> None:
    free = [*links.indexes]
    for expected in chosen:
        found = links.choose((), free, size)
        assert tuple(sorted(found)) == expected
        free = [gpu for gpu in free if gpu not in found]


@pytest.mark.parametrize(
    ("free", "must", "size", "chosen"),
    [
        ((0, 2, 4, 5), (), 2, (4, 5)),
        ((0, 4, 5, 6), (), 2, (5, 6)),
        ((0, 3, 1), (), 2, (0, 3)),
        ((0, 1, 4), (), 2, (0, 4)),
        ((0, 1, 2, 3, 5, 6, 7), (4,), 1, (4,)),
        ((0, 1, 2, 3, 5, 6, 7), (4,), 2, (4, 7)),
        ((0, 1, 2, 3, 5, 6, 7), (4,), 4, (4, 5, 6, 7)),
        ((1, 3, 5, 7), (0, 2, 4, 6), 4, (0, 2, 4, 6)),
    ],
)
def test_what_is_left_of_a_machine_gives_the_sets_of_nvidias_own_allocator(
    free: tuple[int, ...], must: tuple[int, ...], size: int, chosen: tuple[int, ...]
) -> None:
    assert tuple(sorted(DGX_1_VOLTA.choose(must, free, size))) == chosen


def test_one_gpu_leaves_the_best_pairs() -> None:
    assert DGX_1_VOLTA.choose((), (1, 2, 3, 4, 5, 6, 7), 1) == (1,)  # 2 and 3 are on one switch
    assert RTX_8000.choose((), (0, 1, 2), 1) == (0,)
    assert RTX_8000.choose((), (3, 1, 2), 1) == (3,)


def test_behind_nvswitches_the_order_of_the_policy_decides() -> None:
    assert NVSWITCH.choose((), (7, 0, 5, 1), 2, fine=False) == (7, 0)
    assert NVSWITCH.choose((), (4, 0, 5, 1), 2) == (0, 1)  # on one NUMA node


def worth(links: GpuLinks, some: tuple[int, ...]) -> int:
    # Points written out anew: 100 for each NVLink, 10 to 60 for PCIe.
    return sum(
        100 * links.between(one, other).nvlinks + 10 * "?snhmpb".index(links.between(one, other).way)
        for one, other in combinations(some, 2)
    )


def partitions(gpus: tuple[int, ...], size: int) -> list[list[tuple[int, ...]]]:
    """All ways to make sets of this size, and one smaller set of the GPUs that are over."""
    if not gpus:
        return [[]]
    over = len(gpus) % size
    if over:
        return [[some, *rest] for some in combinations(gpus, over) for rest in partitions(tuple(g for g in gpus if g not in some), size)]
    first, *others = gpus
    return [
        [(first, *some), *rest]
        for some in combinations(others, size - 1)
        for rest in partitions(tuple(g for g in others if g not in some), size)
    ]


@st.composite
def machines(draw: st.DrawFn, most: int) -> GpuLinks:
    count = draw(st.integers(2, most))
    link = st.builds(GpuLink, st.sampled_from("?snhmpb"), st.integers(0, 3))
    indexes = tuple(sorted(draw(st.sets(st.integers(0, 40), min_size=count, max_size=count))))
    return GpuLinks(indexes, tuple(tuple(draw(link) for _ in range(place)) for place in range(count)))


@given(machines(8), st.data())
def test_of_few_gpus_the_set_is_the_best_of_all_ways_to_share_them_out(links: GpuLinks, data: st.DataObject) -> None:
    size = data.draw(st.integers(2, len(links.indexes)))
    found = links.choose((), links.indexes, size)
    shared = [[(worth(links, some), len(some) == size) for some in sets] for sets in partitions(links.indexes, size)]
    order = [(sum(points for points, _ in sets), min(points for points, full in sets if full)) for sets in shared]
    best = max(points for sets, worths in zip(shared, order, strict=True) if worths == max(order) for points, full in sets if full)
    assert worth(links, found) == best
    assert len({*found} & {*links.indexes}) == size


@given(machines(12), st.data())
def test_a_set_that_must_be_connected_is(links: GpuLinks, data: st.DataObject) -> None:
    """Also among more GPUs than all sets are compared of."""
    for some in links.connected(links.indexes):
        assert all(links.between(one, other).nvlinks == 0 for one in some for other in links.indexes if other not in some)
        size = data.draw(st.integers(1, len(some)))
        found = links.choose((), links.indexes, size, connected=True)
        assert len(found) == size
        assert len(links.connected(found)) == 1


def test_of_many_gpus_a_good_set_is_found() -> None:
    """Four groups of four, which come mixed."""
    sixteen = range(16)
    links = linked(16, {(one, other): 4 for one, other in combinations(sixteen, 2) if one % 4 == other % 4}, {}, "s")
    assert sorted(links.choose((), [*sixteen], 4)) == [0, 4, 8, 12]
    assert sorted(links.choose((), [1, 3, 4, 5, 7, 9, 10, 11, 12, 15, 2], 4)) == [3, 7, 11, 15]


@given(machines(12))
def test_links_are_read_as_they_were_written(links: GpuLinks) -> None:
    assert read_links(json.loads(json.dumps(links.to_json())), links.indexes) == links
    assert read_links(links.to_json(), links.indexes) is read_links(links.to_json(), links.indexes)


def test_the_annotation_names_the_links_of_the_gpus_that_it_lists() -> None:
    two = replace(inventory(16, 16), links=linked(2, {(0, 1): 2}, {(0, 1): "p"}, "s"))
    assert json.loads(two.to_json())["links"] == ["", "p2"]
    assert Inventory.from_json(two.to_json()) == two
    more = replace(inventory(16, 16, 16), links=two.links)
    assert json.loads(more.to_json())["links"] == ["", "p2", "?0?0"]
    assert Inventory.from_json(more.to_json()).links == more.links.among((0, 1, 2))
    assert "links" not in json.loads(inventory(16, 16).to_json())


@pytest.mark.parametrize("rows", [None, {}, [], [""], ["", "p"], ["", "p2s0"], ["", "x2"], ["", "pX"], ["p2", ""], ["", 2], ["", "p2", ""]])
def test_wrong_links_are_told(rows: object) -> None:
    with pytest.raises(ReportError, match=r"^links"):
        read_links(rows, (0, 1))


def test_a_link_has_the_name_that_nvidia_smi_gives_it() -> None:
    assert [str(link) for link in (GpuLink("p", 2), GpuLink("h", 0), UNKNOWN)] == ["NV2", "PHB", ""]


def cluster(links: GpuLinks | None, *used: int, units: int = 32) -> Ledger:
    """A node n of GPUs with these links, with memory in use on some."""
    made = Ledger()
    made.set_inventory("n", replace(inventory(*[units] * len(used)), links=links))
    for index, size in enumerate(used):
        if size:
            made.apply(allocated_pod(f"pod-{index}", memory(size), on(index, size), "n"))
    return made


def chosen(made: Ledger, request: Request, placement: str = "binpack") -> list[int] | None:
    node = made.node("n")
    assert node is not None
    found = Placement(placement).choose(request, node)
    return None if found is None else sorted(found.by_gpu)


@pytest.mark.parametrize("placement", ["binpack", "spread"])
def test_a_pod_gets_linked_gpus_whole_and_by_memory(placement: str) -> None:
    two = replace(memory(8), gpus_per_pod=2)
    empty = cluster(DGX_1_VOLTA, *[0] * 8)
    assert chosen(empty, whole(2), placement) == chosen(empty, two, placement) == [0, 3]
    part = cluster(DGX_1_VOLTA, 4, 0, 0, 30, 0, 0, 0, 0)
    assert chosen(part, whole(2), placement) == [1, 2]
    assert chosen(part, two, placement) == ([0, 4] if placement == "binpack" else [1, 2])
    assert chosen(cluster(None, *[0] * 8), whole(2), placement) == [0, 1]


def test_memory_of_one_gpu_is_packed_whatever_the_links() -> None:
    assert chosen(cluster(DGX_1_VOLTA, 0, 8, 0, 0, 0, 0, 0, 0), memory(4)) == [1]
    assert chosen(cluster(RTX_8000, 0, 32, 0, 0), memory(4)) == [2]  # whose partner is taken


def test_gpus_of_a_smaller_model_come_before_links() -> None:
    made = Ledger()
    gpus = inventory(80, 40, 40, 80)
    made.set_inventory("n", replace(gpus, links=RTX_8000))
    assert chosen(made, whole(2)) == [1, 2]
    assert chosen(made, whole(3)) == [0, 1, 2]


def required(request: Request) -> Request:
    return replace(request, rules=Rules(links="nvlink"))


def test_links_may_be_required(golden: Golden) -> None:
    pair = required(whole(2))
    assert chosen(cluster(RTX_8000, 0, 0, 0, 0), pair) == [0, 3]
    assert chosen(cluster(RTX_8000, 1, 0, 0, 0), pair) == [1, 2]
    apart = cluster(RTX_8000, 1, 1, 0, 0)
    assert chosen(apart, pair) is None
    assert chosen(apart, whole(2)) == [2, 3]
    assert (chosen(apart, required(whole(1))), chosen(apart, required(memory(8)))) == ([2], [0])
    node = apart.node("n")
    assert node is not None
    assert node.fits_when_empty(pair)
    assert not node.fits_when_empty(required(whole(3)))
    assert no_fit(pair, node)[::2] == ("no-room", False)
    golden(exact(pair, node))
    assert no_fit(required(whole(3)), node).reason == "no-links"
    golden(exact(required(whole(3)), node))
    unknown = cluster(None, 0, 0).node("n")
    assert unknown is not None
    assert no_fit(pair, unknown).hopeless
    golden(exact(pair, unknown))
