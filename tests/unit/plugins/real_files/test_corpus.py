# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The corpus itself: each case says where such a file is seen, each rejection what our message must have, and no test passes it over."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from unit.fakes.plugins.real_files.corpus import BESIDE, FOLDER, Case, cases

KINDS = sorted(path.name for path in FOLDER.iterdir() if path.is_dir() and path.name != "__pycache__")
CASES = [case for kind in KINDS for case in cases(kind)]


def test_each_kind_has_a_test() -> None:
    texts = "".join(path.read_text() for path in Path(__file__).parent.glob("test_*.py"))
    assert [kind for kind in KINDS if f'parameters("{kind}")' not in texts] == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: str(case.place.relative_to(FOLDER)))
def test_a_case_is_complete(case: Case) -> None:
    assert re.fullmatch(r"accepted|rejected(_[0-9.]+)?", case.place.parent.name)
    assert case.seen, f"{case.name}: a line with `seen:` in it, or in {case.name}.seen, tells where such a file is seen"
    assert bool(case.says) or not case.place.parent.name.startswith("rejected"), f"{case.name}.says has what our message must say"


def test_nothing_lies_beside_no_case() -> None:
    there = {path for kind in KINDS for path in (FOLDER / kind).glob("*/*")}
    assert [path.name for path in there if path.suffix in BESIDE and path.with_suffix("") not in there] == []
