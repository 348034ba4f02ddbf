# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Wake up when something appears in, changes its name in, or goes from directories (inotify, with a poll behind it)."""

from __future__ import annotations

import asyncio
import ctypes
import errno
import logging
import os
import struct
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from gpushare_runtime.daemon.sync import Changes

log = logging.getLogger(__name__)

_MOVED_FROM, _MOVED_TO, _CREATE, _DELETE = 0x40, 0x80, 0x100, 0x200
_DELETE_SELF, _MOVE_SELF = 0x400, 0x800
_OVERFLOW: Final = 0x4000
_IGNORED: Final = 0x8000
_ONLY_FOLDERS, _NO_LINKS = 0x1000000, 0x2000000
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
            if _identity(self.path) != self._identity:
                self._unwatch()
                self._watch()
            self.changes.notify()

    def _watch(self) -> None:
        self._identity = _identity(self.path)
        if self._identity is None:
            return
        libc = _libc()
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
        events = list(_events(self._fd))
        if any(mask & _GONE for _, mask in events):
            self._unwatch()
            self._watch()
        if events:
            self.changes.notify()


class FolderWatch:
    """Many folders: `changes` counts, and `take` has those in which something has appeared since, and those that are new or gone.

    One inotify watches all. A folder that it cannot watch is in each `take`. Use as `async with`.
    """

    def __init__(self) -> None:
        self.changes = Changes()
        self._fd = -1
        # With the identity of each: the file system of control groups does not tell that one is gone (seen on Linux 6.18).
        self._watched: dict[str, tuple[int, tuple[int, int]]] = {}
        self._unwatched: set[str] = set()
        self._changed: set[str] = set()

    async def __aenter__(self) -> FolderWatch:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._fd >= 0:
            asyncio.get_running_loop().remove_reader(self._fd)
            os.close(self._fd)
            self._fd = -1

    def watch(self, folders: Iterable[str]) -> None:
        """Watch these from now on, and no others."""
        wanted = set(folders)
        found = {folder: _identity(folder) for folder in wanted}
        for folder, (number, identity) in list(self._watched.items()):
            if found.get(folder) != identity:
                # The kernel answers with _IGNORED, which no folder has by then.
                _libc().inotify_rm_watch(self._fd, number)
                del self._watched[folder]
        for folder in wanted - self._watched.keys():
            self._add(folder, found[folder])
        self._unwatched &= wanted

    def take(self) -> set[str]:
        """The folders that have changed since the last call."""
        taken, self._changed = self._changed | self._unwatched, set()
        return taken

    def _add(self, folder: str, identity: tuple[int, int] | None) -> None:
        # Something may have appeared before the watch.
        self._changed.add(folder)
        if identity is None:
            self._unwatched.discard(folder)
            return None
        if self._fd < 0:
            self._fd = _libc().inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
            if self._fd < 0:
                return self._without(folder)
            asyncio.get_running_loop().add_reader(self._fd, self._readable)
        mask = _CREATE | _MOVED_TO | _DELETE_SELF | _ONLY_FOLDERS | _NO_LINKS
        number = _libc().inotify_add_watch(self._fd, os.fsencode(folder), mask)
        if number < 0:
            return self._without(folder)
        self._watched[folder] = number, identity
        self._unwatched.discard(folder)
        return None

    def _without(self, folder: str) -> None:
        if not self._unwatched:
            log.warning("inotify does not watch %s (%s): reading it repeatedly instead", folder, os.strerror(ctypes.get_errno()))
        self._unwatched.add(folder)

    def _readable(self) -> None:
        folders = {number: folder for folder, (number, _) in self._watched.items()}
        for number, mask in _events(self._fd):
            known = [folders[number]] if number in folders else []
            self._changed.update(self._watched if mask & _OVERFLOW else known)
            if mask & _IGNORED:
                for folder in known:
                    self._watched.pop(folder, None)
        if self._changed:
            self.changes.notify()


def _identity(folder: str | Path) -> tuple[int, int] | None:
    try:
        stat = os.stat(folder)
    except OSError:
        return None
    return stat.st_dev, stat.st_ino


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _events(fd: int) -> Iterator[tuple[int, int]]:
    """The watch and the change of each inotify event that waits."""
    try:
        data = os.read(fd, 64 * 1024)
    except OSError as error:
        if error.errno != errno.EAGAIN:
            raise
        return
    at = 0
    while at < len(data):
        watch, mask, _, name = _EVENT.unpack_from(data, at)
        yield watch, mask
        at += _EVENT.size + name
