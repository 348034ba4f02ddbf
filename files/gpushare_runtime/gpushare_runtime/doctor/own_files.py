# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The owner and the mode of everything that the installer has written for the daemons: keys, certificates, kubeconfigs, settings."""

from __future__ import annotations

import os
import shlex
import stat
from collections.abc import Iterator
from typing import Final

from gpushare_runtime.doctor.findings import Findings
from gpushare_runtime.doctor.host import HostReader

_FOLDER: Final = "/etc/gpushare"
# A user who reads one of these is a daemon to others.
_SECRET: Final = (".key", ".token")
# Other checks know by which user a daemon reads its token (identity.py).
_JUDGED: Final = tuple(f"{_FOLDER}/{name}.token" for name in ("device-plugin", "extender", "dashboard"))
_MOST, _DEEPEST, _NAMED = 200, 4, 5


def judge_own_files(found: Findings, host: HostReader) -> None:
    """Whether they are root's, and no other user can write them or read a secret of them."""
    root = host.root_user()
    foreign, written, read = [], [], []
    for path in _files(host, _FOLDER):
        status = _status(host, path)
        if status is None or path in _JUDGED:
            continue
        mode = 0 if stat.S_ISLNK(status.st_mode) else stat.S_IMODE(status.st_mode)
        foreign += [path] if status.st_uid != root else []
        written += [path] if mode & 0o022 else []
        read += [path] if mode & 0o044 and path.endswith(_SECRET) else []
    wrong = [(foreign, f"of another user than {root}", f"chown -h {root}"), (written, "that others may write", "chmod go-w")]
    wrong.append((read, "with a secret that others may read", "chmod go-rwx"))
    said = [(files, what, command) for files, what, command in wrong if files]
    if said:
        seen = "; ".join(f"{_named(files)} {what}" for files, what, _ in said)
        cure = "; ".join(f"{command} {' '.join(map(shlex.quote, files))}" for files, _, command in said)
        cure += "; where another user had a key below pki, remove that key: site.yml makes another one"
        found.error("files_exposed", seen, "files of root, which no other user can write, and keys that no other user can read", cure)


def _files(host: HostReader, folder: str, depth: int = 0) -> Iterator[str]:
    """The folder and all below it, not through links."""
    yield folder
    try:
        names = sorted(os.listdir(host.at(folder)))[:_MOST]
    except OSError:
        return
    for name in names:
        path = f"{folder}/{name}"
        status = _status(host, path)
        if status is not None and stat.S_ISDIR(status.st_mode) and depth < _DEEPEST:
            yield from _files(host, path, depth + 1)
        else:
            yield path


def _status(host: HostReader, path: str) -> os.stat_result | None:
    try:
        return os.lstat(host.at(path))
    except (OSError, ValueError):
        return None


def _named(files: list[str]) -> str:
    more = len(files) - _NAMED
    return ", ".join(files[:_NAMED]) + (f" and {more} more" if more > 0 else "")
