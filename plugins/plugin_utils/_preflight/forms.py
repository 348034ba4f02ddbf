# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Forms of values that a pattern does not express, by the names that settings have for them.

Pure.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from typing import Any

from ...module_utils._cluster.public import is_address

HOST_PATH = "host path"
#: Of each path on hosts: it stands in units and in commands of theirs.
PATH_EXPECTED = "an absolute path on the hosts, of letters, digits and _@.+:,=-"
_PATH = re.compile(r"(?:/(?!\.\.?(?:/|$))[A-Za-z0-9_@.+:,=-]+)+/?")
_BATCH = re.compile(r"0*[1-9][0-9]*|0*(?:100|[1-9][0-9]?)%")
_DURATION = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?(?:ns|us|µs|ms|s|m|h))+")
_DURATION_PART = re.compile(r"([0-9]+(?:\.[0-9]+)?)(ns|us|µs|ms|s|m|h)")
_SECONDS = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_MOST = 50
_LONGEST = 317
_LABEL = re.compile(r"(?=.{1,317}\Z)(?:[a-z0-9](?:[-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9](?:[-\w.]{0,61}[A-Za-z0-9])?", re.ASCII)
_LABEL_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[-\w.]{0,61}[A-Za-z0-9])?)?", re.ASCII)
_OF_TOLERATION: Mapping[str, tuple[str, ...]] = {
    "operator": ("Exists", "Equal"),
    "effect": ("", "NoSchedule", "PreferNoSchedule", "NoExecute"),
}


def seconds(duration: str) -> float | None:
    """A duration as Go writes it ("1s", "1m30s", "800ms") in seconds; None if it is none."""
    if not _DURATION.fullmatch(duration):
        return None
    return sum(float(number) * _SECONDS[unit] for number, unit in _DURATION_PART.findall(duration))


def address_of(value: Any) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """The IP address that a value is, None for another."""
    try:
        return ipaddress.ip_address(str(value))
    except ValueError:
        return None


def is_host_path(value: Any) -> bool:
    return _PATH.fullmatch(str(value)) is not None


def _is_batches(value: Any) -> bool:
    batches = value if isinstance(value, list) else [value]
    return bool(batches) and all(_BATCH.fullmatch(str(batch)) for batch in batches)


def _is_labels(value: Mapping[Any, Any]) -> bool:
    # YAML makes a truth of true, which a label is not.
    return len(value) <= _MOST and all(
        isinstance(name, str) and isinstance(part, str) and _LABEL.fullmatch(name) and _LABEL_VALUE.fullmatch(part)
        for name, part in value.items()
    )


def _is_toleration(value: Mapping[str, Any]) -> bool:
    texts = {name: part for name, part in value.items() if name in ("key", "value", *_OF_TOLERATION)}
    return (
        bool(value)
        and set(value) <= {*texts, "tolerationSeconds"}
        and all(isinstance(part, str) and len(part) <= _LONGEST for part in texts.values())
        and all(value[name] in known for name, known in _OF_TOLERATION.items() if name in value)
        and isinstance(value.get("tolerationSeconds", 0), int)
    )


FORMS: Mapping[str, Callable[[Any], bool]] = {
    "address": lambda value: address_of(value) is not None,
    "batches": _is_batches,
    "duration": lambda value: bool(seconds(str(value))),
    HOST_PATH: is_host_path,
    "labels": _is_labels,
    "public URL": lambda value: is_address(str(value)),
    "tolerations": lambda value: len(value) <= _MOST and all(map(_is_toleration, value)),
}
