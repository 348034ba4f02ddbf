# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Changing a YAML text in place: it means what was wanted, and the rest of it stays as it was."""

from __future__ import annotations

import json
from random import Random
from typing import Any

import pytest
import yaml
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._scheduler.yaml_splice import lost_comments, splice
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._yaml import dump
from hypothesis import given, settings
from hypothesis import strategies as st

KEYS = st.text("abcdefg", min_size=1, max_size=3)
SCALARS = st.none() | st.booleans() | st.integers(-9, 9) | st.text("ab: #-'\n\"x", max_size=6)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3), max_leaves=10)
DOCUMENTS = st.dictionaries(KEYS, VALUES, max_size=4)


@settings(deadline=None, max_examples=60)
@given(DOCUMENTS, DOCUMENTS, st.sampled_from([None, True, False]))
def test_the_result_always_means_what_was_wanted(before: dict[str, Any], wanted: dict[str, Any], flow: bool | None) -> None:
    text = yaml.safe_dump(before, default_flow_style=flow, sort_keys=False)
    after = splice(text, wanted)
    assert repr(_sorted(yaml.safe_load(after))) == repr(_sorted(wanted))
    assert not after.startswith("{") or json.loads(after) == wanted


@settings(deadline=None, max_examples=60)
@given(DOCUMENTS, DOCUMENTS, st.sampled_from([None, 2, "\t"]))
def test_json_stays_json(before: dict[str, Any], wanted: dict[str, Any], indent: int | str | None) -> None:
    text = json.dumps(before, indent=indent)
    assert repr(_sorted(json.loads(splice(text, wanted)))) == repr(_sorted(wanted))


def test_json_is_written_with_its_own_indentation_or_not_at_all() -> None:
    text = '{"kind":"X",\n\t"a": {"b" : 1},\n"d": "\\u00e9"}\n'
    assert splice(text, {"kind": "X", "d": "é", "a": {"b": 1}}) == text
    assert splice(text, {"kind": "X", "d": "é"}) == '{\n\t"kind": "X",\n\t"d": "\\u00e9"\n}\n'


@settings(deadline=None, max_examples=60)
@given(DOCUMENTS, KEYS, VALUES)
def test_what_is_added_at_the_end_leaves_every_line_before_it(before: dict[str, Any], key: str, value: Any) -> None:
    text = dump(before)
    if key in before or not before:
        return
    assert splice(text, {**before, key: value}).startswith(text.rstrip("\n"))


@settings(deadline=None, max_examples=60)
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


@settings(deadline=None, max_examples=60)
@given(DOCUMENTS)
def test_nothing_changes_where_nothing_differs(document: dict[str, Any]) -> None:
    text = dump(document) if document else "# empty\n{}\n"
    assert splice(text, document) == text


def test_a_text_with_an_alias_in_which_nothing_differs_stays() -> None:
    text = "a: &x [1]  # comment\nb: *x\n"
    assert splice(text, {"a": [1], "b": [1]}) == text


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


def test_what_is_written_anew_says_to_kubernetes_what_it_said() -> None:
    """PyYAML would take the date for one, and write y, 08 and 12e4 without quotes."""
    text = "name: &x a\napp: *x\nrack: '08'\nrow: \"y\"\nbuild: '12e4'\non: no\nat: 2026-11-29T10:00:00Z\nfor: 1:30\n"
    wanted = {
        "name": "a",
        "app": "a",
        "rack": "08",
        "row": "y",
        "build": "12e4",
        "true": False,
        "at": "2026-11-29T10:00:00Z",
        "for": "1:30",
    }
    assert splice(text, wanted) == text
    after = "name: a\napp: a\nrack: '08'\nrow: 'y'\nbuild: '12e4'\n'true': false\nat: '2026-11-29T10:00:00Z'\nfor: '1:30'\nc: 1\n"
    assert splice(text, {**wanted, "c": 1}) == after


@pytest.mark.parametrize("text", ["a: &x [1]\nb: *x\n", "", "# only a comment\n", "{a: 1}", "- 1\n- 2\n", "a: |\n  text\n"])
def test_what_cannot_be_edited_in_place_is_written_anew(text: str) -> None:
    assert yaml.safe_load(splice(text, {"a": [1, 2], "b": None})) == {"a": [1, 2], "b": None}


