# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Our changes of this host, so that uninstall can undo exactly that and a report can tell.

One JSON file per changed file under `<root>/var/lib/gpushare/journal`:
{"v": 1, "path", "owner", "original" (base64, null if there was no file), "mode", "uid", "gid", "label", "left", "others"}.
left: SHA-256 of the file before and after our last change ("" = no file): a kill between note and change leaves the
first. others: another program changed the file between two of our changes, and the second one kept that. Then the old bytes are
no longer what the host would have without us. A path that does not begin with "/" is something else than a file that we
changed, and means what its owner means by it ("configmap:…", "value:…", "folder:…").

Beside them one file, `<owner>.pending`: how the files were before a change that is begun and not yet verified or restored.
"""

from __future__ import annotations

import base64
import json
import os
from dataclasses import dataclass
from typing import Any, Dict, List, Optional, Tuple

from .._formats.failure import Failure
from .._host.files import FileState, digest, read_state, remove, replace, state_digest
from .subjects import is_ours

FOLDER = "var/lib/gpushare/journal"
VERSION = 1


class JournalError(Failure):
    """An entry that cannot be read; says which file and what to do."""


@dataclass(frozen=True)
class Entry:
    """One changed file. original: as it was before us, None if it was not there."""

    path: str
    owner: str
    original: Optional[FileState]
    left: Tuple[str, str]
    others: bool

    @property
    def is_file(self) -> bool:
        return self.path.startswith("/")

    def untouched(self, current: Optional[bytes]) -> bool:
        """Whether the file still is as we left it, and no other program ever changed it meanwhile."""
        return not self.others and digest(current) in self.left


class Journal:
    """The journal of one host. root: "/" or the folder that stands for it."""

    def __init__(self, root: str = "/") -> None:
        self.root = root
        self.folder = os.path.join(root, FOLDER)

    def entries(self) -> List[Entry]:
        """Every changed file, by path."""
        if not os.path.isdir(self.folder):
            return []
        names = sorted(name for name in os.listdir(self.folder) if name.endswith(".json"))
        return sorted((self._read(os.path.join(self.folder, name)) for name in names), key=lambda entry: entry.path)

    def entry(self, path: str) -> Optional[Entry]:
        name = self._name(path)
        return self._read(name) if os.path.exists(name) else None

    def record(self, path: str, owner: str, before: Optional[FileState], after: Optional[bytes]) -> Entry:
        """Note, before it happens, that `owner` turns `before` into `after`.

        A file of ours that the journal does not have was written by a run whose journal is lost: before us there was none.
        """
        known = self.entry(path)
        left = (state_digest(before), digest(after))
        if known is None or state_digest(known.original) == state_digest(before):
            lost = known is None and before is not None and is_ours(path, before.content)
            entry = Entry(path, owner, None if lost else before, left, False)
        elif left[1] == known.left[1]:
            # Our former text replaces what others changed since. Until it is written, the file is not as we left it.
            entry = known
        else:
            entry = Entry(path, known.owner, known.original, left, known.others or left[0] not in known.left)
        self._write(entry)
        return entry

    def forget(self, path: str) -> None:
        """The change is undone."""
        remove(self._name(path))

    def restore(self, path: str, entry: Optional[Entry]) -> None:
        """Let the journal say of a path what it said before; None: nothing."""
        if entry is None:
            self.forget(path)
        elif entry != self.entry(path):
            self._write(entry)

    def _name(self, path: str) -> str:
        return os.path.join(self.folder, digest(path.encode())[:24] + ".json")

    def _write(self, entry: Entry) -> None:
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        text = json.dumps(fields_of(entry), sort_keys=True, indent=1) + "\n"
        replace(self._name(entry.path), text.encode(), 0o600, os.getuid(), os.getgid(), None)

    def _read(self, name: str) -> Entry:
        advice = "move it away; what it describes can then no longer be undone by uninstall"
        state = read_state(name)
        try:
            return entry_of(json.loads(state.content if state else b""))
        except (ValueError, KeyError, TypeError) as error:
            raise JournalError(f"journal entry {name} cannot be used ({type(error).__name__}: {error}); {advice}") from error


def fields_of(entry: Entry) -> Dict[str, Any]:
    """An entry as JSON."""
    fields: Dict[str, Any] = {
        "v": VERSION,
        "path": entry.path,
        "owner": entry.owner,
        "original": None,
        "left": list(entry.left),
        "others": entry.others,
    }
    original = entry.original
    if original is not None:
        label = None if original.label is None else base64.b64encode(original.label).decode()
        content = base64.b64encode(original.content).decode()
        fields.update(original=content, mode=original.mode, uid=original.uid, gid=original.gid, label=label)
    return fields


def entry_of(fields: Dict[str, Any]) -> Entry:
    """The other way round. ValueError, KeyError or TypeError if it is none."""
    if fields["v"] != VERSION:
        raise ValueError(f"version {fields['v']!r}, expected {VERSION}")
    original = None
    if fields["original"] is not None:
        label = None if fields["label"] is None else base64.b64decode(fields["label"])
        content = base64.b64decode(fields["original"], validate=True)
        original = FileState(content, fields["mode"], fields["uid"], fields["gid"], label)
    first, second = fields["left"]
    return Entry(fields["path"], fields["owner"], original, (first, second), fields["others"])


@dataclass(frozen=True)
class Saved:
    """One path before the change: the file (None: there was none), and what the journal said of it (None: nothing)."""

    path: str
    before: Optional[FileState]
    entry: Optional[Entry]


class Pending:
    """The unproven change of one owner on one host."""

    def __init__(self, journal: Journal, owner: str) -> None:
        self._journal = journal
        self._path = os.path.join(journal.folder, owner + ".pending")

    @property
    def exists(self) -> bool:
        """Whether a run began a change and was killed before it was verified or restored."""
        return os.path.exists(self._path)

    def load(self) -> List[Saved]:
        """How the files were before the run that did not end. One that another program has changed since is taken as it is now."""
        state = read_state(self._path)
        if state is None:
            return []
        try:
            fields = json.loads(state.content)
            if fields["v"] != VERSION:
                raise ValueError(f"version {fields['v']!r}, expected {VERSION}")
            found = [_saved(noted) for noted in fields["paths"]]
        except (ValueError, KeyError, TypeError) as error:
            advice = "move it away; a change that a killed run began can then no longer be undone"
            raise JournalError(f"{self._path} cannot be used ({type(error).__name__}: {error}); {advice}") from error
        return [self._as_it_is(saved) for saved in found]

    def save(self, paths: List[Saved]) -> None:
        """Note it, before the first write."""
        os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
        text = json.dumps({"v": VERSION, "paths": [_fields(saved) for saved in paths]}, indent=1) + "\n"
        replace(self._path, text.encode(), 0o600, os.getuid(), os.getgid(), None)

    def clear(self) -> None:
        """The change is verified, or restored."""
        remove(self._path)

    def _as_it_is(self, saved: Saved) -> Saved:
        if not saved.path.startswith("/"):
            return saved
        now, entry = read_state(os.path.join(self._journal.root, saved.path.lstrip("/"))), self._journal.entry(saved.path)
        ours = {state_digest(saved.before)} | (set(entry.left) if entry else set())
        return saved if state_digest(now) in ours else Saved(saved.path, now, entry)


def _fields(saved: Saved) -> Dict[str, Any]:
    # A file is written as an entry's original is.
    before = fields_of(Entry(saved.path, "", saved.before, ("", ""), False))
    return {"before": before, "entry": None if saved.entry is None else fields_of(saved.entry)}


def _saved(fields: Dict[str, Any]) -> Saved:
    before, entry = entry_of(fields["before"]), fields["entry"]
    return Saved(before.path, before.original, None if entry is None else entry_of(entry))
