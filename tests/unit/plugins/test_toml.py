# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""TOML is read as Python's own tomllib reads it, and edited without touching another byte."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import tomllib
from ansible_collections.gpushare.kubernetes.plugins.module_utils._toml import TomlError, loads, parse
from ansible_collections.gpushare.kubernetes.plugins.module_utils._toml_edit import (
    append,
    drop,
    remove,
    remove_empty_header,
    set_value,
)
from hypothesis import assume, given, settings
from hypothesis import strategies as st

CRI = ("plugins", "io.containerd.grpc.v1.cri")
RUNTIMES = (*CRI, "containerd", "runtimes")

KEYS = st.sampled_from(["a", "b", "runtimes", "runc", "nvidia", "io.containerd.grpc.v1.cri", "", "it's", 'quo"te', "ümlaut", "tab\t"])
PATHS = st.lists(KEYS, min_size=1, max_size=4).map(tuple)
SCALARS = st.one_of(
    st.text(max_size=12),
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.floats(allow_nan=False),
    st.sampled_from(["runc", "/usr/bin/nvidia-container-runtime"]),
)


def basic(text: str) -> str:
    """A basic string; only what TOML forbids is escaped."""
    return '"' + "".join(f"\\u{ord(c):04x}" if c in '"\\' or (ord(c) < 32 and c != "\t") or ord(c) == 127 else c for c in text) + '"'


@st.composite
def written_key(draw: st.DrawFn, part: str) -> str:
    forms = [basic(part)]
    if part and all(c.isascii() and (c.isalnum() or c in "-_") for c in part):
        forms.append(part)
    if "'" not in part:
        forms.append(f"'{part}'")
    return draw(st.sampled_from(forms))


@st.composite
def written_path(draw: st.DrawFn, path: tuple[str, ...]) -> str:
    return draw(st.sampled_from([".", " . "])).join([draw(written_key(part)) for part in path])


@st.composite
def written_value(draw: st.DrawFn, depth: int = 2) -> str:
    kind = draw(st.sampled_from(["scalar"] * 4 + (["array", "inline"] if depth else [])))
    if kind == "array":
        gap = draw(st.sampled_from(["", " ", "\n  ", " # why\n"]))
        values = draw(st.lists(written_value(depth - 1), max_size=3))
        comma = draw(st.sampled_from(["", ","])) if values else ""
        return "[" + gap + ("," + gap).join(values) + comma + gap + "]"
    if kind == "inline":
        keys = draw(st.lists(PATHS, max_size=3, unique=True))
        return "{ " + ", ".join([f"{draw(written_path(key))} = {draw(written_value(depth - 1))}" for key in keys]) + " }"
    value = draw(SCALARS)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        forms = [basic(value), '"""' + basic(value)[1:-1] + '"""']
        if "'" not in value and basic(value)[1:-1] == value:
            forms += [f"'{value}'", f"'''\n{value}'''"]
        return draw(st.sampled_from(forms))
    if isinstance(value, int):
        return draw(st.sampled_from([str(value), f"{value:_}" if abs(value) > 999 else str(value), f"0x{abs(value):x}"]))
    return repr(value)


@st.composite
def documents(draw: st.DrawFn) -> str:
    """TOML as people and programs write it; now and then a document that is not TOML at all."""
    lines = []
    nested = draw(st.booleans())
    blank = draw(st.booleans())

    def keys(indent: str) -> None:
        for path in draw(st.lists(PATHS.filter(lambda path: len(path) < 3), max_size=3, unique=True)):
            comment = draw(st.sampled_from(["", "  # comment"]))
            lines.append(f"{indent}{draw(written_path(path))} = {draw(written_value())}{comment}")

    keys("")
    for path in draw(st.lists(PATHS, max_size=5, unique=True)):
        indent = "  " * len(path) if nested else ""
        if blank:
            lines.append("")
        if draw(st.integers(0, 4)) == 0:
            lines.append(f"{indent}# [commented.out]")
        brackets = ("[[", "]]") if draw(st.integers(0, 9)) == 0 else ("[", "]")
        lines.append(indent + brackets[0] + draw(written_path(path)) + brackets[1])
        keys(indent + "  " * nested)
    text = "\n".join(lines) + draw(st.sampled_from(["", "\n", "\n\n# the end\n"]))
    return text.replace("\n", "\r\n") if draw(st.booleans()) else text


