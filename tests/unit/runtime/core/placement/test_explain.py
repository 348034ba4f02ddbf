# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The words in which a request is unschedulable."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any, get_args

import hypothesis.strategies as st
import pytest
from hypothesis import given

from gpushare_runtime.core.constraints import Context, Rules
from gpushare_runtime.core.inventory import Gpu, Inventory
from gpushare_runtime.core.ledger import Ledger, NodeLedger
from gpushare_runtime.core.node_ledger import NodeRecord
from gpushare_runtime.core.node_report import NOTHING_HELD, Held, Rejection
from gpushare_runtime.core.placement import explain
from gpushare_runtime.core.pods import AllocatedPod
from gpushare_runtime.core.quantity import UNITS, parse_unit
from gpushare_runtime.core.reasons import UnfitReason
from gpushare_runtime.core.request import ContainerRequest, Kind, Request
from gpushare_runtime.core.reservation import Group
from unit.fakes.runtime.pods import allocated_pod, gpu, inventory, ledger_of, memory, on, whole
from unit.golden import Golden


def failed_nodes(request: Request, nodes: Iterable[NodeLedger]) -> dict[str, str]:
    """What is said of these nodes."""
    by_name = {node.name: node for node in nodes}
    rejected = {name: explain.no_fit(request, node) for name, node in by_name.items()}
    return explain.failed_nodes(request, rejected, by_name.__getitem__)


def test_few_nodes_are_named_each_with_its_numbers() -> None:
    ledger = Ledger()
    ledger.set_inventory("gpu1", inventory(16, 16))
    ledger.set_inventory("gpu2", inventory(16, 24))
    ledger.apply(allocated_pod("a", memory(6), on(1, 6), "gpu2"))
    assert failed_nodes(memory(25), ledger.nodes.values()) == {
        "gpu1": "gpu1: needs 25 GiB on one GPU, its largest GPU has 16 (32 in total on 2 GPUs)",
        "gpu2": "gpu2: needs 25 GiB on one GPU, its largest GPU has 24 (40 in total on 2 GPUs)",
    }
    assert failed_nodes(memory(20), [ledger.nodes["gpu2"]]) == {
        "gpu2": "gpu2: needs 20 GiB on one GPU, at most 18 are free on one (34 of 40 in total)"
    }
    assert failed_nodes(whole(2), [ledger.nodes["gpu2"]]) == {"gpu2": "gpu2: needs 2 whole GPUs, 1 of 2 GPUs are empty"}


def test_gpus_that_are_out_are_mentioned() -> None:
    ledger = ledger_of(Inventory(UNITS["256MiB"], (gpu(0, 64, health="lost"), gpu(1, 64))))
    assert failed_nodes(memory(65), ledger.nodes.values()) == {
        "n": "n: needs 65 units of 256 MiB on one GPU, its largest GPU has 64 (64 in total on 1 GPU, 1 not usable)"
    }


def test_a_node_without_gpus_says_what_is_missing(golden: Golden) -> None:
    ledger = Ledger()
    ledger.set_inventory("bad", None, "version 2 is not known")
    ledger.apply(allocated_pod("a", memory(1), None, "bare"))
    found = failed_nodes(memory(1), ledger.nodes.values())
    assert "version 2 is not known" in found["bad"]
    golden(found["bare"])


def nodes_with(*frees: int) -> Ledger:
    """n0, n1, …, each with one GPU of 16 GiB with so much free."""
    ledger = Ledger()
    for number, free in enumerate(frees):
        name = f"n{number}"
        ledger.set_inventory(name, inventory(16))
        if free < 16:
            ledger.apply(allocated_pod(name, memory(16 - free), on(0, 16 - free), name))
    return ledger


