# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The check of a ledger in JSON against its published schema, and a ledger that has some of everything."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema

from gpushare_runtime.core.ledger import Ledger
from gpushare_runtime.core.node_ledger import NodeRecord
from gpushare_runtime.core.node_report import Held, HeldEntry, Rejection
from gpushare_runtime.core.pods import AllocatedPod, PendingPod
from unit.fakes.runtime.pods import inventory, memory, on

SCHEMA = json.loads((Path(__file__).parents[5] / "docs/reference/ledger-v1.schema.json").read_text())


def closed(schema: Any) -> Any:
    """The same schema, which lets no field pass that it does not name: new ones must be published."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: closed(value) for key, value in schema.items()}
    return made | {"additionalProperties": False} if "required" in schema else made


def check(document: Any) -> None:
    """ValidationError if it is not of the published form."""
    jsonschema.Draft202012Validator(closed(SCHEMA)).validate(document)


def ledger() -> Ledger:
    """A node with pods of each kind, and one whose inventory is not known."""
    made = Ledger()
    gpus = inventory(15, 15)
    held = Held((HeldEntry("GPU-00000001", "old", "x/old", 3, "orphaned"),), (Rejection("r", "GPU-00000001", 9, 1e9),))
    made.set_node(NodeRecord("n1", gpus, "", held, "Tesla-T4", "spread"))
    made.set_node(NodeRecord("broken", None, "version 2 is not known"))
    made.apply(AllocatedPod("u", "default", "p", "n1", memory(2), on(0, 2), (), 7, True))
    made.assume(AllocatedPod("v", "default", "q", "n1", memory(7), on(0, 7)))
    made.nominate("w", PendingPod("w", "default", "w", memory(4), (), 9, nominated="n1"))
    return made
