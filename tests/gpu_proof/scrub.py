# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Replaces what identifies one machine: serial numbers, UUIDs and its name. PCI addresses and models stay.

The same value becomes the same replacement, so that a report still says which GPU each figure is of.
"""

from __future__ import annotations

import re
import socket
from typing import Final

# GPU-…, MIG-…, and the UUIDs that newer drivers print for clusters and chassis. Pods' own UIDs are made up by the proof.
_UUID: Final = re.compile(r"\b(GPU|MIG)-([0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12})")
# "pdi": the platform device identifier of driver 580 and later.
_SERIAL: Final = re.compile(r"(<(\w*(?:serial|uuid|guid|pdi)\w*)>)([^<]*)(</\2>)", re.IGNORECASE)
_UNKNOWN: Final = ("n/a", "", "0", "unknown error")


class Scrubber:
    """host: the machine's name."""

    def __init__(self, host: str | None = None) -> None:
        self._host = socket.gethostname() if host is None else host
        self._known: dict[str, int] = {}

    def text(self, text: str) -> str:
        """XML or JSON without what identifies the machine."""
        text = _UUID.sub(lambda found: self._uuid(found[1], found[2]), text)
        text = _SERIAL.sub(lambda found: f"{found[1]}{self._serial(found[3])}{found[4]}", text)
        # A name as short as that is part of other words.
        return re.sub(rf"\b{re.escape(self._host)}\b", "host", text) if len(self._host) > 4 and self._host != "localhost" else text

    def _number(self, value: str) -> int:
        return self._known.setdefault(value.lower(), len(self._known) + 1)

    def _uuid(self, kind: str, value: str) -> str:
        return f"{kind}-{self._number(value):08d}-0000-0000-0000-000000000000"

    def _serial(self, value: str) -> str:
        if value.strip().lower() in _UNKNOWN or value.startswith(("GPU-", "MIG-")):
            return value
        return f"{self._number(value):013d}"
