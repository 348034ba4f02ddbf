# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""JSON text gets and loses single values in its own form; what docker would not read is an error with its line."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._formats.json_edit import JsonError, loads, remove, set_value
from hypothesis import given
from hypothesis import strategies as st

ENTRY = {"path": "/usr/bin/n", "args": ["-x", 1]}
FLAT = '"n": {"path": "/usr/bin/n", "args": ["-x", 1]}'
SPREAD = """{
  "a": 1,
  "runtimes": {
    "n": {
      "path": "/usr/bin/n",
      "args": [
        "-x",
        1
      ]
    }
  },
  "default": "n"
}
"""
# Text before and with both values, in the style of the text.
STYLES = {
    "empty": ("{ }", SPREAD.replace('  "a": 1,\n', "").replace("  ", "    ").rstrip()),
    "one line": ('{"a": 1}\n', '{"a": 1, "runtimes": {' + FLAT + '}, "default": "n"}\n'),
    "dense": ('{"a":{"b":[]}}', '{"a":{"b":[]},"runtimes":{' + FLAT.replace(" ", "") + '},"default":"n"}'),
    "two blanks": ('{\n  "a": 1\n}\n', SPREAD),
    "tabs": ('{\n\t"a": 1\n}\n', SPREAD.replace("  ", "\t")),
    "no indentation": ('{\n"a": 1\n}\n', SPREAD.replace("  ", "")),
    "carriage returns": ('{\r\n  "a": 1\r\n}\r\n', SPREAD.replace("\n", "\r\n")),
    "an empty line and no end": ('\n{\n\n  "a": 1\n}', "\n" + SPREAD.rstrip()),
    "a byte order mark": ('\ufeff{"a":1}', '\ufeff{"a":1,"runtimes":{' + FLAT.replace(" ", "") + '},"default":"n"}'),
}


@pytest.mark.parametrize(("before", "after"), STYLES.values(), ids=STYLES)
def test_what_is_added_has_the_documents_style_and_comes_off_again(before: str, after: str) -> None:
    changed = set_value(set_value(before, ("runtimes", "n"), ENTRY), ("default",), "n")
    assert changed == after
    assert loads(changed) == {**loads(before), "default": "n", "runtimes": {"n": ENTRY}}
    back = remove(remove(changed, ("default",)), ("runtimes",))
    assert loads(back) == loads(before)


def test_a_value_is_replaced_in_its_place() -> None:
    text = '{"a": 1, "b": {"path": "/x", "keep": 1.5}, "c": null}'
    assert set_value(text, ("b", "path"), "/y") == text.replace('"/x"', '"/y"')
    for path in (("b", "path", "x"), ("b", "path", "x", "y"), ("c", "x")):
        with pytest.raises(ValueError, match=rf"{'.'.join(path[: 1 if path[0] == 'c' else 2])} is not an object".replace(".", r"\.")):
            set_value(text, path, 1)


def test_text_without_the_member_stays_as_it_is() -> None:
    text = '{ "a" : 1 ,"b": [ ]}'
    assert remove(text, ("x",)) == remove(text, ("x", "y")) == remove(text, ("a", "y")) == remove(text, ("b", "y")) == text
    assert remove(text, ("a",)) == '{"b": []}'


def test_ascii_stays_ascii_and_other_letters_stay_letters() -> None:
    assert set_value('{"a": "\\u00fc"}', ("b",), "ü") == '{"a": "\\u00fc", "b": "\\u00fc"}'
    assert set_value('{"a": "\\u00fc客"}', ("b",), "ü") == '{"a": "ü客", "b": "ü"}'
    # Half a character is none that UTF-8 can write.
    assert set_value('{"a": "\\ud800ü"}', ("b",), 1) == '{"a": "\\ud800\\u00fc", "b": 1}'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{\n  "a": 1,\n  "a": 2\n}', "the key 'a' stands twice in one object"),
        ('{"x": {"b": 1, "a": 1,\n"a": 2}}', "the key 'a' stands twice"),
        ('{\n  // note\n  "a": 1\n}', "line 2: "),
        ('# yaml\n{"a": 1}', "line 1: "),
        ('{"a": 1}\n# end', "line 2: "),
        ('{\n"a": 1,\n}', r"line [23]: "),  # from Python 3.13 on at the comma
        ('{"a": 1\n"b": 2}', "line 2: "),
        ("{'a': 1}", "line 1: "),
        ('{"a": NaN}', "NaN, which JSON does not have"),
        ('{"a": -Infinity}', "-Infinity, which JSON does not have"),
        ('{"a": 1e999}', "the number 1e999, expected one that 64 bits can hold"),
        ('{"a": "x\ny"}', "line 1: "),
        ("", "line 1: "),
        ("{} {}", "line 1: "),
        ("[" * 100_000, "more levels"),
        # More than Python reads.
        ('{"a":\n' + "1" * 5000 + "}", "a number of 5000 digits, expected at most 1000"),
    ],
)
def test_what_is_no_json_is_an_error_with_its_line(text: str, message: str) -> None:
    for call in (lambda: loads(text), lambda: set_value(text, ("a",), 1), lambda: remove(text, ("a",))):
        with pytest.raises(JsonError, match=message):
            call()


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
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
    assert json.dumps(json.loads(changed)) == json.dumps({**data, key: value})
    removed = remove(changed, (key,))
    assert json.loads(removed) == {name: inner for name, inner in data.items() if name != key}
