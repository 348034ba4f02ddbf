# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lifecycle of a subject: what the installer brings to a state on a host, and takes back.

A subject reads its part of the host, plans texts, and knows the service that runs on them. `converge` alone has the journal, the
transaction, check mode and the diff.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Callable, Collection, Dict, List, Optional, Sequence, Tuple

from .journal import FOLDER, Entry
from .subjects import is_known
from .transaction import Service, Transaction, nothing
from .undo import Contents, Rejected, Undone, undone

NOT_RECORDED = "nothing of ours is recorded on this host"


@dataclass
class Converged:
    """The changes that were made, or would be. why: what the running process lacked before; left: files that stay as they are, and why.

    The journal keeps its entries of those that are left.
    """

    changed: bool = False
    files: List[str] = field(default_factory=list)
    notes: List[str] = field(default_factory=list)
    warnings: List[str] = field(default_factory=list)
    diff: List[Dict[str, str]] = field(default_factory=list)
    why: str = ""
    left: Dict[str, str] = field(default_factory=dict)

    def add(self, other: "Converged") -> None:
        """The result of another subject as well."""
        self.changed = self.changed or other.changed
        for mine, theirs in ((self.files, other.files), (self.notes, other.notes), (self.warnings, other.warnings)):
            mine += theirs
        self.diff += other.diff
        self.left.update(other.left)
        self.why = "; ".join(why for why in (self.why, other.why) if why)


class Subject(ABC):
    """One subject on one host. Every method raises Rejected where nothing may be changed. `owner`: of its entries in the journal."""

    owner: str
    root = "/"
    #: Of its files while it is present; None: as they are, or the usual one.
    mode: Optional[int] = None
    #: The paths of those that only root may read and whose content no diff shows.
    secrets: Collection[str] = ()
    #: The paths, once `present` has planned, that it wants no more: they go as uninstall takes them out.
    dropped: Collection[str] = ()
    #: Whether a run was killed before its change was verified or restored.
    unfinished: bool

    def __init__(self) -> None:
        self.notes: List[str] = []
        self.warnings: List[str] = []

    def look(self, entries: Sequence[Entry]) -> None:
        """Read what the plan needs. entries: what the journal has of this subject."""
        return

    @abstractmethod
    def present(self) -> Contents:
        """The contents that its files shall have; only those that it has something to say about."""

    def absent(self, entries: Sequence[Entry]) -> Undone:
        """The files of these entries without our part. As it is, for a subject that has no part in files of others."""
        return undone(entries, root=self.root)

    def service(self, paths: Sequence[str]) -> Optional[Service]:
        """The service that runs on the files, None for nothing. paths: of all files of ours, before and after."""
        return None

    def check(self, changes: Sequence[str], due: bool) -> str:
        """The last word before anything is changed: what the running process lacks, "" for nothing to tell. changes: the paths."""
        return ""

    def elsewhere(self) -> Dict[str, Tuple[bytes, bytes]]:
        """Names for the journal of what else changes, each with its state before and after: "service:NAME" and the like."""
        return {}

    def shown(self, text: str) -> str:
        """A text as it may be shown."""
        return text

    def tidy(self) -> None:
        """Remove what we may have made besides files, after they are gone."""
        return


def converge(subject: Subject, absent: bool, check: bool, point: Callable[[str], None] = nothing) -> Converged:
    """Do it, or with `check` say what would be done. On Rejected nothing was changed; on TransactionError it was restored."""
    if not is_known(subject.owner):
        raise Rejected(f"found the subject {subject.owner}, which has no row in OWNERS of {is_known.__module__}; expected one: add it")
    transaction = Transaction(subject.owner, subject.root, point)
    entries = transaction.entries()
    if absent and not entries and not transaction.unfinished:
        return Converged(notes=[NOT_RECORDED])
    subject.unfinished = transaction.unfinished
    subject.look(entries)
    wanted: Contents = {} if absent else subject.present()
    leaving = entries if absent else [entry for entry in entries if entry.path in subject.dropped]
    back = subject.absent([entry for entry in leaving if entry.is_file]) if absent or leaving else Undone({}, [], {})
    transaction.restore(back.files, entries)
    for path, content in wanted.items():
        secret = path in subject.secrets
        if content is None:
            transaction.remove(path, secret)
        else:
            transaction.write(path, content.encode() if isinstance(content, str) else content, 0o600 if secret else subject.mode, secret)
    changes = [change.path for change in transaction.changes]
    if transaction.forgotten:
        subject.warnings.append(
            f"the journal of this host, /{FOLDER}, had no entry of {', '.join(transaction.forgotten)}, which are ours; expected one of "
            "each: it is noted again, and uninstall.yml removes them"
        )
    service = subject.service([*wanted, *(entry.path for entry in entries)])
    due = bool(changes or transaction.forgotten) or transaction.unfinished or (service is not None and service.due())
    why = subject.check(changes, due)
    diff = [dict(change, before=subject.shown(change["before"]), after=subject.shown(change["after"])) for change in transaction.diff()]
    done = back.over(leaving)
    if not check:
        if due:
            for name, (was, becomes) in subject.elsewhere().items():
                transaction.note(name, was, becomes)
            transaction.apply(service)
        for entry in done:
            transaction.journal.forget(entry.path)
        if absent:
            subject.tidy()
    return Converged(due or bool(done), changes, [*subject.notes, *back.messages], subject.warnings, diff, why, back.left)
