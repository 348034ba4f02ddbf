# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""GET /inspect as the original answers it."""

from __future__ import annotations

from gpushare_runtime.core.ledger import Ledger
from gpushare_runtime.core.node_ledger import NodeRecord
from gpushare_runtime.core.pods import AllocatedPod
from gpushare_runtime.extender.inspect_json import inspect
from unit.fakes.runtime.core.ledger_schema import ledger
from unit.fakes.runtime.pods import inventory, memory, on


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


def test_a_node_without_gpus_is_an_error_in_words() -> None:
    assert inspect(ledger(), "n2") == {"nodes": [], "error": "node n2 has no GPUs that are known; nodes with GPUs: n1"}
    assert inspect(ledger(), "broken") == {
        "nodes": [],
        "error": "node broken has no GPUs that are known: version 2 is not known; nodes with GPUs: n1",
    }
    assert inspect(Ledger(), "n") == {"nodes": [], "error": "node n has no GPUs that are known; nodes with GPUs: none"}
    assert inspect(Ledger()) == {"nodes": []}
    more = ledger()
    more.set_node(NodeRecord("a", inventory(8)))
    assert [node["name"] for node in inspect(more)["nodes"]] == ["a", "n1"]
    assert "nodes with GPUs: a, n1" in inspect(more, "n2")["error"]
    # Known only by a pod that is bound there.
    more.apply(AllocatedPod("u2", "default", "p2", "bare", memory(2), on(0, 2)))
    assert inspect(more, "bare")["error"] == "node bare has no GPUs that are known; nodes with GPUs: a, n1"


def test_a_pod_whose_gpu_is_not_known_is_on_none_and_a_node_with_a_fault_has_none() -> None:
    made = ledger()
    before = inspect(made)
    made.apply(AllocatedPod("x", "default", "x", "n1", memory(2), None))
    [found] = inspect(made)["nodes"]
    assert [gpu["pods"] for gpu in found["devs"]] == [gpu["pods"] for gpu in before["nodes"][0]["devs"]]
    # Of a kind that nobody has thought of.
    made.nodes["n1"]._facts.pods["odd"] = None  # type: ignore[assignment]
    none: dict[str, object] = {"name": "n1", "totalGPU": 0, "usedGPU": 0, "devs": []}
    assert inspect(made) == inspect(made, "n1") == {"nodes": [none]}
