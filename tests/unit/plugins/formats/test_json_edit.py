# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""JSON text is changed where it was asked for, and every other byte stays; what docker would not read is an error with its line."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._formats.json_edit import JsonError, loads, remove, set_value
from hypothesis import given
from hypothesis import strategies as st

ENTRY = {"path": "/usr/bin/n", "args": ["-x", 1]}
ENTRY_TEXT = """{
    "path": "/usr/bin/n",
    "args": [
        "-x",
        1
    ]
}"""


def entry(unit: str, depth: int, newline: str = "\n") -> str:
    """The entry in a document that indents by `unit`, with its key at this depth."""
    return ENTRY_TEXT.replace("    ", unit).replace("\n", newline + unit * depth)


FLAT = '"n": {"path": "/usr/bin/n", "args": ["-x", 1]}'
# Text before and with both values, in the style of the text.
STYLES = {
    "empty": ("{}", '{\n    "runtimes": {\n        "n": ' + entry("    ", 2) + '\n    },\n    "default": "n"\n}'),
    "one line": ('{"a": 1}\n', '{"a": 1, "runtimes": {' + FLAT + '}, "default": "n"}\n'),
    "dense": ('{"a":{"b":[]}}', '{"a":{"b":[]},"runtimes":{' + FLAT.replace(" ", "") + '},"default":"n"}'),
    "tabs": (
        '{\n\t"a": {\n\t\t"x": true\n\t},\n\t"runtimes": {"c": {}}\n}\n',
        '{\n\t"a": {\n\t\t"x": true\n\t},\n\t"runtimes": {"c": {}, ' + FLAT + '},\n\t"default": "n"\n}\n',
    ),
    "crlf": (
        '{\r\n  "runtimes" : {}\r\n}\r\n',
        '{\r\n  "runtimes" : {\r\n    "n": ' + entry("  ", 2, "\r\n") + '\r\n  },\r\n  "default" : "n"\r\n}\r\n',
    ),
    "no indentation": (
        '{\n"a": [1,\n2]\n}\n',
        '{\n"a": [1,\n2],\n"runtimes": {\n    "n": ' + entry("    ", 1) + '\n},\n"default": "n"\n}\n',
    ),
    "a byte order mark": ('\ufeff{"a":1}', '\ufeff{"a":1,"runtimes":{' + FLAT.replace(" ", "") + '},"default":"n"}'),
}


@pytest.mark.parametrize(("before", "after"), STYLES.values(), ids=STYLES)
def test_what_is_added_has_the_documents_style_and_comes_off_again(before: str, after: str) -> None:
    changed = set_value(set_value(before, ("runtimes", "n"), ENTRY), ("default",), "n")
    assert changed == after
    assert loads(changed) == {**loads(before), "default": "n", "runtimes": {**loads(before).get("runtimes", {}), "n": ENTRY}}
    path = ("runtimes", "n") if "runtimes" in loads(before) else ("runtimes",)
    assert remove(remove(changed, ("default",)), path) == before


def test_a_value_is_replaced_in_its_place() -> None:
    text = '{ "a" :\t1 ,\n  "b": {"path": "/x", "keep": 1.50e3},  "c": null }'
    assert set_value(text, ("b", "path"), "/ü") == text.replace('"/x"', '"/ü"')
    assert set_value(text, ("a",), [1]) == text.replace("\t1 ", "\t[\n  1\n] ")
    with pytest.raises(ValueError, match=r"b\.path is not an object"):
        set_value(text, ("b", "path", "x"), 1)


def test_a_member_is_removed_with_one_comma() -> None:
    text = '{\n  "a": 1,\n  "b": 2,\n  "c": 3\n}'
    assert remove(text, ("a",)) == '{\n  "b": 2,\n  "c": 3\n}'
    assert remove(text, ("b",)) == '{\n  "a": 1,\n  "c": 3\n}'
    assert remove(text, ("c",)) == '{\n  "a": 1,\n  "b": 2\n}'
    assert remove(text, ("x",)) == remove(text, ("x", "y")) == remove(text, ("a", "y")) == text


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{\n  "a": 1,\n  "a": 2\n}', r"line 3: key 'a' for the second time; the first is in line 2"),
        ('{"x": {"a": 1,\n"a": 2}}', r"line 2: key 'a'"),
        ('{\n  // note\n  "a": 1\n}', "line 2: a comment"),
        ('{"a": 1 /* b */}', "line 1: a comment"),
        ('# yaml\n{"a": 1}', "line 1: a comment"),
        ('{"a": 1}\n# end', "line 2: a comment"),
        ('{\n"a": 1,\n}', "line 3: a comma before the closing bracket"),
        ("[1,]", "line 1: a comma before the closing bracket"),
        ('{"a": 1\n"b": 2}', "line 2: expected a comma or }"),
        ('{"a" 1}', "expected a colon after 'a'"),
        ("{'a': 1}", "expected a key in double quotes"),
        ('{"a": nul}', "expected a value"),
        ('{"a": 01}', "expected"),
        ('{"a": NaN}', "expected a value"),
        ('{"a": "x\ny"}', "line 1: a string that does not end"),
        ('{"a": ', "expected a value, found the end"),
        ("", "expected a value, found the end"),
        ("{} {}", "the document has ended"),
        ("[" * 60, "more than 50 levels"),
        # More than Python reads.
        ('{"a":\n' + "1" * 5000 + "}", "line 2: a number of 5000 digits, expected at most 1000"),
    ],
)
def test_what_is_no_json_is_an_error_with_its_line(text: str, message: str) -> None:
    for call in (lambda: loads(text), lambda: set_value(text, ("a",), 1), lambda: remove(text, ("a",))):
        with pytest.raises(JsonError, match=message):
            call()


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=12,
)
OBJECTS = st.dictionaries(st.text(), VALUES, max_size=4)


@given(OBJECTS, st.text(), VALUES, st.sampled_from([None, 2, "\t"]), st.booleans())
def test_any_document_has_the_value_afterwards_and_nothing_else_changed(
    data: dict[str, Any], key: str, value: Any, indent: int | str | None, ascii_only: bool
) -> None:
    text = json.dumps(data, indent=indent, ensure_ascii=ascii_only)
    assert loads(text) == data
    changed = set_value(text, (key,), value)
    assert json.loads(changed) == loads(changed) == {**data, key: value}
    removed = remove(changed, (key,))
    assert json.loads(removed) == {name: inner for name, inner in data.items() if name != key}
    if data and key not in data:
        assert removed == text
