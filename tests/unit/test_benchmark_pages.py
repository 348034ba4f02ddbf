# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The tables of the benchmark pages are those of the figures beside them."""

from __future__ import annotations

import json
from pathlib import Path

from bench.transport.__main__ import table

PAGES = Path(__file__).resolve().parents[2] / "docs" / "benchmarks"


def test_transport() -> None:
    assert table(json.loads((PAGES / "transport.json").read_text())) in (PAGES / "transport.md").read_text()