def test_up_to_ten_nodes_are_named_and_more_are_grouped_by_what_they_have() -> None:
    assert set(failed_nodes(memory(9), nodes_with(*[8] * 10).nodes.values()).values()) == {
        f"n{number}: needs 9 GiB on one GPU, at most 8 are free on one (8 of 16 in total)" for number in range(10)
    }
    found = failed_nodes(memory(9), nodes_with(*[8] * 10, 5).nodes.values())
    assert found == {f"n{number}": f"needs 9 GiB on one GPU, at most {8 if number < 10 else 5} are free on one" for number in range(11)}


def test_groups_are_up_to_ten_and_then_one() -> None:
    frees = [*range(10), 9, 9]
    assert len(set(failed_nodes(memory(16), nodes_with(*frees).nodes.values()).values())) == 10
    found = failed_nodes(memory(16), nodes_with(*frees, 10).nodes.values())
    assert found == {f"n{number}": "no node has 16 units on one GPU" for number in range(13)}
    ledger = Ledger()
    for number in range(1, 12):
        ledger.set_inventory(f"n{number}", inventory(*[16] * number))
    assert set(failed_nodes(asking(24, 12), ledger.nodes.values()).values()) == {"no node has 2 units on each of 12 GPUs"}


def test_a_group_is_told_anew_when_its_nodes_have_changed() -> None:
    ledger = nodes_with(*[8] * 11)
    assert failed_nodes(memory(9), ledger.nodes.values())["n3"] == "needs 9 GiB on one GPU, at most 8 are free on one"
    ledger.apply(allocated_pod("more", memory(3), on(0, 3), "n3"))
    assert failed_nodes(memory(9), ledger.nodes.values())["n3"] == "needs 9 GiB on one GPU, at most 5 are free on one"


def grouped(request: Request, *gpus: Gpu, core: int = 0, held: Held = NOTHING_HELD) -> str:
    """What is said of one of eleven such nodes."""
    ledger = Ledger()
    for number in range(11):
        ledger.set_node(NodeRecord(f"n{number}", Inventory(UNITS["GiB"], gpus, core), "", held))
    return failed_nodes(request, ledger.nodes.values())["n10"]


def test_what_a_group_has() -> None:
    ledger = Ledger()
    for number in range(11):
        ledger.set_inventory(f"n{number}", None, "annotation gpushare/gpus cannot be used: version 2 is not known")
    assert set(failed_nodes(memory(1), ledger.nodes.values()).values()) == {
        "its annotation gpushare/gpus cannot be used: version 2 is not known"
    }
    held = Held(rejected=(Rejection("u", gpu(0, 16).uuid, 0, 1e9, whole=True),))
    assert grouped(whole(2), gpu(0, 16), gpu(1, 16), held=held) == (
        "needs 2 whole GPUs, 2 are empty; 1 GPU held back because the node rejected a pod of this size there"
    )
    assert grouped(whole(1), gpu(0, 16, health="lost")) == "needs 1 whole GPU, 0 are empty"
    assert grouped(asking(4, core=20), gpu(0, 16)) == (
        "needs 4 GiB and 20 % of compute on one GPU, but its isolation shares out no compute (aliyun.com/gpu-core.percentage)"
    )
    assert grouped(asking(4, core=60), gpu(0, 3), gpu(1, 4), core=50) == (
        "needs 4 GiB and 60 % of compute on one GPU, at most 4 are free on one, and at most 50 % of compute beside such memory"
    )
    assert grouped(asking(8, core=60), gpu(0, 4), core=50) == (
        "needs 8 GiB and 60 % of compute on one GPU, at most 4 are free on one, and at most 0 % of compute beside such memory"
    )
    assert grouped(asking(16, 2, models=("A100",)), gpu(0, 8), gpu(1, 7)) == (
        "needs 8 GiB on each of 2 GPUs, 1 GPU has that free; 2 GPUs not of a model or UUID that the pod accepts"
    )
    assert grouped(memory(25), gpu(0, 24)) == "needs 25 GiB on one GPU, at most 24 are free on one"


