# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The state of the files that run our daemons: against the journal, which has the hash of what the roles wrote last. Read-only.

Plain JSON, judged on the controller by _verdict/daemons.py.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any, Dict, List

from .._change.journal import Journal, JournalError
from .._change.subjects import NAME, SETTINGS, is_ours
from .._cluster.names import DASHBOARD, EXTENDER, PLUGIN
from .._host.files import digest
from .._host.host import Host
from .._host.systemd import UNITS

#: Where systemd searches for the drop-ins of a unit (systemd.unit(5)); `systemctl set-property` writes the second one.
_FOLDERS = (UNITS, "/etc/systemd/system.control", "/run/systemd/system", "/run/systemd/system.control", "/usr/lib/systemd/system")
#: Settings with which a unit starts another process, or the same with other words; the level of the log is none (docs/operate/failures.md).
_STARTS = re.compile(
    r"^\s*(?!Environment=LOG_LEVEL=[a-z]+$)(?:ExecStart\w*|Environment|EnvironmentFile|User|Group|RootDirectory)\s*=", re.MULTILINE
)
#: Units whose absence the doctor has named; it does not miss a timer, a socket, or what they start.
_NAMED = tuple(f"{name}.service" for name in (PLUGIN, EXTENDER, DASHBOARD))
_BYTES = 64 * 1024
_MOST = 50


def files(host: Host) -> Dict[str, Any]:
    """problem: why the journal cannot be read, else "". changed: files that differ from what was written, or are gone. unrecorded:
    files of ours that the journal does not have. drop_ins: what others add to our units, with whether it changes what is started."""
    paths = [posixpath.join(folder, name) for folder in (UNITS, SETTINGS) for name in host.names(folder) if NAME.fullmatch(name)]
    found: Dict[str, Any] = {"problem": "", "changed": [], "unrecorded": [], "drop_ins": _drop_ins(host, paths)}
    try:
        entries = {entry.path: entry for entry in Journal(host.root).entries() if NAME.fullmatch(posixpath.basename(entry.path))}
    except (JournalError, OSError) as error:
        found["problem"] = str(error)
        return found
    for path, entry in entries.items():
        content = host.data(path)
        if digest(content) != entry.left[1] and (content is not None or posixpath.basename(path) not in _NAMED):
            found["changed"].append(path)
    found["unrecorded"] = [path for path in paths if path not in entries and is_ours(path, host.data(path, _BYTES))]
    return {key: value if isinstance(value, str) else value[:_MOST] for key, value in found.items()}


def _drop_ins(host: Host, paths: List[str]) -> List[Dict[str, Any]]:
    units = [posixpath.basename(path) for path in paths if path.endswith(".service")]
    files_ = [
        posixpath.join(folder, f"{unit}.d", name)
        for folder in _FOLDERS
        for unit in units
        for name in host.names(f"{folder}/{unit}.d")
        if name.endswith(".conf")
    ]
    texts = {path: (host.data(path, _BYTES) or b"").decode("utf-8", "replace") for path in files_}
    return [{"path": path, "starts": _STARTS.search(text) is not None} for path, text in texts.items()]
