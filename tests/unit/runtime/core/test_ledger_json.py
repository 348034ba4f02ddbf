# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The ledger as JSON, and its published schema."""

from __future__ import annotations

import json

import jsonschema
import pytest

from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.core.ledger import Ledger
from gpushare_runtime.core.ledger_json import ledger_json
from gpushare_runtime.core.node_ledger import NodeRecord
from gpushare_runtime.core.node_report import Held, HeldEntry, Rejection
from gpushare_runtime.core.pods import AllocatedPod, InvalidPod, PendingPod
from gpushare_runtime.core.quantity import GIB
from gpushare_runtime.core.request import ContainerRequest, Kind, Request
from unit.fakes.runtime.core.ledger_schema import SCHEMA, check, ledger
from unit.fakes.runtime.pods import gpu, memory, on, whole


def test_all_that_is_known_of_a_node() -> None:
    found = ledger_json(ledger())
    assert json.loads(json.dumps(found)) == found
    assert found["v"] == 1
    broken, node = found["nodes"]
    assert (broken["name"], broken["error"], broken["gpus"]) == ("broken", "version 2 is not known", [])
    assert (node["unit"], node["placement"], node["model"]) == ("GiB", "spread", "Tesla-T4")
    assert [(c["index"], c["units"], c["free"], c["empty"]) for c in node["gpus"]] == [(0, 15, 6, False), (1, 15, 12, False)]
    assert [(p["name"], p["state"], p["by_gpu"], p["priority"]) for p in node["pods"]] == [
        ("p", "terminating", {"0": 2}, 7),
        ("q", "assumed", {"0": 7}, 0),
    ]
    assert node["held"] == [{"gpu": "GPU-00000001", "uid": "old", "pod": "x/old", "units": 3, "why": "orphaned", "whole": False}]
    assert [(r["gpu"], r["units"], r["until"]) for r in node["rejected"]] == [("GPU-00000001", 9, 1e9)]
    assert node["nominated"] == [{"namespace": "default", "name": "w", "uid": "w", "priority": 9}]
    assert node["problems"] == []


def test_problems_and_pods_without_a_gpu_are_shown() -> None:
    made = ledger()
    made.apply(AllocatedPod("x", "default", "x", "n1", whole(1), None))
    made.reserve(AllocatedPod("y", "default", "y", "n1", memory(1), on(1, 1)), 1.0)
    node = ledger_json(made)["nodes"][1]
    assert [(p["name"], p["state"], p["by_gpu"]) for p in node["pods"][2:]] == [("x", "bound", None), ("y", "reserved", {"1": 1})]
    assert node["problems"] == ["pod default/x: its GPU is not known; it counts against every GPU that could hold it"]
    made.hold_until("u", 1e9)
    check(ledger_json(made, ["something is wrong"]))