def test_a_size_that_the_largest_gpu_has_is_not_too_large() -> None:
    ledger = nodes_with(15)
    assert failed_nodes(memory(16), ledger.nodes.values())["n0"] == (
        "n0: needs 16 GiB on one GPU, at most 15 are free on one (15 of 16 in total)"
    )
    assert said(asking(32, 2), gpu(0, 16), gpu(1, 15)) == ("n: needs 16 GiB on each of 2 GPUs, 1 GPU has that free (31 of 31 in total)")
    assert said(memory(1), gpu(0, 16, cordoned=True)) == (
        "n: needs 1 GiB on one GPU, its largest GPU has 0 (0 in total on 0 GPUs, 1 not usable)"
    )
    assert said(memory(9), gpu(0, 8), gpu(1, 4, health="lost")) == (
        "n: needs 9 GiB on one GPU, its largest GPU has 8 (8 in total on 1 GPU, 1 not usable)"
    )
    assert said(whole(2), gpu(0, 8), gpu(1, 4, health="lost")) == ("n: needs 2 whole GPUs, 1 of 2 GPUs are empty, 1 not usable")


def asking(units: int, several: int = 1, core: int = 0, **rules: Any) -> Request:
    return Request((ContainerRequest(Kind.APP, 0, "main", units=units, core=core),), several, Rules(**rules))


def said(request: Request, *gpus: Gpu, core: int = 0, held: Held = NOTHING_HELD, used: int = 0) -> str:
    ledger = Ledger()
    ledger.set_node(NodeRecord("n", Inventory(UNITS["GiB"], gpus, core), "", held))
    if used:
        ledger.apply(AllocatedPod("u", "default", "u", "n", asking(1, core=used), on(0, 1), (("app", "noisy"),)))
    return failed_nodes(request, ledger.nodes.values())["n"]


def test_compute() -> None:
    assert said(asking(4, core=20), gpu(0, 16)) == (
        "n: needs 4 GiB and 20 % of compute on one GPU, but its isolation shares out no compute (aliyun.com/gpu-core.percentage)"
    )
    assert said(asking(4, core=60), gpu(0, 16), core=100, used=50) == (
        "n: needs 4 GiB and 60 % of compute on one GPU, at most 15 are free on one, and at most 50 % of compute beside such memory "
        "(15 of 16 in total)"
    )


def test_gpus_that_have_room_and_are_not_given_are_explained() -> None:
    held = Held(rejected=(Rejection("u", gpu(2, 16).uuid, 4, 1e9),))
    request = replace(asking(4, models=("T4",), not_with=(("app", "noisy"),)), context=Context("default", ()))
    found = said(request, gpu(0, 16), gpu(1, 16, model="A100"), gpu(2, 16), held=held, used=5, core=100)
    assert found == (
        "n: needs 4 GiB on one GPU, at most 16 are free on one (47 of 48 in total); 1 GPU not of a model or UUID that the pod accepts, "
        "1 GPU with other pods than the pods' rules allow, 1 GPU held back because the node rejected a pod of this size there"
    )


NODES = st.tuples(st.lists(st.integers(1, 80), min_size=1, max_size=3), st.integers(0, 100), st.booleans())


@given(st.lists(NODES, min_size=1, max_size=24))
def test_never_more_than_ten_wordings(nodes: list[tuple[list[int], int, bool]]) -> None:
    ledger = Ledger()
    for number, (sizes, core, known) in enumerate(nodes):
        gpus = tuple(gpu(i, size) for i, size in enumerate(sizes))
        inventories = (Inventory(UNITS["GiB"], gpus, core), "") if known else (None, f"broken {core}")
        ledger.set_node(NodeRecord(f"node-{number}", *inventories))
    for request in (asking(300, 3), asking(81, core=20), asking(1, models=("H100",)), whole(4)):
        found = failed_nodes(request, ledger.nodes.values())
        assert set(found) == set(ledger.nodes)
        assert len(set(found.values())) <= 10


