# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Versions as numbers that compare.

Pure.
"""

from __future__ import annotations

import re
from typing import Optional, Tuple

_VERSION = re.compile(r"[0-9]{1,6}(?:\.[0-9]{1,6})*")


def numbers(version: Optional[str]) -> Optional[Tuple[int, ...]]:
    """The numbers that a version such as "535.261.03" or "v1.36.3-rc.1" begins with; None if it begins with none."""
    match = _VERSION.match((version or "").strip().lstrip("v"))
    return tuple(int(part) for part in match.group().split(".")) if match else None


def newer(version: Optional[str], other: Optional[str]) -> bool:
    """Whether the first version is newer than the second. None is older than any."""
    return (numbers(version) or ()) > (numbers(other) or ())
