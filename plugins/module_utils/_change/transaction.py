# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A change to a host's files as a transaction.

Plan with `write` and `remove`, show `diff()`, check the candidate by the strongest means there is, then `apply`: write all new files
beside their places, note the originals in the journal, put each file in its place atomically, restart if that is due, verify health; if
anything of that fails, restore what was there and say why. After a kill at any point each file is the old one or the new one, and the next
run finishes: whether a restart is due is asked of the running process, not remembered, and what was not verified is verified then, or
restored to what was there before the run that was killed.
"""

from __future__ import annotations

import errno
import os
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Callable, Dict, List, Mapping, Optional, Sequence

from .._formats.answers import DiffPart
from .._formats.failure import Failure
from .._host.files import FileState, Staged, digest, read_state, remove
from .journal import Entry, Journal, Pending, Saved
from .subjects import is_ours


class TransactionError(Failure):
    """The change did not hold. restored: whether the host is as it was before."""

    def __init__(self, message: str, restored: bool) -> None:
        super().__init__(message)
        self.restored = restored


@dataclass(frozen=True)
class Change:
    """One file: what is there, and what shall be (None: no file). A path that does not begin with "/" is only noted."""

    path: str
    before: Optional[FileState]
    after: Optional[bytes]
    mode: int
    secret: bool


class Service(ABC):
    """A service that runs on the files. Each method does its own waiting, within a deadline."""

    @abstractmethod
    def due(self) -> bool:
        """Whether the running process is older than the files, or not as they say."""

    @abstractmethod
    def restart(self) -> None:
        """Make it read them, by whatever means."""

    @abstractmethod
    def problem(self) -> Optional[str]:
        """Why it is not healthy; None if it is."""

    def restored(self) -> None:
        """The files are again those from before the change: from now on a service as it ran then is as due."""
        return


class FollowUp(Service):
    """A command that follows a change of files. Only the last word of a subject asks for it, and then it is due."""

    def due(self) -> bool:
        return True

    def problem(self) -> Optional[str]:
        return None


def nothing(point: str) -> None:
    """The function is called at each point where a kill must be harmless; tests put something else here."""


class Transaction:
    """owner: who asks, as `uninstall` and `report` will name it ("scheduler", "container_runtime")."""

    def __init__(self, owner: str, root: str = "/", point: Callable[[str], None] = nothing) -> None:
        self.owner = owner
        self.root = root
        self.journal = Journal(root)
        self._pending = Pending(self.journal, owner)
        self._point = point
        self._changes: List[Change] = []

    def write(self, path: str, content: bytes, mode: Optional[int] = None, secret: bool = False) -> None:
        """Plan: `path` (absolute) shall hold `content`. mode: for a new file, or to change it; else what is there stays."""
        before = read_state(self._real(path))
        if before is None and os.path.islink(self._real(path)) and self.journal.entry(path) is None:
            # Its target would be made, and an undo would take the link away instead.
            raise OSError(
                errno.EINVAL, "expected a file, found a link to one that is not there; remove the link, or restore its target", path
            )
        wanted = mode if mode is not None else before.mode if before else 0o644
        self._changes.append(Change(path, before, content, wanted, secret))

    def remove(self, path: str, secret: bool = False) -> None:
        """Plan: there shall be no `path`."""
        self._changes.append(Change(path, read_state(self._real(path)), None, 0, secret))

    def restore(self, files: Mapping[str, Optional[bytes]], entries: Sequence[Entry]) -> None:
        """Plan: each file has this content (None: no file), and the mode from before us, if one of these entries has it."""
        modes = {entry.path: entry.original.mode for entry in entries if entry.original is not None}
        for path, content in files.items():
            if content is None:
                self.remove(path)
            else:
                self.write(path, content, modes.get(path))

    def note(self, name: str, before: Optional[bytes], after: Optional[bytes]) -> None:
        """Plan: the journal shall say that `name`, which is not a file, was turned from `before` into `after`."""
        state = None if before is None else FileState(before, 0, 0, 0, None)
        self._changes.append(Change(name, state, after, 0, False))

    def entries(self) -> List[Entry]:
        """The entries of the journal for this owner."""
        return [entry for entry in self.journal.entries() if entry.owner == self.owner]

    @property
    def unfinished(self) -> bool:
        """Whether a run of this owner was killed before its change was verified or restored."""
        return self._pending.exists

    @property
    def changes(self) -> List[Change]:
        """The files that really differ."""
        return [change for change in self._changes if _differs(change)]

    @property
    def forgotten(self) -> List[str]:
        """Files of ours that are as planned and that the journal does not have: it was lost since they were written."""
        return [change.path for change in self._forgotten()]

    def diff(self) -> List[DiffPart]:
        """In Ansible's form; secrets and binary files as digests only."""
        return [
            {
                "before_header": change.path,
                "after_header": change.path,
                "before": _shown(change, change.before.content if change.before else None),
                "after": _shown(change, change.after),
            }
            for change in self.changes
            if change.path.startswith("/")
        ]

    def apply(self, service: Optional[Service] = None) -> None:
        """Do it. TransactionError after putting everything back, when writing, restarting or health fails."""
        changes, unfinished = self.changes, self.unfinished
        saved: List[Saved] = []
        staged: Dict[str, Staged] = {}
        try:
            saved = self._begin(changes)
            # A disk that is full is found before the first file has changed.
            for change in changes:
                self._point("before " + change.path)
                if change.path.startswith("/") and change.after is not None:
                    staged[change.path] = self._staged(change.path, change.after, change.before, change.mode)
            for change in changes:
                self.journal.record(change.path, self.owner, change.before, change.after)
                self._point("noted " + change.path)
            for change in self._forgotten():
                self.journal.record(change.path, self.owner, change.before, change.after)
            for change in changes:
                if change.path in staged:
                    staged.pop(change.path).take_place()
                elif change.path.startswith("/") and change.after is None:
                    remove(self._real(change.path))
                if change.path.startswith("/"):
                    self._point("written " + change.path)
            restarted = False
            if service and service.due():
                service.restart()
                restarted = True
                self._point("restarted")
            problem = service.problem() if service and (restarted or changes or unfinished) else None
        except Exception as error:
            for file in staged.values():
                file.discard()
            raise self._roll_back(saved, service, f"{type(error).__name__}: {error}", unfinished) from error
        if problem:
            raise self._roll_back(saved, service, problem, unfinished)
        self._pending.clear()
        self._point("done")

    def _forgotten(self) -> List[Change]:
        same = [change for change in self._changes if change.path.startswith("/") and change.after is not None and not _differs(change)]
        return [change for change in same if is_ours(change.path, change.after) and self.journal.entry(change.path) is None]

    def _begin(self, changes: List[Change]) -> List[Saved]:
        """Note how everything was before this change, or before the one that was killed on its way to it."""
        saved = self._pending.load()
        known = {state.path for state in saved}
        saved += [Saved(change.path, change.before, self.journal.entry(change.path)) for change in changes if change.path not in known]
        if saved:
            self._pending.save(saved)
        return saved

    def _roll_back(self, saved: List[Saved], service: Optional[Service], why: str, unfinished: bool) -> TransactionError:
        """Restore everything and verify that, too. In the order of the change: a file that makes a program read the others comes last."""
        back = "what was there is restored"
        if unfinished:
            back = "the files were those of an earlier run that did not end; what was there before it is restored"
        try:
            for state in saved:
                path, before = state.path, state.before
                if path.startswith("/") and read_state(self._real(path)) != before:
                    if before is None:
                        remove(self._real(path))
                    else:
                        self._staged(path, before.content, before, before.mode).take_place()
                self.journal.restore(path, state.entry)
            if service and saved:
                # The process that ran when this run began may have the change of the one that was killed.
                if not unfinished:
                    service.restored()
                if service.due():
                    service.restart()
                still = service.problem()
                if still:
                    self._pending.clear()
                    return TransactionError(f"{why}; {back}, but: {still}", restored=True)
            self._pending.clear()
        except Exception as error:  # for any error, the user must hear of both
            failed = f"restoring what was there failed as well: {type(error).__name__}: {error}"
            return TransactionError(f"{why}; {failed}; the originals are in {self.journal.folder}", restored=False)
        return TransactionError(f"{why}; {back}", restored=True)

    def _staged(self, path: str, content: bytes, like: Optional[FileState], mode: int) -> Staged:
        uid, gid = (like.uid, like.gid) if like else (os.getuid(), os.getgid())
        return Staged(self._real(path), FileState(content, mode, uid, gid, like.label if like else None))

    def _real(self, path: str) -> str:
        return os.path.join(self.root, path.lstrip("/"))


def _differs(change: Change) -> bool:
    if change.before is None:
        return change.after is not None
    return change.before.content != change.after or change.before.mode != change.mode


def _shown(change: Change, content: Optional[bytes]) -> str:
    if content is None:
        return ""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        text = ""
    if change.secret or (content and not text):
        return f"(content with sha256 {digest(content)[:16]})\n"
    return text
