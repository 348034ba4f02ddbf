# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""GET /inspect as the original answers it, and the whole ledger."""

from __future__ import annotations

import json

from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.core.ledger import Ledger
from gpushare_runtime.core.node_ledger import NodeRecord
from gpushare_runtime.core.node_report import Held, HeldEntry, Rejection
from gpushare_runtime.core.pods import AllocatedPod, PendingPod
from gpushare_runtime.core.quantity import GIB
from gpushare_runtime.core.request import ContainerRequest, Kind, Request
from gpushare_runtime.extender.inspect_api import inspect, ledger_json
from unit.runtime.core.test_ledger import memory, on, whole
from unit.runtime.pods import card, inventory


def ledger() -> Ledger:
    made = Ledger()
    cards = inventory(15, 15)
    held = Held((HeldEntry("GPU-00000001", "old", "x/old", 3, "orphaned"),), (Rejection("r", "GPU-00000001", 9, 1e9),))
    made.set_node(NodeRecord("n1", cards, "", held, "Tesla-T4", "spread"))
    made.set_node(NodeRecord("broken", None, "version 2 is not known"))
    made.apply(AllocatedPod("u", "default", "p", "n1", memory(2), on(0, 2), (), 7, True))
    made.assume(AllocatedPod("v", "default", "q", "n1", memory(7), on(0, 7)))
    made.nominate("w", PendingPod("w", "default", "w", memory(4), (), 9, nominated="n1"))
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
    assert inspect(ledger(), "broken") == {
        "nodes": [],
        "error": "node broken has no cards that are known: version 2 is not known; nodes with cards: n1",
    }
    assert inspect(Ledger(), "n") == {"nodes": [], "error": "node n has no cards that are known; nodes with cards: none"}
    assert inspect(Ledger()) == {"nodes": []}
    more = ledger()
    more.set_node(NodeRecord("a", inventory(8)))
    assert [node["name"] for node in inspect(more)["nodes"]] == ["a", "n1"]
    assert "nodes with cards: a, n1" in inspect(more, "n2")["error"]


def test_all_that_is_known_of_a_node() -> None:
    found = ledger_json(ledger())
    assert json.loads(json.dumps(found)) == found
    assert found["v"] == 1
    broken, node = found["nodes"]
    assert (broken["name"], broken["error"], broken["cards"]) == ("broken", "version 2 is not known", [])
    assert (node["unit"], node["placement"], node["model"]) == ("GiB", "spread", "Tesla-T4")
    assert [(c["index"], c["units"], c["free"], c["empty"]) for c in node["cards"]] == [(0, 15, 6, False), (1, 15, 12, False)]
    assert [(p["name"], p["state"], p["by_card"], p["priority"]) for p in node["pods"]] == [
        ("p", "terminating", {"0": 2}, 7),
        ("q", "assumed", {"0": 7}, 0),
    ]
    assert node["held"] == [{"card": "GPU-00000001", "uid": "old", "pod": "x/old", "units": 3, "why": "orphaned", "whole": False}]
    assert [(r["card"], r["units"], r["until"]) for r in node["rejected"]] == [("GPU-00000001", 9, 1e9)]
    assert node["nominated"] == [{"namespace": "default", "name": "w", "uid": "w", "priority": 9}]
    assert node["problems"] == []


def test_problems_and_pods_without_a_card_are_shown() -> None:
    made = ledger()
    made.apply(AllocatedPod("x", "default", "x", "n1", whole(1), None))
    made.reserve(AllocatedPod("y", "default", "y", "n1", memory(1), on(1, 1)), 1.0)
    node = ledger_json(made)["nodes"][1]
    assert [(p["name"], p["state"], p["by_card"]) for p in node["pods"][2:]] == [("x", "bound", None), ("y", "reserved", {"1": 1})]
    assert node["problems"] == ["pod default/x: its card is not known; it counts against every card that could hold it"]


def test_every_field_of_a_node() -> None:
    made = ledger()
    cards = Inventory(GIB, (card(0, 15, health="XID 79"), card(1, 15, cordoned=True, numa=1)), core=100)
    held = Held((HeldEntry("GPU-00000001", "old", "x/old", 15, "unmanaged", whole=True),), (Rejection("r", "GPU-00000001", 15, 1e9, True),))
    made.set_node(NodeRecord("n1", cards, "", held))
    request = Request((ContainerRequest(Kind.APP, 0, "main", units=2, core=20),))
    made.apply(AllocatedPod("u", "default", "p", "n1", request, on(0, 2), (), 7))
    made.apply(AllocatedPod("w", "another", "z", "n1", whole(1), on(1, 15)))
    made.hold_until("w", 1e9)
    broken, node = ledger_json(made, ["something is wrong"])["nodes"]
    assert ledger_json(made, ["something is wrong"])["problems"] == ["something is wrong"]
    assert ledger_json(Ledger()) == {"v": 1, "problems": [], "nodes": []}
    assert broken == {
        "name": "broken",
        "unit": None,
        "core": 0,
        "error": "version 2 is not known",
        "placement": "",
        "model": "",
        "cards": [],
        "pods": [],
        "held": [],
        "rejected": [],
        "nominated": [],
        "problems": broken["problems"],
    }
    assert (node["core"], node["error"]) == (100, "")
    assert node["cards"] == [
        {
            "index": 0,
            "uuid": "GPU-00000000",
            "minor": 0,
            "pci": "0000:00:00.0",
            "model": "Tesla T4",
            "units": 15,
            "free": 6,
            "core_free": 80,
            "empty": False,
            "health": "XID 79",
            "cordoned": False,
        },
        {
            "index": 1,
            "uuid": "GPU-00000001",
            "minor": 1,
            "pci": "0000:01:00.0",
            "model": "Tesla T4",
            "units": 15,
            "free": 0,
            "core_free": node["cards"][1]["core_free"],
            "empty": False,
            "health": "ok",
            "cordoned": True,
        },
    ]
    assert node["pods"][0] == {
        "namespace": "another",
        "name": "z",
        "uid": "w",
        "units": 0,
        "cards": 1,
        "core": 0,
        "whole": True,
        "priority": 0,
        "state": "deleted",
        "by_card": {"1": 15},
    }
    assert [(p["name"], p["state"], p["units"], p["core"], p["whole"]) for p in node["pods"][1:]] == [
        ("p", "bound", 2, 20, False),
        ("q", "assumed", 7, 0, False),
    ]
    assert node["held"] == [{"card": "GPU-00000001", "uid": "old", "pod": "x/old", "units": 15, "why": "unmanaged", "whole": True}]
    assert node["rejected"] == [{"card": "GPU-00000001", "uid": "r", "units": 15, "until": 1e9, "whole": True}]
