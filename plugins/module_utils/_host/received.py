# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files that the controller has sent as one archive, unpacked where only root may write.

The archive lies in a folder of the user whom Ansible logs in as. So a copy is unpacked, whose sum was compared.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from contextlib import contextmanager
from typing import Any, Dict, Iterator

from .._formats import tar
from .._formats.failure import Failure

#: For a bundle and its parts: the driver's packages have some hundred MB each.
LIMITS = tar.ArchiveLimits(members=4000, member_bytes=2 << 30, bytes=8 << 30)
#: Not /tmp, which may be memory.
PLACE = "/var/tmp"
_SPARE = 64 << 20
#: Options of modules, as in the documentation fragment "bundle".
BUNDLE_KEY: Dict[str, Any] = {"type": "str", "default": "", "no_log": False}
RECEIVED: Dict[str, Any] = {
    "type": "dict",
    "options": {"path": {"type": "path", "required": True}, "sha256": {"type": "str", "required": True}},
}


class ReceivedError(Failure):
    """The archive did not arrive whole, or there is no space for it; says what to do."""


@contextmanager
def unpacked(path: str, sha256: str, place: str = PLACE) -> Iterator[str]:
    """The folder with the files of the archive, by the last part of their names; gone afterwards. ReceivedError or OSError."""
    need = 2 * os.stat(path).st_size + _SPARE
    free = shutil.disk_usage(place).free
    if free < need:
        raise ReceivedError(
            f"{free >> 20} MiB free in {place} on this host, expected {need >> 20} MiB; nothing was changed: free some space"
        )
    folder = tempfile.mkdtemp(prefix="gpushare-", dir=place)
    try:
        copy, files = os.path.join(folder, "archive"), os.path.join(folder, "files")
        digest = hashlib.sha256()
        with open(path, "rb") as source, open(copy, "xb") as target:
            for part in iter(lambda: source.read(tar.CHUNK), b""):
                digest.update(part)
                target.write(part)
        if digest.hexdigest() != sha256:
            raise ReceivedError(f"{path} arrived with SHA-256 {digest.hexdigest()}, expected {sha256}: the transfer was damaged, run again")
        os.mkdir(files)
        try:
            with open(copy, "rb") as stream:
                tar.unpack(stream, LIMITS, files)
        except tar.TarError as error:
            raise ReceivedError(f"the archive from the controller cannot be unpacked ({error}); nothing was changed") from error
        os.unlink(copy)
        # Package managers read as users of their own.
        for directory in (folder, files):
            os.chmod(directory, 0o755)
        yield files
    finally:
        shutil.rmtree(folder, ignore_errors=True)
