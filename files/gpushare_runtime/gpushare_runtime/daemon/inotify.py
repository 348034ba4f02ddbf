# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Wake up when something appears in, changes its name in, or goes from a directory (inotify, with a slow poll behind it)."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import logging
import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from gpushare_runtime.daemon.sync import Changes

log = logging.getLogger(__name__)

_MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x40, 0x80, 0x100, 0x200
_DELETE_SELF, _MOVE_SELF = 0x400, 0x800
_IGNORED: Final = 0x8000
_MASK: Final = _MOVED_FROM | _MOVED_TO | _CREATE | _DELETE | _DELETE_SELF | _MOVE_SELF
# The watched directory is gone from its place. Another directory that is there by now may have the same inode.
_GONE: Final = _DELETE_SELF | _MOVE_SELF | _IGNORED
_EVENT: Final = struct.Struct("iIII")
_POLL_SECONDS: Final = 1.0


class DirectoryWatch:
    """`changes` counts what happens in a directory, and once a second in any case: a waiting task reads again, and so misses nothing.

    The directory may be absent, and may be removed and made again. Use as `async with`.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.changes = Changes()
        self._fd = -1
        self._identity: tuple[int, int] | None = None
        self._poll: asyncio.Task[None] | None = None

    async def __aenter__(self) -> DirectoryWatch:
        self._watch()
        self._poll = asyncio.create_task(self._poll_forever())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._poll is not None:
            self._poll.cancel()
        self._unwatch()

    async def _poll_forever(self) -> None:
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            if self._directory() != self._identity:
                self._unwatch()
                self._watch()
            self.changes.notify()

    def _directory(self) -> tuple[int, int] | None:
        try:
            stat = os.stat(self.path)
        except OSError:
            return None
        return stat.st_dev, stat.st_ino

    def _watch(self) -> None:
        self._identity = self._directory()
        if self._identity is None:
            return
        libc = ctypes.CDLL(None, use_errno=True)
        fd = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if fd < 0 or libc.inotify_add_watch(fd, os.fsencode(self.path), _MASK) < 0:
            problem = os.strerror(ctypes.get_errno())
            log.warning("inotify does not watch %s (%s): reading it once a second instead", self.path, problem)
            if fd >= 0:
                os.close(fd)
            return
        self._fd = fd
        asyncio.get_running_loop().add_reader(fd, self._readable)

    def _unwatch(self) -> None:
        if self._fd >= 0:
            asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def _readable(self) -> None:
        try:
            data = os.read(self._fd, 64 * 1024)
        except OSError as error:
            if error.errno != errno.EAGAIN:
                raise
            return
        if any(mask & _GONE for mask in _masks(data)):
            self._unwatch()
            self._watch()
        self.changes.notify()


def _masks(data: bytes) -> Iterator[int]:
    """The change that each of these inotify events reports."""
    at = 0
    while at < len(data):
        _, mask, _, name = _EVENT.unpack_from(data, at)
        yield mask
        at += _EVENT.size + name
