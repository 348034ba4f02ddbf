# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Label selectors as kubectl's -l takes them: equality and sets. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from gpushare_runtime.core.bounds import quote
from gpushare_runtime.core.constraints import Labels
from gpushare_runtime.kubectl_gpushare.errors import UsageError

_MOST: Final = 4096
_NAME: Final = r"[A-Za-z0-9](?:[A-Za-z0-9._/-]*[A-Za-z0-9])?"
_VALUE: Final = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?|"
_SET: Final = re.compile(rf"({_NAME})\s+(in|notin)\s*\(([^()]*)\)")
_EQUAL: Final = re.compile(rf"({_NAME})\s*(==|=|!=)\s*({_VALUE})")
_EXISTS: Final = re.compile(rf"(!?)\s*({_NAME})")

Requirement = tuple[str, frozenset[str] | None, bool]
"""(label, the values that it speaks of, None for any; whether the label must have one of them or must not)."""


def parse_selector(text: str) -> Callable[[Labels], bool]:
    """Whether labels fulfil every requirement of the selector; UsageError quotes what cannot be read."""
    if len(text) > _MOST:
        raise UsageError(f"found a label selector of {len(text)} characters; expected at most {_MOST}")
    # A comma inside of parentheses separates values.
    parts = re.split(r",(?![^()]*\))", text) if text.strip() else []
    requirements = [_requirement(part.strip()) for part in parts]

    def fulfils(labels: Labels) -> bool:
        values = dict(labels)
        return all(_has(values, *requirement) for requirement in requirements)

    return fulfils


def _has(labels: dict[str, str], name: str, values: frozenset[str] | None, wanted: bool) -> bool:
    # As in Kubernetes, a label that is absent fulfils != and notin.
    return (name in labels and (values is None or labels[name] in values)) is wanted


def _requirement(part: str) -> Requirement:
    if found := _SET.fullmatch(part):
        values = [value.strip() for value in found[3].split(",")]
        if all(re.fullmatch(_VALUE, value) for value in values):
            return found[1], frozenset(values), found[2] == "in"
    elif found := _EQUAL.fullmatch(part):
        return found[1], frozenset((found[3],)), found[2] != "!="
    elif found := _EXISTS.fullmatch(part):
        return found[2], None, not found[1]
    raise UsageError(f"found {quote(part)} in the label selector; expected such as app=web, tier in (a,b), env!=test, gpu or !gpu")
