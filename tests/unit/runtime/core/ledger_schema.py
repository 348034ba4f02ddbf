# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The check of a ledger in JSON against its published schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema

SCHEMA = json.loads((Path(__file__).parents[4] / "docs/reference/ledger-v1.schema.json").read_text())


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
