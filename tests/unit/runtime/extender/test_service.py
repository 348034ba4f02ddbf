# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""filter and prioritize on a ledger."""

from __future__ import annotations

from typing import Any

import pytest

from gpushare_runtime.allocation import Allocation
from gpushare_runtime.extender.service import Service
from gpushare_runtime.extender.wire import Arguments
from gpushare_runtime.ledger import Holder, Ledger
from gpushare_runtime.placement import Binpack
from gpushare_runtime.request import parse_request
from unit.runtime.pods import container, inventory, pod

NAMES = ["gpu1", "gpu2", "plain"]


def hold(ledger: Ledger, node: str, card: int, units: int) -> None:
    request = parse_request(pod(container(mem=units)))
    assert request is not None
    uid = f"{node}-{card}-{units}"
    ledger.apply(Holder(uid, "default", uid, node, request, Allocation.of({0: {card: units}})))


@pytest.fixture
def ledger() -> Ledger:
    """The lab's two nodes."""
    ledger = Ledger()
    ledger.set_inventory("gpu1", inventory(16, 16))
    ledger.set_inventory("gpu2", inventory(16, 24))
    return ledger


def args(*containers: dict[str, Any], **options: Any) -> Arguments:
    return Arguments(pod(*containers, **options), NAMES)


def test_fits_and_refuses_with_numbers(ledger: Ledger) -> None:
    result = Service(ledger, Binpack()).filter(args(container(mem=20)))
    assert result.names == ["gpu2"]
    assert result.failed == {
        "gpu1": "gpu1: needs 20 GiB on one card, its largest card has 16 (32 in total on 2 cards)",
        "plain": "plain: no annotation gpushare/cards on the node: gpushare-device-plugin has not run there",
    }
    assert not result.hopeless


def test_a_total_is_not_a_card(ledger: Ledger) -> None:
    result = Service(ledger, Binpack()).filter(args(container(mem=25)))
    assert result.names == []
    assert "32 in total" in result.failed["gpu1"]
    assert "40 in total" in result.failed["gpu2"]


def test_what_is_held_is_not_free(ledger: Ledger) -> None:
    hold(ledger, "gpu2", 1, 6)
    result = Service(ledger, Binpack()).filter(args(container(mem=20)))
    assert result.failed["gpu2"] == "gpu2: needs 20 GiB on one card, at most 18 are free on one (34 of 40 in total)"


def test_a_pod_that_asks_for_nothing_passes_everywhere(ledger: Ledger) -> None:
    service = Service(ledger, Binpack())
    for nothing in (args(container()), args(container(mem=0))):
        assert service.filter(nothing).names == NAMES
        assert service.prioritize(nothing) == {}


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (args(container(mem=1, count=1)), "at once"),
        (args(container(mem=-1)), "-1 is negative"),
        (args(container(mem="1e30")), "more than any machine has"),
        (args(container(mem="1.5")), "not a whole number"),
        (args(container(mem=9), labels={"aliyun.com/gpu-count": "2"}), "cannot be spread evenly over 2 cards"),
        (args(container(mem=8, core=21)), "multiple of 5"),
        (args(container(mem=2), init=[container("first", mem=4)], labels={"aliyun.com/gpu-count": "2"}), "at random"),
        (args(container(mem=2), annotations={"gpushare.request/placement": "best"}), "'best' is no policy"),
    ],
)
def test_bad_and_unsupported_requests_are_refused_on_every_node(ledger: Ledger, wrong: Arguments, said: str) -> None:
    service = Service(ledger, Binpack())
    result = service.filter(wrong)
    assert result.names == []
    assert set(result.failed) == set(NAMES)
    assert len(set(result.failed.values())) == 1
    assert said in result.failed["gpu1"]
    assert result.hopeless
    assert result.error == ""
    assert service.prioritize(wrong) == {}


def test_whole_cards(ledger: Ledger) -> None:
    hold(ledger, "gpu1", 0, 1)
    result = Service(ledger, Binpack()).filter(args(container(count=2)))
    assert result.names == ["gpu2"]
    assert result.failed["gpu1"] == "gpu1: needs 2 whole cards, 1 of 2 cards are empty"


def test_prioritize_prefers_the_fullest_and_knows_only_its_own(ledger: Ledger) -> None:
    hold(ledger, "gpu2", 0, 8)
    scores = Service(ledger, Binpack()).prioritize(args(container(mem=8)))
    assert scores == {"gpu2": 10}, "what is left out counts 0"


def test_the_best_nodes_alone_are_named_when_so_many_are_enough(ledger: Ledger) -> None:
    hold(ledger, "gpu2", 0, 8)
    ledger.set_inventory("gpu3", inventory(16))
    names = ["gpu3", "gpu2", "gpu1", "plain"]
    asked = Arguments(pod(container(mem=8)), names)
    assert Service(ledger, Binpack()).filter(asked).names == ["gpu3", "gpu2", "gpu1"]
    result = Service(ledger, Binpack(), most=2).filter(asked)
    assert result.names == ["gpu2", "gpu3"], "the fullest card, then the smallest node"
    assert set(result.failed) == {"plain"}, "a node that fits has not failed"


def test_another_version_of_a_pod_is_read_anew(ledger: Ledger) -> None:
    service = Service(ledger, Binpack())
    for version, units, fitting in (("1", 20, ["gpu2"]), ("1", 20, ["gpu2"]), ("2", 16, ["gpu1", "gpu2"])):
        raw = pod(container(mem=units))
        raw["metadata"]["resourceVersion"] = version
        assert service.filter(Arguments(raw, NAMES)).names == fitting
