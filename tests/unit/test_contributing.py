# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The map in CONTRIBUTING.md names files and names that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "CONTRIBUTING.md").read_text()
RUNTIME = ROOT / "files/gpushare_runtime/gpushare_runtime"
MAP = PAGE.partition("## Where a behaviour lives")[2].partition("\n## ")[0]
ROWS = [line for line in MAP.splitlines() if line.startswith("| ")][1:]


def places(row: str) -> list[Path]:
    """The files of a row; one without a folder lies beside the one before it."""
    found: list[Path] = []
    for name in re.findall(r"`([\w/]+(?:\.py|/))`", row.split("|")[2]):
        base = ROOT if name.startswith(("tests/", "tools/")) else RUNTIME if "/" in name else found[-1].parent
        found.append(base / name)
    return found


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.split("|")[1].strip())
def test_what_a_row_names_is_there(row: str) -> None:
    paths = places(row)
    assert paths
    assert [str(path) for path in paths if not path.exists()] == []
    text = "".join(path.read_text() for path in paths if path.is_file())
    symbols = re.findall(r"`(\w+)`", row.split("|")[2])
    assert [symbol for symbol in symbols if f"def {symbol}(" not in text] == []


@pytest.mark.parametrize("line", re.findall(r"^- .*(?:\n  .*)*", MAP, re.MULTILINE), ids=lambda line: line[2:40])
def test_a_short_name_lies_beside_the_file_before_it(line: str) -> None:
    found: list[Path] = []
    for name in re.findall(r"`([\w/]+\.(?:py|c))`", line):
        whole = next((base / name for base in (ROOT, RUNTIME) if "/" in name and (base / name).is_file()), None)
        found.append(whole or found[-1].parent / name)
    assert [str(path) for path in found if not path.is_file()] == []


def test_every_file_of_the_how_to_is_there() -> None:
    named = re.findall(r"`((?:plugins|tests|roles|playbooks)/[\w/.]+)`", PAGE)
    assert named
    assert [name for name in named if not (ROOT / name).exists()] == []
