# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The table and the picture say what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from xml.etree import ElementTree

from gpu_proof import page


def row(isolation: str, programs: int, of_one: float, kind: str = "chain") -> dict[str, Any]:
    figures = {"per_second": 100.0 * of_one, "of_one": of_one, "slowest_of_fastest": 0.9}
    return {"isolation": isolation, "kind": kind, "programs": programs, **figures}


ROWS = [row("none", 1, 1.0), row("none", 4, 0.8), row("mps", 4, 3.2, "a<b")]
REPORT = {"steps": [{"values": {"model": "NVIDIA A30"}}, {"values": {"throughput": ROWS}}]}


def test_each_row_has_its_bar_in_its_proportion(tmp_path: Path) -> None:
    page.write(REPORT, tmp_path / "gpu-a.json")
    root = ElementTree.fromstring((tmp_path / "gpu-a.svg").read_text())
    space = "{http://www.w3.org/2000/svg}"
    widths = [float(one.get("width", "0")) for one in root.findall(f"{space}rect")[1:]]
    assert [round(width / max(widths), 2) for width in widths] == [0.31, 0.25, 1.0]
    words = [one.text for one in root.findall(f"{space}text")]
    assert "NVIDIA A30" in str(words[0])
    assert "4 × a<b, MPS" in words
    lines = (tmp_path / "gpu-a.md").read_text().splitlines()
    assert lines[2] == "| chain | `none` | 1 | 100.0 | 1.0 | 0.9 |"
    assert len(lines) == 5


def test_without_figures_nothing_is_written(tmp_path: Path) -> None:
    page.write({"steps": [{"values": {}}]}, tmp_path / "gpu-a.json")
    assert list(tmp_path.iterdir()) == []
