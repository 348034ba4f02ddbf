# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Counts as the API writes them, and units of GPU memory.

Pure. The runtime's quantity.py has the same.
"""

from __future__ import annotations

import re
from typing import Any, Mapping, Optional

_UNIT = re.compile("([1-9][0-9]{0,8})?(MiB|GiB)")
_QUANTITY = re.compile("([0-9]{1,18})(k|M|G|Ki|Mi|Gi)?")
_FACTOR = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "Ki": 2**10, "Mi": 2**20, "Gi": 2**30}
#: Units that can be chosen, to MiB, largest first.
UNITS: Mapping[str, int] = {"GiB": 1024, "256MiB": 256, "128MiB": 128, "64MiB": 64, "MiB": 1}


def quantity(value: Any) -> Optional[int]:
    """A count as the API writes it (24, "24", "24k"); None if it is none."""
    match = _QUANTITY.fullmatch(str(value))
    return int(match.group(1)) * _FACTOR[match.group(2) or ""] if match else None


def unit_mib(name: str) -> Optional[int]:
    """The size in MiB of a unit such as "GiB" or "64MiB"; None if it is none."""
    match = _UNIT.fullmatch(name)
    return int(match.group(1) or 1) * (1024 if match.group(2) == "GiB" else 1) if match else None
