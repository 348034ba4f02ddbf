# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""GET /inspect as the original answers it, and the whole ledger."""

from __future__ import annotations

import json

from gpushare_runtime.extender.views import inspect, ledger_json
from gpushare_runtime.held import Held, HeldEntry, Refusal
from gpushare_runtime.ledger import Holder, Ledger, NodeRecord, Nominee
from unit.runtime.pods import inventory
from unit.runtime.test_ledger import memory, on, whole


def ledger() -> Ledger:
    made = Ledger()
    cards = inventory(15, 15)
    held = Held((HeldEntry("GPU-00000001", "old", "x/old", 3, "leaving"),), (Refusal("r", "GPU-00000001", 9, 1e9),))
    made.set_node(NodeRecord("n1", cards, "", held, "Tesla-T4", "spread"))
    made.set_node(NodeRecord("broken", None, "version 2 is not known"))
    made.apply(Holder("u", "default", "p", "n1", memory(2), on(0, 2), (), 7, True))
    made.assume(Holder("v", "default", "q", "n1", memory(7), on(0, 7)))
    made.nominate("w", Nominee("w", "default", "w", "n1", memory(4), (), 9))
    return made


def test_the_originals_form() -> None:
    assert inspect(ledger()) == {
        "nodes": [
            {
                "name": "n1",
                "totalGPU": 30,
                "usedGPU": 12,
                "devs": [
                    {
                        "id": 0,
                        "totalGPU": 15,
                        "usedGPU": 9,
                        "pods": [{"name": "p", "namespace": "default", "usedGPU": 2}, {"name": "q", "namespace": "default", "usedGPU": 7}],
                    },
                    {"id": 1, "totalGPU": 15, "usedGPU": 3, "pods": []},
                ],
            }
        ]
    }
    assert inspect(ledger(), "n1") == inspect(ledger())


def test_a_node_without_cards_is_an_error_in_words() -> None:
    assert inspect(ledger(), "n2") == {"nodes": [], "error": "node n2 has no cards that are known; nodes with cards: n1"}
    assert "version 2 is not known" in inspect(ledger(), "broken")["error"]


def test_all_that_is_known_of_a_node() -> None:
    found = ledger_json(ledger())
    assert json.loads(json.dumps(found)) == found
    assert found["v"] == 1
    broken, node = found["nodes"]
    assert (broken["name"], broken["error"], broken["cards"]) == ("broken", "version 2 is not known", [])
    assert (node["unit"], node["placement"], node["model"]) == ("GiB", "spread", "Tesla-T4")
    assert [(c["index"], c["units"], c["free"], c["empty"]) for c in node["cards"]] == [(0, 15, 6, False), (1, 15, 12, False)]
    assert [(p["name"], p["state"], p["by_card"], p["priority"]) for p in node["pods"]] == [
        ("p", "leaving", {"0": 2}, 7),
        ("q", "assumed", {"0": 7}, 0),
    ]
    assert node["held"] == [{"card": "GPU-00000001", "uid": "old", "pod": "x/old", "units": 3, "why": "leaving", "whole": False}]
    assert [(r["card"], r["units"], r["until"]) for r in node["refused"]] == [("GPU-00000001", 9, 1e9)]
    assert node["nominated"] == [{"namespace": "default", "name": "w", "uid": "w", "priority": 9}]
    assert node["problems"] == []


def test_problems_and_pods_without_a_card_are_shown() -> None:
    made = ledger()
    made.apply(Holder("x", "default", "x", "n1", whole(1), None))
    made.reserve(Holder("y", "default", "y", "n1", memory(1), on(1, 1)), 1.0)
    node = ledger_json(made)["nodes"][1]
    assert [(p["name"], p["state"], p["by_card"]) for p in node["pods"][2:]] == [("x", "bound", None), ("y", "reserved", {"1": 1})]
    assert node["problems"] == ["pod default/x: its card is not known; it counts against every card that could hold it"]