LONG = "long " * 40 + "end"


@pytest.mark.parametrize(
    ("text", "wanted", "after"),
    [
        # Inside brackets, on the line.
        ("a: {b: 1, c: 2} # x\n", {"a": {"c": 3, "a": 1}}, "a: {c: 3, a: 1} # x\n"),
        ("a: [1, 2] # x\n", {"a": [1]}, "a: [1] # x\n"),
        ("# x\n{a:  'y'} # y\n", {"a": "y"}, "# x\n{a:  'y'} # y\n"),
        # In braces as a whole: in block style, because what begins with a brace is JSON to Kubernetes.
        ("# x\n{a: 1} # y\n", {"a": 2}, "# x\na: 2 # y\n"),
        ("--- {a: 1}\n", {"a": 2}, "--- \na: 2\n"),
        # An empty value becomes a block below its key, and a block an empty value behind it.
        ("a: []\nb: 1\n", {"a": [1], "b": 1}, "a:\n  - 1\nb: 1\n"),
        ("a: {} # x\nb: 1\n", {"a": {"c": [1]}, "b": 1}, "a:\n  c:\n  - 1 # x\nb: 1\n"),
        ("a:\nb: 1 # x\n", {"a": {"c": 1}, "b": 1}, "a:\n  c: 1\nb: 1 # x\n"),
        ("a: ~ # x\nb: 1\n", {"a": [1], "b": 1}, "a:\n  - 1 # x\nb: 1\n"),
        ("c:\n  a: [] # x\n", {"c": {"a": [1]}}, "c:\n  a:\n    - 1 # x\n"),
        ("a: ''\nb: 1 # x\n", {"a": ["y"], "b": 1}, "a: ['y']\nb: 1 # x\n"),
        ("a:  {} # x\nb: 1\n", {"a": [], "b": 1}, "a:  [] # x\nb: 1\n"),
        ("a: ~ # x\nb: 1\n", {"a": "y: z", "b": 1}, "a: 'y: z' # x\nb: 1\n"),
        ("a:\n  b: 1 # x\nc: 1\n", {"a": {}, "c": 1}, "a: {} # x\nc: 1\n"),
        ("a:\n- b\nc: 1 # x\n", {"a": [], "c": 1}, "a: []\nc: 1 # x\n"),
        # Elements of a list; a new one stands as the others do.
        ("# x\n- a: 1\n  b: 2\n- c\n", [{"a": 1}, "c"], "# x\n- a: 1\n- c\n"),
        ("# x\n- a: 1\n  b: 2 # b\n- c\n", [{"a": 1, "b": 2, "d": 3}, "c"], "# x\n- a: 1\n  b: 2 # b\n  d: 3\n- c\n"),
        ("# x\n- a\n- c\n", ["c"], "# x\n- c\n"),
        ("# x\n- a\n- c\n", ["a", "b", "c"], "# x\n- a\n- b\n- c\n"),
        ("# x\n- a # a\n- c\n", ["b", "c"], "# x\n- b # a\n- c\n"),
        ("# x\n- a # a\n- c # c\n- d\n", ["b", "d"], "# x\n- b # a\n- d\n"),
        ("# x\n- a # a\n- c\n- d\n", ["a", "e", "f", "d"], "# x\n- a # a\n- e\n- f\n- d\n"),
        ("# x\n- a\n- c # c", ["a", "c", "d", "e"], "# x\n- a\n- c # c\n- d\n- e"),
        ("# x\na:\n    - b: 1\n", {"a": [{"b": 1}, {"c": 1, "d": 2}]}, "# x\na:\n    - b: 1\n    - c: 1\n      d: 2\n"),
        ("# x\n-\n  a\n- b\n", ["a"], "# x\n-\n  a\n"),
        ("# x\n- a: 1\n- b: 1 # b\n  c: 1\n", [{"c": 1, "b": 1}], "# x\n- b: 1 # b\n  c: 1\n"),
        ("# x\n- a # a\n" + "- b\n" * 200, ["b"] * 200, "# x\n" + "- b\n" * 200),
        (
            "# x\n" + "".join(f"- a: {number}\n  b: 'y{number}'\n" for number in (1, 2, 3)),
            [{"a": number + 3, "b": f"y{number}"} for number in (1, 2, 3)],
            "# x\n" + "".join(f"- a: {number + 3}\n  b: 'y{number}'\n" for number in (1, 2, 3)),
        ),
        # Keys: at the end of their mapping, before what follows it.
        ("# x\na: 1", {"a": 1, "b": 2}, "# x\na: 1\nb: 2"),
        ("# x\na: 1\nb: 2", {"a": 1}, "# x\na: 1\n"),
        ("\na: 1\nb: 2 # x\n", {"b": 2}, "\nb: 2 # x\n"),
        ("a: {b: 1}# x\n", {"a": {"b": 1}, "c": 1}, "a: {b: 1}# x\nc: 1\n"),
        ("# x\na:\n    b: 1\n", {"a": {"b": 1, "c": {"d": 1}}}, "# x\na:\n    b: 1\n    c:\n      d: 1\n"),
        ("# x\na:\n- b: 1\n  # of c\nc: 1\n", {"a": [{"b": 1, "d": 2}], "c": 1}, "# x\na:\n- b: 1\n  d: 2\n  # of c\nc: 1\n"),
        (
            "# x\na:\n  b:\n    c: 1\nd: 1\n",
            {"a": {"b": {"c": 1, "e": 2}, "f": 3}, "d": 1},
            "# x\na:\n  b:\n    c: 1\n    e: 2\n  f: 3\nd: 1\n",
        ),
        ("# x\na: {b: 1\n  }\nc: 1\n", {"a": {"b": 1}, "c": 1, "d": {}}, "# x\na: {b: 1\n  }\nc: 1\nd: {}\n"),
        ("---\n# x\na: 1\n...\n", {"a": 1, "b": 2}, "---\n# x\na: 1\nb: 2\n...\n"),
        ("# x\n? a\n: 1\nb: 2\n", {"a": 1}, "# x\n? a\n: 1\n"),
        ("# x\na: 1\r\nb: 2\r\n", {"a": 1}, "# x\na: 1\r\n"),
        # Text over several lines.
        ("# x\na: |\n  text\n\nb: 2\n", {"b": 2}, "# x\n\nb: 2\n"),
        ("# x\na: |\n  text\n\n\n# y\n", {"a": "text\n", "b": 1}, "# x\na: |\n  text\nb: 1\n\n\n# y\n"),
        ("# x\na: y\n", {"a": LONG}, f"# x\na: {LONG}\n"),
        ("# x\na: 1\n", {"a": 1, "c": LONG, "b": "ü"}, f"# x\na: 1\nc: {LONG}\nb: ü\n"),
        ("# x\na:\n  b: 1\n", {"a": {"b": 1, "c": "d\ne"}}, "# x\na:\n  b: 1\n  c: 'd\n\n    e'\n"),
        # No date to Kubernetes.
        ("# x\na: 2026-11-28\nb: 1\n", {"a": "2026-11-28", "b": 2}, "# x\na: 2026-11-28\nb: 2\n"),
        # Kubernetes reads the first document.
        ("# x\na: 1\n---\n", {"a": 2}, "# x\na: 2\n---\n"),
        ("---\n# x\na: 1\n---\nb: @ # y\n", {"a": 1, "c": 1}, "---\n# x\na: 1\nc: 1\n---\nb: @ # y\n"),
        ("# x\na: 1\nb:\n  ? c\n...\n", {"a": 1}, "# x\na: 1\n...\n"),
        ("a: &x 1\nb: *x\n---\nc: 1\n", {"a": 1, "b": 2}, "a: 1\nb: 2\n---\nc: 1\n"),
        # Equal to Python, but not to YAML.
        ("# x\na: 1\nb: 1.0\nc: true\n", {"a": 1.0, "b": True, "c": 1}, "# x\na: 1.0\nb: true\nc: 1\n"),
    ],
)
def test_how_a_change_is_written(text: str, wanted: Any, after: str) -> None:
    assert splice(text, wanted) == after


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("# x\na:\n  b: 1\n", {"a": 1}),
        ("# x\na:\n  -b: 1\n", {"a": [1]}),
        ("# x\n- a: 1\n  b: 2\n", [{"b": 2}]),
        ("# x\n- a\n", ["b", "a"]),
        ("# x\n- a\n", []),
        ("# x\na: 1\n", {}),
        ("# x\na: 1\na: 2\n", {"a": 3}),
        ("# x\nz: &z 1\nb: *z\nc: 1\n", {"z": 1, "b": 1, "c": 2}),
        ("# x\na: &y\n- b\n- c\n", {"a": ["b"]}),
        ("# x\n? a\n: 1\nb: 2\n", {"b": 2}),
        ("# x\na: |\n  text\nb: 1\n", {"a": "less\n", "b": 1}),
        ("# x\na:\nb: 1\n", {"a": "y", "b": 1}),
        ("# x\n", {"a": 1}),
    ],
)
def test_where_nothing_may_be_lost_but_comments_it_is_written_anew(text: str, wanted: Any) -> None:
    assert splice(text, wanted) == dump(wanted)


