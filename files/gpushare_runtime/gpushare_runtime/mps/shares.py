# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The shares that containers have of a GPU now, by the record that the device plugin keeps before it lets them start."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gpushare_runtime.core.bounds import ReportError
from gpushare_runtime.core.mps import MOST_USAGE_BYTES, Shared, shares_of

_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class Shares:
    """Of one GPU. file: the record; mib: the GPU's memory, which bounds where the record is not known. Its methods block."""

    def __init__(self, file: Path, uuid: str, mib: int, boot: Callable[[], str] = lambda: _BOOT_ID.read_text().strip()) -> None:
        self.problem = ""
        """Why the record cannot be used; "" if it can, or there is none."""
        self.used = True
        """Whether a container may have some of the GPU."""
        self._file = file
        self._uuid = uuid
        self._mib = mib
        self._boot = boot()
        self._state: object = None
        self._largest = mib
        self.together = mib
        """MiB that all containers of the GPU have; all of it where that is not known."""

    def largest(self) -> int:
        """MiB; as before while no container has any of the GPU."""
        try:
            found = os.stat(self._file)
            state = (found.st_mtime_ns, found.st_ino, found.st_size)
            if state != self._state:
                with self._file.open("rb") as file:
                    text = file.read(MOST_USAGE_BYTES)
                self._take(shares_of(text, self._boot, self._uuid, self._mib))
                self._state = state
        except FileNotFoundError:
            self._forget("")
        except (OSError, ReportError) as error:
            self._forget(f"{self._file}: {error}")
        return self._largest

    def _take(self, found: Shared, problem: str = "") -> None:
        self._largest, self.together, self.used, self.problem = found.largest or self._largest, found.together, found.largest > 0, problem

    def _forget(self, problem: str) -> None:
        self._state = None
        self._take(Shared(self._mib, self._mib), problem)