def test_every_field_of_a_node() -> None:
    made = ledger()
    gpus = Inventory(GIB, (gpu(0, 15, health="XID 79"), gpu(1, 15, cordoned=True, numa=1)), core=100)
    held = Held((HeldEntry("GPU-00000001", "old", "x/old", 15, "unmanaged", whole=True),), (Rejection("r", "GPU-00000001", 15, 1e9, True),))
    made.set_node(NodeRecord("n1", gpus, "", held))
    request = Request((ContainerRequest(Kind.APP, 0, "main", units=2, core=20),))
    made.apply(AllocatedPod("u", "default", "p", "n1", request, on(0, 2), (), 7))
    made.apply(AllocatedPod("w", "another", "z", "n1", whole(1), on(1, 15)))
    made.hold_until("w", 1e9)
    broken, node = ledger_json(made, ["something is wrong"])["nodes"]
    assert ledger_json(made, ["something is wrong"])["problems"] == ["something is wrong"]
    assert ledger_json(Ledger()) == {"v": 1, "complete": True, "problems": [], "nodes": [], "pending": []}
    nothing = dict.fromkeys(("unit", "unit_mib")) | dict.fromkeys(("strategy", "isolation", "placement", "model"), "") | {"core": 0}
    nothing |= {name: [] for name in ("gpus", "pods", "held", "rejected", "nominated")}
    assert broken == nothing | {"name": "broken", "error": "version 2 is not known", "problems": broken["problems"]}
    assert (node["core"], node["error"]) == (100, "")
    own = ("index", "uuid", "minor", "pci", "model", "mib", "numa", "units", "usable", "health", "cordoned")
    counted = ({"free": 6, "core_free": 80}, {"free": 0, "core_free": node["gpus"][1]["core_free"]})
    assert node["gpus"] == [
        {name: getattr(one, name) for name in own} | more | {"empty": False, "used_mib": None}
        for one, more in zip(gpus.gpus, counted, strict=True)
    ]
    assert node["pods"][0] == {
        "namespace": "another",
        "name": "z",
        "uid": "w",
        "units": 0,
        "gpus": 1,
        "core": 0,
        "whole": True,
        "priority": 0,
        "state": "deleted",
        "by_gpu": {"1": 15},
        "used_mib": None,
    }
    assert [(p["name"], p["state"], p["units"], p["core"], p["whole"]) for p in node["pods"][1:]] == [
        ("p", "bound", 2, 20, False),
        ("q", "assumed", 7, 0, False),
    ]
    assert node["held"] == [{"gpu": "GPU-00000001", "uid": "old", "pod": "x/old", "units": 15, "why": "unmanaged", "whole": True}]
    assert node["rejected"] == [{"gpu": "GPU-00000001", "uid": "r", "units": 15, "until": 1e9, "whole": True}]


def test_the_schema_is_one_and_its_version_is_ours() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert SCHEMA["properties"]["v"]["const"] == ledger_json(Ledger())["v"]
    with pytest.raises(jsonschema.ValidationError):
        check(ledger_json(Ledger()) | {"new": 1})
    without = ledger_json(ledger())
    del without["nodes"][1]["gpus"][0]["health"]
    with pytest.raises(jsonschema.ValidationError):
        check(without)


def waiting() -> list[PendingPod | InvalidPod]:
    several = Request((ContainerRequest(Kind.INIT, 0, "i", units=8), ContainerRequest(Kind.APP, 0, "main", units=4)), gpus_per_pod=2)
    return [
        PendingPod("3", "b", "large", memory(40), (), -5, nominated="n1"),
        InvalidPod("1", "a", "odd", "container 'main': -1 is negative"),
        PendingPod("2", "a", "split", several),
    ]


def test_pending_pods_have_their_reason() -> None:
    reasons = {"3": "0/1 nodes are available: \x1b[31mno room", "1": "not looked at", "2": "not looked at"}
    found = ledger_json(ledger(), pending=waiting(), reasons=reasons)
    check(found)
    odd, split, large = found["pending"]
    assert (odd["name"], odd["units"], odd["reason"]) == ("odd", None, "container 'main': -1 is negative")
    assert split["reason"].startswith("container 'main' takes 4 of the 8 units that an init container leaves")
    assert (large["units"], large["gpus"], large["gpus_per_pod"], large["priority"]) == (40, 0, 1, -5)
    assert (large["nominated"], large["reason"]) == ("n1", "0/1 nodes are available:  [31mno room")


def test_what_nobody_knows_of_an_incomplete_ledger_is_null() -> None:
    made = ledger()
    made.apply(AllocatedPod("z", "default", "z", "elsewhere", memory(3), on(1, 3)))
    found = ledger_json(made, complete=False)
    check(found)
    assert found["complete"] is False
    node = next(node for node in found["nodes"] if node["name"] == "n1")
    assert [(c["units"], c["free"], c["core_free"], c["empty"], c["usable"]) for c in node["gpus"]] == [(15, None, None, None, True)] * 2
    unknown = next(node for node in found["nodes"] if node["name"] == "elsewhere")
    assert (unknown["unit"], unknown["gpus"], unknown["pods"][0]["by_gpu"]) == (None, [], {"1": 3})
