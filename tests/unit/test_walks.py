# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The ways through the product are as `tools/walks.py` has them, and none has grown."""

from __future__ import annotations

from unit.golden import Golden
from walks import WALKS, Step, Walk, broken


def test_each_file_on_a_way_is_there_and_an_earlier_one_names_it() -> None:
    assert list(broken(WALKS)) == []


def test_a_step_that_leads_nowhere_and_a_longer_way_are_told(golden: Golden) -> None:
    steps = (Step("site.yml", ""), Step("playbooks/site.yml", "nowhere.yml"), Step("playbooks/gone.yml", "gone.yml"))
    found = list(broken({"a": Walk(2, steps), "b": Walk(1, ())}))
    assert [problem[0] for problem in found] == ["a", "a", "a", "b"]
    for problem in found:
        golden(problem)
