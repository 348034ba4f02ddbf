# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What we changed on this host, so that uninstall can undo exactly that and a report can tell. No Ansible here.

One JSON file per changed file under `<root>/var/lib/gpushare/journal`, the bytes that were there before us beside it:
{"v": 1, "path", "owner", "existed", "mode", "uid", "gid", "label", "left", "others"}.
left: SHA-256 of the file before and after our last change ("" = no file): a kill between note and change leaves the
first. others: somebody changed the file between two of our changes, so that the old bytes are no longer what the host
would have without us.
"""

from __future__ import annotations

import base64
import json
import os
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

from ansible_collections.gpushare.kubernetes.plugins.module_utils._files import (
    FileState,
    digest,
    read_state,
    remove,
    replace,
)

FOLDER = "var/lib/gpushare/journal"
VERSION = 1


class JournalError(Exception):
    """An entry that cannot be read; says which file and what to do."""


class Entry(NamedTuple):
    """One changed file. original: as it was before us, None if it was not there."""

    path: str
    owner: str
    original: Optional[FileState]
    left: Tuple[str, str]
    others: bool

    def untouched(self, current: Optional[bytes]) -> bool:
        """Whether the file still is as we left it, and nobody else ever changed it meanwhile."""
        return not self.others and digest(current) in self.left


class Journal(object):
    """The journal of one host. root: "/" or the folder that stands for it."""

    def __init__(self, root: str = "/") -> None:
        self.root = root
        self._folder = os.path.join(root, FOLDER)

    def entries(self) -> List[Entry]:
        """Every changed file, by path."""
        if not os.path.isdir(self._folder):
            return []
        names = sorted(name for name in os.listdir(self._folder) if name.endswith(".json"))
        return sorted((self._read(os.path.join(self._folder, name)) for name in names), key=lambda entry: entry.path)

    def entry(self, path: str) -> Optional[Entry]:
        name = self._name(path)
        return self._read(name + ".json") if os.path.exists(name + ".json") else None

    def record(self, path: str, owner: str, before: Optional[FileState], after: Optional[bytes]) -> Entry:
        """Note, before it happens, that `owner` turns `before` into `after`."""
        known = self.entry(path)
        left = (_digest(before), digest(after))
        if known is None or _digest(known.original) == _digest(before):
            entry = Entry(path, owner, before, left, False)
        else:
            entry = Entry(path, known.owner, known.original, left, known.others or _digest(before) not in known.left)
        self._write(entry)
        return entry

    def forget(self, path: str) -> None:
        """The change is undone."""
        name = self._name(path)
        remove(name + ".json")
        remove(name + ".original")

    def _name(self, path: str) -> str:
        return os.path.join(self._folder, digest(path.encode())[:24])

    def _write(self, entry: Entry) -> None:
        name = self._name(entry.path)
        original = entry.original
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        if original is not None:
            replace(name + ".original", original.content, 0o600, os.getuid(), os.getgid(), None)
        fields: Dict[str, Any] = {
            "v": VERSION,
            "path": entry.path,
            "owner": entry.owner,
            "existed": original is not None,
            "left": list(entry.left),
            "others": entry.others,
        }
        if original is not None:
            label = None if original.label is None else base64.b64encode(original.label).decode()
            fields.update(mode=original.mode, uid=original.uid, gid=original.gid, label=label)
        text = json.dumps(fields, sort_keys=True, indent=1) + "\n"
        replace(name + ".json", text.encode(), 0o600, os.getuid(), os.getgid(), None)

    def _read(self, name: str) -> Entry:
        advice = "move it away; what it describes can then no longer be undone by uninstall"
        state = read_state(name)
        try:
            fields = json.loads(state.content if state else b"")
            if fields["v"] != VERSION:
                raise ValueError("version %r, expected %d" % (fields["v"], VERSION))
            original = None
            if fields["existed"]:
                saved = read_state(name[: -len(".json")] + ".original")
                if saved is None:
                    raise ValueError("the saved original is missing beside it")
                label = None if fields["label"] is None else base64.b64decode(fields["label"])
                original = FileState(saved.content, fields["mode"], fields["uid"], fields["gid"], label)
            first, second = fields["left"]
            return Entry(fields["path"], fields["owner"], original, (first, second), fields["others"])
        except (ValueError, KeyError, TypeError) as error:
            raise JournalError("journal entry %s cannot be used (%s: %s); %s" % (name, type(error).__name__, error, advice)) from error


def _digest(state: Optional[FileState]) -> str:
    return digest(None if state is None else state.content)
