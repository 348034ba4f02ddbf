# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Changing a YAML text in place: it means what was wanted, and the rest of it stays as it was."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._yaml_splice import dump, splice
from hypothesis import given, settings
from hypothesis import strategies as st

KEYS = st.text("abcdefg", min_size=1, max_size=3)
SCALARS = st.none() | st.booleans() | st.integers(-9, 9) | st.text("ab: #-'\n\"x", max_size=6)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=10)
DOCUMENTS = st.dictionaries(KEYS, VALUES, max_size=4)


@settings(deadline=None)
@given(DOCUMENTS, DOCUMENTS, st.sampled_from([None, True, False]))
def test_the_result_always_means_what_was_wanted(before: dict[str, Any], wanted: dict[str, Any], flow: bool | None) -> None:
    text = yaml.safe_dump(before, default_flow_style=flow, sort_keys=False)
    assert repr(_sorted(yaml.safe_load(splice(text, wanted)))) == repr(_sorted(wanted))


@settings(deadline=None)
@given(DOCUMENTS, KEYS, VALUES)
def test_what_is_added_at_the_end_leaves_every_line_before_it(before: dict[str, Any], key: str, value: Any) -> None:
    text = dump(before)
    if key in before or not before:
        return
    assert splice(text, {**before, key: value}).startswith(text.rstrip("\n"))


@settings(deadline=None)
@given(DOCUMENTS, KEYS, VALUES, st.data())
def test_what_was_added_goes_again_without_a_trace(before: dict[str, Any], key: str, value: Any, data: st.DataObject) -> None:
    """A key at the end, or an element anywhere in a list that goes on having others."""
    text = dump(before)
    if key in before or not before:
        return
    assert splice(splice(text, {**before, key: value}), before) == text
    lists = [name for name, found in before.items() if isinstance(found, list) and found and value not in found]
    if lists:
        name = data.draw(st.sampled_from(lists))
        longer = before[name][:]
        longer.insert(data.draw(st.integers(0, len(longer))), value)
        assert splice(dump({**before, name: longer}), before) == text


@settings(deadline=None)
@given(DOCUMENTS)
def test_nothing_changes_where_nothing_differs(document: dict[str, Any]) -> None:
    text = dump(document) if document else "# empty\n{}\n"
    assert splice(text, document) == text


def test_comments_order_and_quoting_stay() -> None:
    text = """\
# the scheduler of rack 7
kind: "KubeSchedulerConfiguration"   # not a string that we would quote
profiles:
  - schedulerName: default-scheduler
    # keep: benchmarked in May
    percentageOfNodesToScore: 30
extenders: []  # none yet
other: yes
# the end
"""
    wanted = yaml.safe_load(text)
    wanted["extenders"] = [{"urlPrefix": "http://127.0.0.1:1/x", "weight": 1}]
    wanted["profiles"].append({"schedulerName": "second"})
    assert (
        splice(text, wanted)
        == """\
# the scheduler of rack 7
kind: "KubeSchedulerConfiguration"   # not a string that we would quote
profiles:
  - schedulerName: default-scheduler
    # keep: benchmarked in May
    percentageOfNodesToScore: 30
  - schedulerName: second
extenders:
  - urlPrefix: http://127.0.0.1:1/x
    weight: 1  # none yet
other: yes
# the end
"""
    )


def test_what_goes_takes_its_lines_and_no_others() -> None:
    text = """\
scheduler:
  extraArgs:
  - name: config # ours
    value: /a
  # theirs, see ticket 7
  - name: v
    value: "4"
  extraVolumes:
  - name: gone
    hostPath: /b
  other: 'x'
dns: {}
"""
    wanted = yaml.safe_load(text)
    del wanted["scheduler"]["extraArgs"][0], wanted["scheduler"]["extraVolumes"]
    assert (
        splice(text, wanted)
        == """\
scheduler:
  extraArgs:
  # theirs, see ticket 7
  - name: v
    value: "4"
  other: 'x'
dns: {}
"""
    )
    wanted["scheduler"] = {}
    assert splice(text, wanted) == "scheduler: {}\ndns: {}\n"


@pytest.mark.parametrize("text", ["a: &x [1]\nb: *x\n", "", "# only a comment\n", "{a: 1}", "- 1\n- 2\n", "a: |\n  text\n"])
def test_what_cannot_be_edited_in_place_is_written_anew(text: str) -> None:
    assert yaml.safe_load(splice(text, {"a": [1, 2], "b": None})) == {"a": [1, 2], "b": None}


def _sorted(value: Any) -> Any:
    """Dictionaries in the order of their keys, so that repr() tells True from 1 and no order from another."""
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(one) for one in value] if isinstance(value, list) else value
