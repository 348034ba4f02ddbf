# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The shares that containers have of a GPU now, by the record that the device plugin keeps before it lets them start."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Final

from gpushare_runtime.core.mps import MOST_USAGE_BYTES, MpsStateError, largest_share

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

    def largest(self) -> int:
        """MiB; as before while no container has any of the GPU."""
        try:
            found = os.stat(self._file)
            state = (found.st_mtime_ns, found.st_ino, found.st_size)
            if state != self._state:
                with self._file.open("rb") as file:
                    text = file.read(MOST_USAGE_BYTES)
                share = largest_share(text, self._boot, self._uuid, self._mib)
                self._largest, self.used = share or self._largest, share > 0
                self._state, self.problem = state, ""
        except FileNotFoundError:
            self._state, self.problem, self.used, self._largest = None, "", True, self._mib
        except (OSError, MpsStateError) as error:
            self._state, self.problem, self.used, self._largest = None, f"{self._file}: {error}", True, self._mib
        return self._largest
