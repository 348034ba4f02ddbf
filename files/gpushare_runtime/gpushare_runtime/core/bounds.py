# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""How much a pod or a node may say, and how what it said is quoted. Pure.

Pods' and nodes' annotations are written by tenants and by hosts that may be hostile. They are bounded where they are read, so
that nothing behind has to care; the API server alone would let 256 KiB pass.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from itertools import islice
from typing import Any, Final

from gpushare_runtime.errors import GpushareError

QUOTED: Final = 80
"""Characters of what was found, in a message."""
MOST_UNITS: Final = 2**31 - 1
"""Of one GPU, and of one container of a pod that is bound; also MiB."""
MOST_GPUS: Final = 128
"""Of one node; the largest machines have 16, of seven MIG instances each."""
MOST_CONTAINERS: Final = 64
"""Of one pod, that ask for something of ours."""
MOST_ASKED: Final = 64
"""Entries of one `gpushare.request/` annotation."""
MOST_ASKED_BYTES: Final = 4096
"""Characters of one `gpushare.request/` annotation."""
MOST_ALLOCATION_BYTES: Final = 64 * 1024
"""Characters of an allocation; one of so many containers on so many GPUs is shorter."""
MOST_HELD: Final = 1024
"""Entries of `gpushare/held`, and rejections in it."""
MOST_GPUS_BYTES: Final = 64 * 1024
"""Characters of `gpushare/gpus`; 16 GPUs are 4 KiB, 112 MIG instances 30."""
MOST_REPORT_BYTES: Final = 64 * 1024
"""Characters of anything else that a node says at once, such as `gpushare/held`; a pod there has about 150."""
MOST_EVICTIONS: Final = 64
"""Pods in `gpushare/evictions`; if more exceed their units, they follow when these are gone."""
OBJECT_NAME: Final = r"[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?"
"""Pattern of the names of pods, nodes and namespaces, as the API server takes them."""
MOST_TEXT: Final = 512
"""Characters of one text of a node, such as a GPU's health."""

_ITEMS: Final = 8
_DEPTH: Final = 3


class ReportError(GpushareError, ValueError):
    """A text that another program of this product has written, such as an annotation, and that cannot be used."""


@lru_cache(maxsize=8192)
def shared(text: str) -> str:
    """One object for equal texts: JSON makes a new one each time, and thousands of pods and GPUs repeat a few."""
    return text


def quote(value: object) -> str:
    """The JSON that was found, much as `repr` writes it, and so printable; at most 80 characters, whatever its size."""
    text = _written(value, _DEPTH)
    return text if len(text) <= QUOTED else f"{text[: QUOTED - 3]}..."


def _written(value: object, depth: int) -> str:
    if isinstance(value, str):
        return repr(value[:QUOTED])
    if isinstance(value, (list, dict)):
        opening, closing = "{}" if isinstance(value, dict) else "[]"
        if value and not depth:
            return f"{opening}...{closing}"
        parts = [_written(item, depth - 1) for item in islice(value, _ITEMS)]
        if isinstance(value, dict):
            parts = [f"{part}: {_written(member, depth - 1)}" for part, member in zip(parts, value.values(), strict=False)]
        more = ["..."] if len(value) > _ITEMS else []
        return f"{opening}{', '.join([*parts, *more])}{closing}"
    try:
        return repr(value)
    except ValueError:
        # Python writes no number of more than 4300 digits.
        return type(value).__name__


def is_text(value: str, most: int = MOST_TEXT) -> bool:
    """Whether a text may be shown and kept as it is: short, and nothing in it that a terminal or a log would obey."""
    return len(value) <= most and value.isprintable()


def as_text(value: str, most: int = MOST_TEXT) -> str:
    """A text that `is_text` lets pass, made of any text."""
    if is_text(value, most):
        return value
    return "".join(character if character.isprintable() else " " for character in value[:most])


def as_mapping(value: object) -> Mapping[str, Any]:
    """A JSON object as it is, {} for any other value."""
    return value if isinstance(value, dict) else {}


def read_versioned(text: str, version: int, most: int = MOST_REPORT_BYTES) -> dict[str, Any]:
    """The JSON object of a node's annotation, with `v` as its version; ReportError says what was found and expected."""
    if len(text) > most:
        raise ReportError(f"{len(text)} characters are more than a node has to say; expected at most {most}")
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as found:
        raise ReportError(f"not JSON: {found}") from None
    if not isinstance(data, dict) or data.get("v") != version:
        written = data.get("v") if isinstance(data, dict) else type(data).__name__
        raise ReportError(
            f"version {quote(written)} is not known; this release reads version {version}: "
            "install the same release on the node and on the control plane"
        )
    return data


def typed(entry: object, key: str, kind: type, where: str = "") -> Any:
    """entry[key] of this type; texts only where `is_text`. where: of the entry, for the message of ReportError."""
    if not isinstance(entry, dict):
        raise ReportError(f"{where} must be an object, found {type(entry).__name__}")
    value, name = entry.get(key), f"{where}.{key}" if where else key
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        raise ReportError(f"{name} must be {kind.__name__}, found {quote(value)}")
    if isinstance(value, str) and not is_text(value):
        raise ReportError(f"{name} must be a short text without control characters, found {quote(value)}")
    return value


def natural(entry: object, key: str, where: str = "", most: int = MOST_UNITS) -> int:
    """entry[key], a number from 0 to `most`. where: as in `typed`."""
    value: int = typed(entry, key, int, where)
    if not 0 <= value <= most:
        limit = "not be negative" if value < 0 else f"be at most {most}"
        raise ReportError(f"{f'{where}.{key}' if where else key} must {limit}, found {quote(value)}")
    return value