class Writer(Random):
    """A document in block style, line by line, each with a comment of its own: the path of what begins there, and the line."""

    def __init__(self, seed: int) -> None:
        super().__init__(seed)
        self.lines: list[tuple[tuple[Any, ...], str]] = []
        self.node((), "", 3)

    def add(self, path: tuple[Any, ...], line: str) -> None:
        self.lines.append((path, f"{line}  # {len(self.lines)}."))

    def node(self, path: tuple[Any, ...], indent: str, depth: int) -> None:
        for key in self.sample("abcde", self.randint(2, 4)):
            kind = self.choice(["scalar", "mapping", "list"]) if depth else "scalar"
            inner, deeper = (*path, key), indent + self.choice(["  ", "    "])
            if kind == "scalar":
                self.add(inner, f"{indent}{key}: {self.choice(['x', '1', 'y z'])}")
                continue
            self.add(inner, f"{indent}{key}:")
            if kind == "mapping":
                self.node(inner, deeper, depth - 1)
            else:
                dash = self.choice([indent, deeper])
                for place in range(self.randint(2, 3)):
                    self.add((*inner, place), f"{dash}- {key}{place}")

    @property
    def text(self) -> str:
        return "".join(line + "\n" for _path, line in self.lines)


@given(st.integers(0, 2**64))
def test_every_line_that_is_not_meant_stays(seed: int) -> None:
    """One value is changed, one goes, or one comes: that line, those lines, and a line behind those of its parent."""
    writer = Writer(seed)
    wanted = yaml.safe_load(writer.text)
    path, line = writer.choice(writer.lines)
    place = writer.lines.index((path, line))
    parent: Any = wanted
    for part in path[:-1]:
        parent = parent[part]
    is_list, is_leaf = isinstance(parent, list), isinstance(parent[path[-1]], str | int)
    of_this = [one for one in writer.lines if one[0][: len(path)] == path]
    lines = writer.lines[:]
    what = writer.choice(["change", "go", "come"])
    if what == "change" and is_leaf:
        head = line[: line.index("- ") + 2] if is_list else line[: line.index(": ") + 2]
        parent[path[-1]] = "new"
        lines[place] = (path, f"{head}new{line[line.index('  # ') :]}")
    elif what == "go":
        del parent[path[-1]]
        lines = [one for one in lines if one not in of_this]
    else:
        of_parent = [one for one in lines if one[0][: len(path) - 1] == path[:-1]]
        indent = line[: len(line) - len(line.lstrip())]
        parent.append("new") if is_list else parent.update(new="new")
        lines.insert(lines.index(of_parent[-1]) + 1, ((), f"{indent}- new" if is_list else f"{indent}new: new"))
    assert splice(writer.text, wanted) == "".join(one + "\n" for _path, one in lines)


def _sorted(value: Any) -> Any:
    """Dictionaries in the order of their keys, so that repr() tells True from 1 and no order from another."""
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(one) for one in value] if isinstance(value, list) else value


def test_comments_that_are_lost_are_counted() -> None:
    text = "# why\na: 1  # one\nb: [1, 2]\nc: 'no # comment'\n#\n"
    assert lost_comments(text, text) == 0
    assert lost_comments(text, splice(text, {**yaml.safe_load(text), "d": 2})) == 0
    assert lost_comments(text, dump({**yaml.safe_load(text), "d": 2})) == 2
    assert lost_comments("", "a: 1\n") == 0
