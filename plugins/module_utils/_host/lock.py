# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Only one run changes a host at a time.

The kernel releases the lock when its process ends, however that happens. The file is removed with it, so that it leaves no trace on the
host; a run that waited for a file that is gone opens the new one.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from typing import Any, ContextManager, Iterator

from .._formats.failure import Failure

PATH = "/run/gpushare.lock"
#: How long one run waits for the other. Its steps may take minutes; then it is better to hear of it than to interleave.
SECONDS = 10.0
_POLL = 0.2


class LockedError(Failure):
    """Another run changes this host now; it says which one."""


@contextlib.contextmanager
def held(who: str, path: str = PATH, seconds: float = SECONDS) -> Iterator[None]:
    """Hold the host's lock. `who` is shown to those who do not get it."""
    deadline = time.monotonic() + seconds
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is(descriptor, path):
                break
        except BlockingIOError:
            if time.monotonic() > deadline:
                holder = os.pread(descriptor, 200, 0).decode("utf-8", "replace").strip()
                os.close(descriptor)
                raise LockedError(
                    f"another run is changing this host ({holder or 'it has not said who it is'}): wait for it to end, then run again"
                ) from None
            time.sleep(_POLL)
        os.close(descriptor)
    try:
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, who[:200].encode(), 0)
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
        os.close(descriptor)


def for_module(module: Any, root: str = "/") -> ContextManager[None]:
    """The lock for an AnsibleModule. LockedError, when it is entered, if another run has it.

    Check mode, a user who is not root, and a folder that stands for a host change no host.
    """
    if module.check_mode or root != "/" or os.geteuid() != 0:
        return contextlib.nullcontext()
    user = os.environ.get("SUDO_USER") or os.environ.get("LOGNAME") or os.environ.get("USER") or "root"
    return held(f"{module._name} of {user}, process {os.getpid()}, since {time.strftime('%H:%M:%S')}", PATH)


def _is(descriptor: int, path: str) -> bool:
    """Whether the path still is this file."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(path, follow_symlinks=False))
    except FileNotFoundError:
        return False