VALID = documents().filter(lambda text: oracle(text) is not None)


def oracle(text: str) -> dict[str, Any] | None:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError:
        return None


def ours(text: str) -> dict[str, Any] | None:
    try:
        return loads(text)
    except TomlError:
        return None


def same(left: Any, right: Any) -> bool:
    return repr(left) == repr(right)


@settings(deadline=None, max_examples=300)
@given(documents())
def test_it_reads_what_tomllib_reads_and_refuses_what_it_refuses(text: str) -> None:
    assert same(ours(text), oracle(text))


@settings(deadline=None, max_examples=500)
@given(VALID, st.data())
def test_so_it_does_with_damaged_documents(text: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(text)))
    what = data.draw(
        st.sampled_from(["'", '"', *"[]{}=.,#\\ \r\n\t\0\x7f-+_01ae", '"""', "'''", "[[", "\\u00e4", "\\ud800", "\\\n ", "inf"])
    )
    cut = data.draw(st.integers(0, 3))
    damaged = text[:at] + what + text[at + cut :]
    assert same(ours(damaged), oracle(damaged))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a = 1\nb = 2021-01-01\n", "line 2: dates and times are not supported"),
        ("a = 1\n\na = 2\n", "line 3: the key is there twice"),
        ("[a]\n[a]\n", "line 2: the table is defined already"),
        ('a = "b\n', "line 1: the string does not end"),
        ("a = \n", "line 1: expected a value"),
        ("a = 1 b\n", "line 1: expected the end of the line"),
    ],
)
def test_an_error_names_the_line(text: str, message: str) -> None:
    with pytest.raises(TomlError, match=message):
        loads(text)


def put(data: dict[str, Any], path: tuple[str, ...], value: Any) -> dict[str, Any] | None:
    """The data with this value; None if something on the way is no table."""
    data = copy.deepcopy(data)
    table: Any = data
    for part in path[:-1]:
        table = table.setdefault(part, {})
        if not isinstance(table, dict):
            return None
    table[path[-1]] = value
    return data


NEW = st.one_of(st.just("nvidia"), st.booleans(), st.integers(0, 9), st.lists(st.text(max_size=3), max_size=2), SCALARS)


def is_insertion(shorter: str, longer: str) -> bool:
    prefix = 0
    while prefix < len(shorter) and shorter[prefix] == longer[prefix]:
        prefix += 1
    return longer.endswith(shorter[prefix:]) and len(longer) >= len(shorter)


@settings(deadline=None, max_examples=500)
@given(VALID, PATHS, NEW)
def test_setting_a_value_changes_that_value_and_taking_it_away_leaves_the_old_bytes(text: str, path: tuple[str, ...], value: Any) -> None:
    before = tomllib.loads(text)
    wanted = put(before, path, value)
    try:
        after = set_value(text, path, value)
    except TomlError:
        # Refused: below a value, or where TOML or caution forbids it; never silently wrong.
        assume(False)
    assert same_data(tomllib.loads(after), wanted)
    assert set_value(after, path, value) == after
    if lookup(before, path) is None:
        assert is_insertion(text, after)
        assert headerless(remove(after, path), text, path) == text


def same_data(left: Any, right: Any) -> bool:
    """Equal with types, whatever the order of keys."""
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same_data(left[key], right[key]) for key in left)
    return same(left, right)


def lookup(data: Any, path: tuple[str, ...]) -> Any:
    for part in path:
        if not isinstance(data, dict) or part not in data:
            return None
        data = data[part]
    return data


def headerless(text: str, original: str, path: tuple[str, ...]) -> str:
    """Without the header that only the removed key needed."""
    return text if text == original else remove_empty_header(text, path[:-1])


@settings(deadline=None, max_examples=200)
@given(VALID, st.data())
def test_removing_leaves_everything_else(text: str, data: st.DataObject) -> None:
    before = tomllib.loads(text)
    keys = [(*header.path, "") for header in parse(text).headers] + [item.path for item in parse(text).items]
    assume(keys)
    path = data.draw(st.sampled_from(keys))
    path = path[: data.draw(st.integers(1, len(path)))]
    assume(lookup(before, path) is not None)
    try:
        after = tomllib.loads(remove(text, path))
    except TomlError:
        assume(False)
    assert lookup(after, path) is None
    for size in range(1, len(path)):
        for key, value in lookup(before, path[:size]).items():
            if key != path[size]:
                assert same_data((lookup(after, path[:size]) or {}).get(key), value)


