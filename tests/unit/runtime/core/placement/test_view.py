# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The nodes as one pod may use them: room that others were nominated for is not its own."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpushare_runtime.core.ledger import Ledger, NodeLedger
from gpushare_runtime.core.placement.policies import Binpack
from gpushare_runtime.core.placement.view import view_of
from gpushare_runtime.core.pods import PendingPod
from unit.fakes.runtime.pods import allocated_pod, inventory, memory, on


def pending(uid: str, units: int, priority: int = 0) -> PendingPod:
    return PendingPod(uid, "default", uid, memory(units), (), priority, "")


@pytest.fixture
def ledger() -> Ledger:
    """On a and b 6 and 16 are free. A pod of priority 5 is nominated to b for 12."""
    ledger = Ledger()
    ledger.set_inventory("a", inventory(16))
    ledger.set_inventory("b", inventory(16))
    ledger.apply(allocated_pod("p", memory(10), on(0, 10), "a"))
    ledger.nominate("n", replace(pending("n", 12, 5), nominated="b"))
    return ledger


def test_room_of_nominees_is_left_to_them_and_to_more_important_pods(ledger: Ledger) -> None:
    low, high = (view_of(ledger, Binpack(), pending("x", 6, priority)) for priority in (5, 6))
    assert (low.node("b").largest_free(), high.node("b").largest_free()) == (4, 16)
    assert low.fitting(["a", "b", "unknown"]) == (["a"], {"b", "unknown"})
    assert set(high.fitting(["a", "b"])[0]) == {"a", "b"}
    assert (low.scores(["a", "b"])[0], low.choice("b")) == ("a", None)
    chosen = high.choice("b")
    assert chosen is not None
    assert chosen.by_gpu == {0: 6}
    found = low.no_fits({"b", "unknown"})
    assert {name: no_fit.reason for name, no_fit in found.items()} == {"b": "no-room", "unknown": "no-inventory"}
    assert "at most 4 are free" in low.in_words(found)["b"]


def test_a_node_that_cannot_be_computed_takes_no_pod_and_keeps_its_fault(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(NodeLedger, "remembered", lambda node, key, make: 1 // 0)
    view = view_of(ledger, Binpack(), pending("x", 1))
    assert (view.node("b").inventory, view.node("b").fault.partition(" ")[0], view.choice("b")) == (None, "ZeroDivisionError", None)
