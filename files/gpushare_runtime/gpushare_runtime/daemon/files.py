# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Write files so that a reader meets the old ones or the new ones."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping
from pathlib import Path


def replace_files(contents: Mapping[Path, bytes], mode: Mapping[Path, int]) -> None:
    """Replace these files, in this order, also for who reads after a crash: all are on disk before the first takes its place.

    OSError when that is not possible; then nothing that was there is damaged. Only one process at a time may write a file.
    """
    for path, data in contents.items():
        descriptor = os.open(_new(path), os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with open(descriptor, "wb") as file:
            os.fchmod(descriptor, mode[path])
            file.write(data)
            file.flush()
            os.fsync(descriptor)
    for path in contents:
        os.replace(_new(path), path)
    for folder in {path.parent for path in contents}:
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def replace_file(path: Path, data: bytes, folder_mode: int = 0o777) -> None:
    """Replace a file that need not outlast a crash of the host. Its folder is made where there is none, less what the umask takes.

    OSError when that is not possible; then what was there is left, and nothing beside it. Only one process at a time may write a file.
    """
    path.parent.mkdir(mode=folder_mode, parents=True, exist_ok=True)
    try:
        _new(path).write_bytes(data)
        os.replace(_new(path), path)
    except OSError:
        with contextlib.suppress(OSError):
            _new(path).unlink()
        raise


def age_of(path: Path) -> float:
    """Seconds since the file was written, by the host's clock; 0 if it does not exist, or is of the future."""
    try:
        return max(0.0, time.time() - path.stat().st_mtime)
    except OSError:
        return 0.0


def _new(path: Path) -> Path:
    return path.with_name(f".{path.name}.new")