ELEMENTS = st.lists(st.sampled_from(["/etc/containerd/conf.d/*.toml", "x", "it's"]), max_size=3)


@settings(deadline=None)
@given(ELEMENTS, st.sampled_from(["[{}]", "[ {} ]", "[\n  {},\n]", "[{}] # comment"]), st.sampled_from([", ", ",", ",\n  "]))
def test_a_list_gets_one_element_and_loses_it_again(elements: list[str], form: str, between: str) -> None:
    assume(elements or "," not in form)
    text = "version = 2\nimports = " + form.format(between.join(basic(element) for element in elements)) + "\n[plugins]\n"
    after = append(text, ("imports",), "/new")
    assert tomllib.loads(after) == {"version": 2, "imports": [*elements, "/new"], "plugins": {}}
    assert is_insertion(text, after)
    assert drop(after, ("imports",), "/new") == text


def test_a_missing_list_is_made_among_the_first_keys() -> None:
    assert append("version = 3\n\n[plugins]\n", ("imports",), "x") == 'version = 3\nimports = ["x"]\n\n[plugins]\n'


NESTED = """\
version = 2

[plugins]
  [plugins."io.containerd.grpc.v1.cri".containerd]
    # which runtime pods get
    snapshotter = "overlayfs"

    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"

[debug]
  level = "info"
"""


def test_new_tables_stand_among_their_siblings_and_look_like_them() -> None:
    text = set_value(NESTED, (*CRI, "containerd", "default_runtime_name"), "nvidia")
    text = set_value(text, (*RUNTIMES, "nvidia", "runtime_type"), "io.containerd.runc.v2")
    text = set_value(text, (*RUNTIMES, "nvidia", "options", "BinaryName"), "/usr/bin/nvidia-container-runtime")
    assert (
        text
        == """\
version = 2

[plugins]
  [plugins."io.containerd.grpc.v1.cri".containerd]
    # which runtime pods get
    snapshotter = "overlayfs"
    default_runtime_name = "nvidia"

    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"

    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
      runtime_type = "io.containerd.runc.v2"

      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
        BinaryName = "/usr/bin/nvidia-container-runtime"

[debug]
  level = "info"
"""
    )
    text = remove(text, (*RUNTIMES, "nvidia"))
    assert remove(text, (*CRI, "containerd", "default_runtime_name")) == NESTED


def test_quotes_are_those_of_the_file() -> None:
    text = "version = 3\n[plugins.'io.containerd.cri.v1.runtime'.containerd]\n  default_runtime_name = 'runc' # as shipped\n"
    path = ("plugins", "io.containerd.cri.v1.runtime", "containerd")
    assert set_value(text, (*path, "default_runtime_name"), "nvidia") == text.replace("'runc'", "'nvidia'")
    assert "[plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.nvidia]\n  runtime_type = 'x'" in set_value(
        text, (*path, "runtimes", "nvidia", "runtime_type"), "x"
    )


def test_inline_tables_are_extended_inside_their_braces() -> None:
    text = 'a = { options = { SystemdCgroup = true }, runtime_type = "x" } # why\n'
    after = set_value(text, ("a", "options", "BinaryName"), "/x")
    assert after == 'a = { options = { SystemdCgroup = true, BinaryName = "/x" }, runtime_type = "x" } # why\n'
    assert remove(after, ("a", "options", "BinaryName")) == text
    assert set_value(text, ("a", "options", "SystemdCgroup"), False) == text.replace("true", "false")


def test_what_lies_in_an_array_of_tables_is_refused() -> None:
    with pytest.raises(TomlError, match="is no table"):
        set_value("[[a]]\nb = 1\n", ("a", "c"), 2)


def test_a_value_is_not_turned_into_a_table() -> None:
    with pytest.raises(TomlError, match=r"a\.b\.c cannot be set: b is no table"):
        set_value("[a]\nb = 1\n", ("a", "b", "c"), 2)
