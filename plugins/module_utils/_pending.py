# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a transaction has begun and not yet proven: how its files were, so that the next run can put them back. No Ansible here.

One file beside the journal, `<owner>.pending`, there from before the first write until the change is proven or put back.
"""

from __future__ import annotations

import json
import os
from typing import Any, Dict, List, NamedTuple, Optional

from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.files import FileState, read_state, remove, replace, state_digest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._journal import (
    VERSION,
    Entry,
    Journal,
    JournalError,
    entry_of,
    fields_of,
)


class Saved(NamedTuple):
    """One path before the change: the file (None: there was none), and what the journal said of it (None: nothing)."""

    path: str
    before: Optional[FileState]
    entry: Optional[Entry]


class Pending(object):
    """The unproven change of one owner on one host."""

    def __init__(self, journal: Journal, owner: str) -> None:
        self._journal = journal
        self._path = os.path.join(journal.folder, owner + ".pending")

    @property
    def exists(self) -> bool:
        """Whether a run began a change and was killed before it was proven or put back."""
        return os.path.exists(self._path)

    def load(self) -> List[Saved]:
        """How the files were before the run that did not end. One that somebody else has changed since is taken as it is now."""
        state = read_state(self._path)
        if state is None:
            return []
        try:
            fields = json.loads(state.content)
            if fields["v"] != VERSION:
                raise ValueError("version %r, expected %d" % (fields["v"], VERSION))
            found = [_saved(one) for one in fields["paths"]]
        except (ValueError, KeyError, TypeError) as error:
            message = "%s cannot be used (%s: %s); move it away; a change that a killed run began can then no longer be put back"
            raise JournalError(message % (self._path, type(error).__name__, error)) from error
        return [self._as_it_is(one) for one in found]

    def save(self, paths: List[Saved]) -> None:
        """Note it, before the first write."""
        os.makedirs(os.path.dirname(self._path), mode=0o700, exist_ok=True)
        text = json.dumps({"v": VERSION, "paths": [_fields(one) for one in paths]}, indent=1) + "\n"
        replace(self._path, text.encode(), 0o600, os.getuid(), os.getgid(), None)

    def clear(self) -> None:
        """The change is proven, or put back."""
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
