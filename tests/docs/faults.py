# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Faults that keep a pod Pending, each with the words of the row in docs/operate/troubleshooting.md that must lead to its cure."""

from __future__ import annotations

from typing import Final

PAGE: Final = "docs/operate/troubleshooting.md"
PENDING: Final = "A pod stays Pending"
CODES: Final = "Codes of verify and gpushare-doctor"
TOO_LARGE: Final = "its largest GPU has"
FULL: Final = "are free on one"
NO_UNITS: Final = "Insufficient aliyun.com/gpu-mem"
NO_EXTENDER: Final = "connection refused"
#: Rows that a test follows to the end.
FOLLOWED: Final = frozenset({TOO_LARGE, FULL, NO_UNITS, NO_EXTENDER})
