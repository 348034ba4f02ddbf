# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The owner and the mode of everything that the installer has written for the daemons: keys, certificates, kubeconfigs, settings, and the
folders of their state and of the runtime."""

from __future__ import annotations

import os
import posixpath
import shlex
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from gpushare_runtime.doctor.findings import Findings
from gpushare_runtime.doctor.host import DaemonUnit, HostReader

_FOLDER: Final = "/etc/gpushare"
# A user who reads one of these is a daemon to others.
_SECRET: Final = (".key", ".token")
# Other checks know by which user a daemon reads its token (identity.py).
_JUDGED: Final = tuple(f"{_FOLDER}/{name}.token" for name in ("device-plugin", "extender", "dashboard"))
#: Of the journal by which uninstall restores files, and of the MPS control daemons.
_FOLDERS: Final = ("/var/lib/gpushare", "/var/lib/gpushare-mps")
_MOST, _DEEPEST, _NAMED = 200, 4, 5


def judge_own_files(found: Findings, host: HostReader, units: Iterable[DaemonUnit] = (), environment: Path | None = None) -> None:
    """Whether they are root's, and no other user can write them or read a secret of them; whether each daemon's state is its own.

    environment: the folder of the runtime in use, below the folder of all.
    """
    root = host.root_user()
    runtime = [] if environment is None else [str(environment.parent), str(environment)]
    foreign, written, read = [], [], []
    for path in (*_FOLDERS, *runtime):
        status = _status(host, path)
        if status is not None and stat.S_ISDIR(status.st_mode):
            foreign += [path] if status.st_uid != root else []
            written += [path] if status.st_mode & 0o022 else []
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
    states = dict(filter(None, (_state(host, unit) for unit in units)))
    if said or states:
        seen = "; ".join([*(f"{_named(files)} {what}" for files, what, _ in said), *states.values()])
        cures = [f"{command} {' '.join(map(shlex.quote, files))}" for files, _, command in said]
        # systemd gives a service its folder of state at each start, with all that is in it.
        cure = "; ".join([*cures, *(f"systemctl restart {name}" for name in states)])
        cure += "; where another user had a key below pki, remove that key: site.yml makes another one"
        found.error("files_exposed", seen, "files of root, which no other user can write, and keys that no other user can read", cure)


def _state(host: HostReader, unit: DaemonUnit) -> tuple[str, str] | None:
    """(a daemon that runs, what is wrong with its folder of state), None for nothing."""
    folder, user = posixpath.dirname(unit.option("token-file")), host.user_of(unit.pid)
    try:
        # Of a user that systemd has made, it is a link to one that root alone can reach.
        status = os.stat(host.at(folder)) if folder and user is not None else None
    except (OSError, ValueError):
        return None
    if status is None or (status.st_uid == user and not status.st_mode & 0o077):
        return None
    return unit.name, f"{folder} of user {status.st_uid} with mode {stat.S_IMODE(status.st_mode):04o}, and not 0700 of user {user}"


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
