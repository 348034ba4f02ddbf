# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The largest share of a card that a container has now, by the record that the device plugin keeps."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gpushare_runtime.core.mps import MOST_USAGE_BYTES, MpsStateError, largest_share

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class Shares:
    """Of one card. file: the record; mib: the card's memory, which bounds where the record is not known. Its methods block."""

    def __init__(self, file: Path, uuid: str, mib: int, boot: Callable[[], str] = lambda: _BOOT_ID.read_text().strip()) -> None:
        self.problem = ""
        """Why the record cannot be used; "" if it can, or there is none."""
        self._file = file
        self._uuid = uuid
        self._mib = mib
        self._boot = boot()
        self._state: object = None
        self._largest = mib

    def largest(self) -> int:
        """MiB; as before while no container has any of the card."""
        try:
            found = os.stat(self._file)
            state = (found.st_mtime_ns, found.st_ino, found.st_size)
            if state != self._state:
                with self._file.open("rb") as file:
                    text = file.read(MOST_USAGE_BYTES)
                self._largest = largest_share(text, self._boot, self._uuid, self._mib) or self._largest
                self._state, self.problem = state, ""
        except FileNotFoundError:
            self._state, self.problem, self._largest = None, "", self._mib
        except (OSError, MpsStateError) as error:
            self._state, self.problem, self._largest = None, f"{self._file}: {error}", self._mib
        return self._largest