@pytest.mark.parametrize(
    ("written", "units", "unit", "advice"),
    [
        ("10G", 10_000_000_000, "GiB", "10G means 10000000000 units of 1 GiB; the largest GPU has 24; write 10"),
        ("8Gi", 8 * 2**30, "GiB", "8Gi means 8589934592 units of 1 GiB; the largest GPU has 24; write 8"),
        ("8192", 8192, "GiB", "8192 means 8192 units of 1 GiB; the largest GPU has 24; write 8"),
        ("1G", 10**9, "256MiB", "1G means 1000000000 units of 256 MiB; the largest GPU has 24; write 4"),
        ("25", 25, "GiB", "25 means 25 units of 1 GiB; the largest GPU has 24; write at most 24"),
        ("100G", 10**11, "GiB", "100G means 100000000000 units of 1 GiB; the largest GPU has 24; write at most 24"),
        ("24", 24, "GiB", None),
        # Where bytes begin to be meant: 64 MiB of units; and where MiB do.
        ("64Mi", 2**26, "GiB", "64Mi means 67108864 units of 1 GiB; the largest GPU has 24; write 1"),
        ("n", 2**26 - 1, "GiB", "n means 67108863 units of 1 GiB; the largest GPU has 24; write at most 24"),
        ("512", 512, "GiB", "512 means 512 units of 1 GiB; the largest GPU has 24; write 1"),
        ("511", 511, "GiB", "511 means 511 units of 1 GiB; the largest GPU has 24; write at most 24"),
        # What is advised is rounded up, and must fit itself.
        ("24Gi", 24 * 2**30, "GiB", "24Gi means 25769803776 units of 1 GiB; the largest GPU has 24; write 24"),
        ("n", 24 * 2**30 + 1, "GiB", "n means 25769803777 units of 1 GiB; the largest GPU has 24; write at most 24"),
        ("24577", 24577, "GiB", "24577 means 24577 units of 1 GiB; the largest GPU has 24; write at most 24"),
        ("1025", 1025, "GiB", "1025 means 1025 units of 1 GiB; the largest GPU has 24; write 2"),
        # A number of MiB is what it says where the unit is 1 MiB.
        ("600", 600, "MiB", "600 means 600 units of 1 MiB; the largest GPU has 24; write at most 24"),
        ("600", 600, "64MiB", "600 means 600 units of 64 MiB; the largest GPU has 24; write 10"),
        ("24Mi", 24 * 2**20, "MiB", "24Mi means 25165824 units of 1 MiB; the largest GPU has 24; write at most 24"),
        ("64Mi", 2**26, "64MiB", "64Mi means 67108864 units of 64 MiB; the largest GPU has 24; write 1"),
    ],
)
def test_a_request_too_large_for_every_gpu_is_explained(written: str, units: int, unit: str, advice: str | None) -> None:
    asked = ContainerRequest(Kind.APP, 0, "main", units=units, written=written)
    found = explain.explain_size(asked, parse_unit(unit), 24)
    assert (found and found.words) == advice
    assert found is None or found.words.endswith(f" {found.instead}")


def test_a_pod_that_requires_a_limit_fits_where_the_driver_sets_one() -> None:
    strict = replace(memory(4), rules=Rules(isolation="driver"))
    ledger, request = Ledger(), strict
    ledger.set_inventory("open", inventory(16, 16))
    ledger.set_inventory("limits", replace(inventory(16), isolation="driver"))
    open_, limits = ledger.nodes["open"], ledger.nodes["limits"]
    assert (open_.remaining_after(request), limits.remaining_after(request)) == (None, 12)
    assert (open_.fits_when_empty(request), limits.fits_when_empty(request)) == (False, True)
    assert open_.remaining_after(memory(4)) == 12
    assert explain.exact(request, open_) == "needs 4 GiB on one GPU, the node has another isolation (unknown) than driver"
    ledger.set_inventory("shared", replace(inventory(16, 16), isolation="mps"))
    two = asking(8, 2, isolation="mps")
    assert explain.exact(two, ledger.nodes["shared"]).endswith(", the node has MPS, which gives a pod one GPU")
    ledger.set_inventory("models", inventory(16, 16))
    choosy = asking(1, models=("H100",))
    assert explain.exact(choosy, ledger.nodes["models"]) == (
        "needs 1 GiB on one GPU, its GPUs (Tesla T4) are not of a model or UUID that the pod accepts"
    )
    alone = replace(whole(1), rules=request.rules)
    assert open_.remaining_after(alone) == 1, "nobody else is on whole GPUs"


