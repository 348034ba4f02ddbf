# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Unix sockets in a folder of kubelet's: whether one can be there, and those that killed processes have left."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Final

# A folder of kubelet's plugins has a handful.
_MOST: Final = 100


def try_binding(path: Path) -> None:
    """OSError if no socket can exist there. gRPC would not report the reason, and leaks some KiB per server that cannot listen."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as sock:
        try:
            sock.bind(os.fspath(path))
        except OSError as error:
            # The error for a path that is too long has no errno.
            raise OSError(error.errno or errno.ENAMETOOLONG, error.strerror or str(error)) from None
    path.unlink(missing_ok=True)


def remove_dead(folder: Path, is_ours: Callable[[str], object]) -> None:
    """Remove the sockets of these names on which no process listens."""
    with contextlib.suppress(OSError):
        for name in itertools.islice(filter(is_ours, os.listdir(folder)), _MOST):
            with contextlib.suppress(OSError):
                if _is_dead(folder / name):
                    (folder / name).unlink()


def _is_dead(path: Path) -> bool:
    """OSError if it is gone."""
    if not stat.S_ISSOCK(path.lstat().st_mode):
        return False
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK) as sock:
        return sock.connect_ex(os.fspath(path)) == errno.ECONNREFUSED
