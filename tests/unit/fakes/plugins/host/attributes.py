# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Owners and SELinux labels of files, which only root may give: kept beside the files, by inode."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.files import SELINUX

LABEL = b"system_u:object_r:etc_t:s0"


class Attributes:
    """From its making on, every os call about an owner or a label goes here. The process itself is `ours`."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.ours = (4711, 4712)
        self.owners: dict[int, tuple[int, int]] = {}
        self.labels: dict[int, bytes] = {}
        self._fstat = os.fstat
        monkeypatch.setattr(os, "getuid", lambda: self.ours[0])
        monkeypatch.setattr(os, "getgid", lambda: self.ours[1])
        for name in ("fstat", "fchown", "getxattr", "setxattr"):
            monkeypatch.setattr(os, name, getattr(self, name))

    def give(self, path: Path, uid: int, gid: int, label: bytes) -> None:
        self.owners[path.stat().st_ino] = (uid, gid)
        self.labels[path.stat().st_ino] = label

    def fstat(self, descriptor: int) -> os.stat_result:
        found = self._fstat(descriptor)
        uid, gid = self.owners.get(found.st_ino, (found.st_uid, found.st_gid))
        return os.stat_result((*found[:4], uid, gid, *found[6:10]))

    def fchown(self, descriptor: int, uid: int, gid: int) -> None:
        inode = self._fstat(descriptor).st_ino
        self.owners[inode] = (uid, gid)
        self.labels.pop(inode, None)  # of a file that is gone: this is where a new one begins

    def getxattr(self, path: str, name: str) -> bytes:
        assert name == SELINUX
        if os.stat(path).st_ino not in self.labels:
            raise OSError(errno.ENODATA, "No data available")
        return self.labels[os.stat(path).st_ino]

    def setxattr(self, descriptor: int, name: str, value: bytes) -> None:
        assert name == SELINUX
        self.labels[self._fstat(descriptor).st_ino] = value
