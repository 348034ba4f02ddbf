# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Plain values are read from block YAML and JSON as a YAML library reads them; all else is passed over."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
import yaml
from ansible_collections.gpushare.kubernetes.plugins.module_utils._formats.yaml_scalars import scalars
from hypothesis import given, settings
from hypothesis import strategies as st

from unit.fakes.plugins.fake_root import KUBELET_CONFIG


def test_scalars_of_yaml() -> None:
    assert scalars(KUBELET_CONFIG) == {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "authentication.x509.clientCAFile": "/etc/kubernetes/pki/ca.crt",
        "cgroupDriver": "systemd",
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "featureGates.DevicePlugins": "true",
        "featureGates.Other": "false",
        "kind": "KubeletConfiguration",
    }


def test_a_path_is_as_long_as_a_configuration_needs() -> None:
    """Each line costs as much as its path is long: of a deep file, what is deeper is passed over."""
    deep = "\n".join(" " * depth + f"k{depth}: " for depth in range(2000))
    found = scalars("a:\n  b: 1\n" + deep + "\n" + " " * 2000 + "end: 1\nlast: 2\n")
    assert found == {"a.b": "1", "last": "2"}


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("a: |\n  b: 1\nc: 2\n", {"c": "2"}),
        ("a: >-\n  b: 1\n  \n  c: 2\nd: 3\n", {"d": "3"}),
        ("list:\n  - c: 2\n    d: 3\ne: 1\n", {"e": "1"}),
        ("- e: 4\n  f: 5\ng: 1\n", {"g": "1"}),
        ("list:\n- a: 1\n  b: 2\nc:\n  d: 3\n", {"c.d": "3"}),
        ("map: {g: 6}\nlist: [1]\nalias: *x\nanchor: &x 1\ntag: !!int 7\nl: 7\n", {"l": "7"}),
        ("map: {\n  g: 6\n}\nl: 7\n", {"l": "7"}),
        ("h:\n    i: 1\n    j:\n      k: 2\n    m: 3\nn: 4\n", {"h.i": "1", "h.j.k": "2", "h.m": "3", "n": "4"}),
        ("a:  # why\n  b: 1 # why\n#c: 2\n  # d: 3\n\n  e: x#y\n", {"a.b": "1", "a.e": "x#y"}),
        ("a: 'x # y' # why\nb: \"it's: z\"\nc: 'open\nd:\n", {"a": "x # y", "b": "it's: z"}),
        ("a: 'it''s'\nb: \"c \\\" \\u00fc\"\nc: \"\\x41\"\nd: ''\n", {"a": "it's", "b": 'c " ü', "d": ""}),
        # A value that goes on in the next line is none that can be read here.
        ("a: word\n  more: 1\nb:\n  c: 'one\n\n    d: 2'\n  e: 3\n", {"b.e": "3"}),
        ("'a b': 1\n\"c\": 2\nd.e/f-g_h: 3\ni : 4\n", {"a b": "1", "c": "2", "d.e/f-g_h": "3", "i": "4"}),
        ("a b: 1\nc:d\ne:  f \n", {"e": "f"}),
        ("no key\n  a: 1\nb: 2\n", {"b": "2"}),
        ("a: 1\r\nb:\r\n  c: 2\r\n", {"a": "1", "b.c": "2"}),
    ],
)
def test_what_is_no_block_of_values_is_passed_over(text: str, found: dict[str, str]) -> None:
    assert scalars(text) == found


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ('{"a": {"b": true, "c": [1], "d": 5, "e": {"f": "X"}}, "g": null, "h": 0.5, "i": false}', "a.b true a.d 5 a.e.f X h 0.5 i false"),
        (' \n {"a": "b"}', "a b"),
        ('{"a": ', ""),
        ("[" * 9, ""),
        ('{"a":' * 9999, ""),
    ],
)
def test_scalars_of_json(text: str, found: str) -> None:
    words = found.split()
    assert scalars(text) == dict(zip(words[::2], words[1::2], strict=True))


def written(random: Random, depth: int = 3) -> Any:
    """Mappings of mappings, with lists and texts between."""
    if depth == 0 or random.random() < 0.4:
        return random.choice(["", "a", "x # y", "a: b", "it's", "it's: #", "true", "0x1", "- a", "two\nlines\n", ["a", {"b": "c"}], []])
    return {random.choice(["a", "b-c", "D", "e_f", "x/y"]): written(random, depth - 1) for _ in range(random.randint(1, 3))}


def flat(value: Any, path: str = "") -> dict[str, str]:
    if isinstance(value, dict):
        return {name: one for key, inner in value.items() for name, one in flat(inner, f"{path}.{key}" if path else key).items()}
    return {path: value} if isinstance(value, str) and "\n" not in value else {}


def test_scalars_are_those_of_the_first_document_and_true_in_any_spelling() -> None:
    text = "# c\n---\nkind: A\na: True\nb: on\nc: N\nd: 'yes'\ne: tRUE\n---\nkind: B\n"
    assert scalars(text) == {"kind": "A", "a": "true", "b": "true", "c": "false", "d": "yes", "e": "tRUE"}
    assert scalars("kind: A\n...\nkind: B\n") == {"kind": "A"}


@settings(max_examples=40)
@given(st.integers(0, 2**32))
def test_scalars_read_what_is_written_as_blocks(seed: int) -> None:
    document = {"kind": "x", "of": written(Random(seed)), "last": "z"}
    for indent in (2, 4):
        assert scalars(yaml.safe_dump(document, default_flow_style=False, indent=indent, width=999)) == flat(document)


@given(st.text(st.characters(codec="utf-8") | st.sampled_from("{}[]:-#\"' \n|>")))
def test_scalars_of_anything_are_text(text: str) -> None:
    assert all(isinstance(key, str) and isinstance(value, str) for key, value in scalars(text).items())
