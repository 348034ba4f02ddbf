# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What a module makes of a class is what the controller takes, and nothing else is."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._formats.answers import ABSENT, ModuleAnswer, answer_of, like
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._answers import of_answer
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._shape import of_class, other_shape

WORD = re.compile("[a-z]{1,3}")


class Named(TypedDict):
    name: str


class Found(Named, total=False):
    count: int


@dataclass(frozen=True)
class Sent:
    kind: str


@dataclass(frozen=True)
class Own:
    check: str

    def sent(self) -> Sent:
        return Sent(self.check)


@dataclass(frozen=True)
class Whole(ModuleAnswer):
    found: list[Found]
    own: Own | None
    life: tuple[float, float]
    rest: tuple[int, ...]
    verb: Literal["pull", "push"]
    words: list[str] = field(metadata=like(WORD))
    word: str | None = field(metadata=like(WORD))
    more: str | None = field(default=None, metadata={**like(WORD), **ABSENT})


GOOD = Whole(True, [{"name": "a", "count": 1}, {"name": "b"}], Own("x"), (1.0, 2.0), (1, 2, 3), "pull", ["ab"], None)


def as_json(answer: Whole) -> dict[str, Any]:
    return dict(json.loads(json.dumps(answer_of(answer))))


def test_an_answer_has_the_shape_of_its_class() -> None:
    found = as_json(GOOD)
    assert (found["own"], "more" in found, found["word"]) == ({"kind": "x"}, False, None)
    assert other_shape(Whole, found) is None
    for some in ({"more": "abc"}, {"own": None}, {"rest": []}, {"word": "ab"}, {"words": []}):
        assert other_shape(Whole, {**found, **some}) is None, some


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("found", [{}]),
        ("found", [{"name": "a", "more": 1}]),
        ("found", [{"name": "a", "count": None}]),
        ("own", {"check": "x"}),
        ("life", [1.0]),
        ("life", [1.0, "2"]),
        ("rest", ["1"]),
        ("verb", "pull --all"),
        ("verb", ["pull"]),
        ("words", ["abcd"]),
        ("words", ["ab", None]),
        ("word", "AB"),
        ("more", None),
        ("more", "a b"),
        ("further", 1),
    ],
)
def test_another_value_is_not_taken(key: str, value: Any) -> None:
    assert other_shape(Whole, {**as_json(GOOD), key: value}) is not None


def test_a_field_that_may_be_absent_is_the_only_one_that_may() -> None:
    found = as_json(GOOD)
    assert [key for key in found if other_shape(Whole, {name: value for name, value in found.items() if name != key}) is None] == []
    assert {key for key in of_class(Whole) if key.endswith("?")} == {"more?"}
    assert set(of_class(Whole)) - set(of_answer(Whole)) == {"changed"}, "what is Ansible's own is not asked for twice"


def test_a_pattern_of_what_is_no_text_and_a_value_that_is_always_there_are_faults_of_ours() -> None:
    for bad in (field(metadata=like(WORD)), field(metadata=ABSENT)):
        wrong = dataclass(type("Wrong", (), {"__annotations__": {"count": int}, "count": bad}))
        with pytest.raises(AssertionError):
            of_class(wrong)
