# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Empties folders in which containers could make anything: links, folders in folders, files of any user."""

from __future__ import annotations

import os
import stat
from collections.abc import Collection
from pathlib import Path
from typing import Final

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


def empty(folder: Path, unchanged_since: float | None = None, but: Collection[str] = ()) -> list[str]:
    """Remove what is in the folder, and return what stays. OSError if the folder cannot be read. Blocks.

    unchanged_since: Unix time; what has changed since then stays. but: names that stay, too, and are not returned.

    By descriptors, so that no link is followed. A folder in a folder is moved up before it is emptied: there may be more of them in each
    other than a path has characters.
    """
    top = os.open(folder, _FOLDER)
    try:
        names = [name for name in os.listdir(top) if name not in but and not _changed(top, name, unchanged_since)]
        # A name that no user has.
        own, moved = os.urandom(16).hex(), 0
        while names:
            name = names.pop()
            try:
                if not stat.S_ISDIR(os.lstat(name, dir_fd=top).st_mode):
                    os.unlink(name, dir_fd=top)
                    continue
                for inner in _remove_files(top, name):
                    moved += 1
                    up = f"{own}.{moved}"
                    os.rename(f"{name}/{inner}", up, src_dir_fd=top, dst_dir_fd=top)
                    names.append(up)
                os.rmdir(name, dir_fd=top)
            except OSError:
                # A folder of a user who is still there: the next time.
                continue
        return sorted(set(os.listdir(top)).difference(but))
    finally:
        os.close(top)


def _changed(top: int, name: str, since: float | None) -> bool:
    if since is None:
        return False
    try:
        return os.lstat(name, dir_fd=top).st_ctime >= since
    except FileNotFoundError:
        return True


def _remove_files(top: int, name: str) -> list[str]:
    """The folders in this folder, once nothing else is in it."""
    folder = os.open(name, _FOLDER, dir_fd=top)
    try:
        found = []
        for inner in os.listdir(folder):
            if stat.S_ISDIR(os.lstat(inner, dir_fd=folder).st_mode):
                found.append(inner)
            else:
                os.unlink(inner, dir_fd=folder)
        return found
    finally:
        os.close(folder)
