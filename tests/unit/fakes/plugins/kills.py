# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What is done in a process that ends as by kill -9."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Sequence


def at(victim: str) -> Callable[[str], None]:
    """For the points of a transaction: the process ends at this one."""
    return lambda point: os.kill(os.getpid(), signal.SIGKILL) if point == victim else None


def killed(act: Callable[[], object]) -> bool:
    """Whether a process of its own that does this is killed."""
    child = os.fork()
    if child == 0:
        try:
            act()
        finally:
            os._exit(0)
    return os.waitpid(child, 0)[1] == signal.SIGKILL


def killed_around(act: Callable[[], object], when: int, hooked: Sequence[str] = ("rename", "unlink", "rmdir")) -> bool:
    """The same, where the process ends at the n-th moment before or after one of these calls of `os`."""
    seen = 0

    def moment() -> None:
        nonlocal seen
        seen += 1
        at(str(when))(str(seen))

    def around(real: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: str) -> None:
            moment()
            real(*arguments)
            moment()

        return call

    def hooking() -> None:
        for name in hooked:
            setattr(os, name, around(getattr(os, name)))
        act()

    return killed(hooking)
