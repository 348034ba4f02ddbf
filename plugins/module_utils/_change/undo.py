# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The content that a file of the journal gets when our change is taken back, decided here for every owner.

A file that is as we left it gets its old bytes. One that is gone stays away. Of one that others have changed, its owner takes out our part;
an owner that cannot do that removes a file which is there by us alone, and leaves any other file, with its entry in the journal.
"""

from __future__ import annotations

import os
from typing import Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Union

from .._formats.failure import Failure
from .._host.files import FileState, read_state
from .journal import Entry

#: New texts by path; None: no file.
Texts = Dict[str, Optional[str]]
#: The same where a file may be no text.
Contents = Mapping[str, Union[str, bytes, None]]
#: A file's path, its text, and its text before us ("" without one), to the text without our part; None: no file.
WithoutOurs = Callable[[str, str, str], Optional[str]]


class Rejected(Failure):
    """Nothing was changed; the message has what was found, what was expected and what to do."""


class Undo(NamedTuple):
    """The fate of one file. content: None for no file. note: for people, "" for none. stays: why the file is left alone, "" if not."""

    content: Optional[bytes]
    note: str = ""
    stays: str = ""


class Undone(NamedTuple):
    """The fate of several files. files: those that are there or come back; left: those that stay as they are, and why."""

    files: Dict[str, Optional[bytes]]
    notes: List[str]
    left: Dict[str, str]

    @property
    def texts(self) -> Texts:
        """The files as texts. It raises Rejected if one is not UTF-8."""
        return {path: None if content is None else decoded(path, content) for path, content in self.files.items()}

    @property
    def messages(self) -> List[str]:
        """The notes, and why each file stays that does."""
        return [*self.notes, *(f"{path} stays: {why}" for path, why in self.left.items())]

    def over(self, entries: Sequence[Entry]) -> List[Entry]:
        """The entries among these that the journal may forget: their files do not stay."""
        return [entry for entry in entries if entry.path not in self.left]


def nothing_undone() -> Undone:
    """The fate of no file."""
    return Undone({}, [], {})


def as_before(entry: Entry, now: Optional[bytes]) -> bool:
    """Whether a file has its content from before us."""
    return now == (None if entry.original is None else entry.original.content)


def undo(entry: Entry, now: Optional[bytes], without_ours: Optional[WithoutOurs] = None, why: str = "was changed by others since") -> Undo:
    """The fate of the file of this entry, which has this content now. why: in the note, the reason to take only our part out."""
    path, original = entry.path, None if entry.original is None else entry.original.content
    if now is None and not (original is not None and entry.untouched(now)):
        return Undo(None, "" if original is None else f"{path} was there before this collection and is gone now; it is not brought back")
    if entry.untouched(now) or as_before(entry, now):
        return Undo(original)
    if without_ours is not None:
        before = "" if original is None else decoded(path, original)
        text = decoded(path, now or b"")
        kept = without_ours(path, text, before)
        part = "nothing of ours is left in it" if kept == text else "only our part is taken out"
        return Undo(None if kept is None else kept.encode(), f"{path} {why}: {part}")
    if original is None:
        return Undo(None, f"{path} is removed although others have changed it: without this collection it would not be there")
    return Undo(now, "", "it was there before this collection and others have changed it since; the journal keeps its content from before")


def fate(entry: Entry, without_ours: Optional[WithoutOurs] = None, root: str = "/") -> Tuple[Optional[FileState], Undo]:
    """The file of this entry as it is on the host, None if there is none, and its fate."""
    state, odd = read_or_none(os.path.join(root, entry.path.lstrip("/")))
    return state, Undo(None, stays=odd) if odd else undo(entry, None if state is None else state.content, without_ours)


def undone(entries: Sequence[Entry], without_ours: Optional[WithoutOurs] = None, root: str = "/") -> Undone:
    """The fate of the files of these entries, in their order."""
    files: Dict[str, Optional[bytes]] = {}
    notes: List[str] = []
    left: Dict[str, str] = {}
    for entry in entries:
        state, found = fate(entry, without_ours, root)
        if found.note:
            notes.append(found.note)
        if found.stays:
            left[entry.path] = found.stays
        elif state is not None or found.content is not None:
            files[entry.path] = found.content
    return Undone(files, notes, left)


def read_or_none(path: str) -> Tuple[Optional[FileState], str]:
    """(the file, "") or (None, "" if there is none, else what is there instead)."""
    try:
        return read_state(path), ""
    except OSError as error:
        return None, f"it is not a regular file ({error.strerror or error})"


def decoded(path: str, content: bytes) -> str:
    """The text of a file. It raises Rejected if it is not UTF-8."""
    try:
        return content.decode()
    except UnicodeDecodeError as error:
        raise Rejected(f"{path} is not UTF-8 ({error}); nothing was changed: correct it, and run again") from error