@pytest.mark.parametrize(
    ("request_", "gpus", "changes", "reason"),
    [
        (memory(9), (16,), {}, "no-room"),
        (whole(1), (16,), {}, "no-room"),
        (memory(17), (16,), {}, "too-small"),
        (whole(2), (16,), {}, "too-small"),
        (asking(4, core=20), (16,), {}, "no-compute"),
        (asking(1, models=("H100",)), (16,), {}, "incompatible"),
        (asking(1, isolation="driver"), (16,), {}, "isolation"),
        (asking(8, 2), (16, 16), {"isolation": "mps"}, "isolation"),
        (memory(1), None, {}, "no-inventory"),
    ],
)
def test_the_reason_is_a_word_that_stays(request_: Request, gpus: tuple[int, ...] | None, changes: dict[str, Any], reason: str) -> None:
    ledger = Ledger()
    ledger.set_inventory("n", replace(inventory(*gpus), **changes) if gpus else None)
    ledger.apply(allocated_pod("a", memory(8), on(0, 8) if gpus else None, "n"))
    found = explain.no_fit(request_, ledger.nodes["n"])
    assert (found.reason, found.fault) == (reason, "")
    assert reason in get_args(UnfitReason)


def test_the_reason_of_reserved_room_and_of_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = ledger_of(inventory(16))
    team = allocated_pod("p", memory(10), on(0, 10), "n")
    ledger.reserve(replace(team, group=Group("default/team", at_once=True)), 10.0)
    assert [explain.no_fit(memory(units), ledger.nodes["n"]).reason for units in (7, 17)] == ["reserved", "too-small"]
    monkeypatch.setattr(NodeLedger, "exclusions", lambda node, request: 1 // 0)
    assert explain.no_fit(memory(7), ledger.nodes["n"]).reason == "fault"


def test_the_group_is_named_for_which_the_room_is_reserved_and_only_where_it_would_do() -> None:
    ledger = Ledger()
    for number in range(12):
        ledger.set_inventory(f"n{number}", inventory(16))
        team = replace(
            allocated_pod(f"p{number}", memory(10), on(0, 10), f"n{number}"), group=Group("default/" + "t" * 100, at_once=number > 5)
        )
        ledger.reserve(team, 10.0)
    words = "needs 7 GiB on one GPU, at most 6 are free on one"
    named = f"; room is reserved for the group default/{'t' * 72}"
    nodes = list(ledger.nodes.values())
    assert failed_nodes(memory(7), nodes[:1]) == {"n0": f"n0: {words} (6 of 16 in total){named}"}
    assert set(failed_nodes(memory(7), nodes).values()) == {words + named}
    assert not any("group" in text for text in failed_nodes(memory(17), nodes).values())
    other = replace(allocated_pod("other", memory(1), on(0, 1), "n0"), group=Group("default/a", at_once=False))
    ledger.reserve(other, 10.0)
    assert failed_nodes(memory(7), nodes[:1])["n0"].endswith("; room is reserved for the group default/a and 1 more")
    # Whoever has what it waited for reserves nothing.
    ledger.apply(replace(other, group=None))
    assert failed_nodes(memory(7), nodes[:1])["n0"].endswith(named)
