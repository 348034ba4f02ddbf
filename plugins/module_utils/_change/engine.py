# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lifecycle of a subject: what the installer brings to a state on a host, and takes back.

A subject reads its part of the host, and makes a plan from that. Each step is given the values of the steps before it: the facts that were
found, then the plan. `converge` alone has the journal, the transaction, check mode and the diff.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from typing import Callable, Collection, Dict, Generic, List, Mapping, NamedTuple, Optional, Sequence, Tuple, TypeVar

from .._formats.answers import DiffPart
from .journal import FOLDER, Entry
from .subjects import is_known
from .transaction import FollowUp, Service, Transaction, nothing
from .undo import Contents, Rejected, Undone, nothing_undone, undone

NOT_RECORDED = "nothing of ours is recorded on this host"
Found = TypeVar("Found")


@dataclass
class Converged:
    """The changes that were made, or would be. why: what the running process lacked before; left: files that stay as they are, and why.

    The journal keeps its entries of those that are left.
    """

    changed: bool = False
    files: List[str] = field(default_factory=list)
    notes: List[str] = field(default_factory=list)
    warnings: List[str] = field(default_factory=list)
    diff: List[DiffPart] = field(default_factory=list)
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


class Recorded(NamedTuple):
    """The journal's part of a subject. unfinished: whether a run was killed before its change was verified or restored."""

    entries: Sequence[Entry]
    unfinished: bool


class LastWord(NamedTuple):
    """The word of a subject before its plan is carried out. why: what the running process lacks, "" for nothing to tell.

    follow_up: a command that follows this change, for a subject without a service.
    """

    why: str = ""
    warnings: Sequence[str] = ()
    follow_up: Optional[FollowUp] = None


@dataclass(frozen=True)
class ChangePlan:
    """The way of a subject to a state.

    files: contents by path, None for no file; only those that the subject has something to say about. dropped: paths that it wants no more,
    which go as uninstall takes them out. back: files of the journal that are taken back. left: files that stay as they are, and why.
    service: of the programs that run on the files. elsewhere: names for the journal of what else changes, each with its state before and
    after: "service:NAME" and the like. check: is called with the paths that change, and whether anything is due, before anything is
    changed. shown: a text as it may be shown. tidy: removes what we may have made besides files, after they are gone.
    """

    files: Contents = field(default_factory=dict)
    notes: Sequence[str] = ()
    dropped: Collection[str] = ()
    back: Undone = field(default_factory=nothing_undone)
    left: Mapping[str, str] = field(default_factory=dict)
    service: Optional[Service] = None
    elsewhere: Mapping[str, Tuple[bytes, bytes]] = field(default_factory=dict)
    check: Callable[[Sequence[str], bool], LastWord] = lambda changes, due: LastWord()
    shown: Callable[[str], str] = str
    tidy: Callable[[], None] = lambda: None


class Subject(ABC, Generic[Found]):
    """One subject on one host. Every method, and a plan's check, raises Rejected where nothing may be changed.

    owner: of its entries in the journal. mode: of its files while it is present; None: as they are, or the usual one. secrets: the paths of
    those that only root may read and whose content no diff shows.
    """

    owner: str
    root = "/"
    mode: Optional[int] = None
    secrets: Collection[str] = ()

    @abstractmethod
    def look(self, recorded: Recorded) -> Found:
        """The facts of the host that a plan needs."""

    @abstractmethod
    def present(self, found: Found) -> ChangePlan:
        """The plan to bring it."""

    def absent(self, found: Found, entries: Sequence[Entry]) -> ChangePlan:
        """The plan to take these files back. As it is, for a subject that has no part in files of others."""
        return ChangePlan(back=undone(entries, root=self.root))


class Prepared(Generic[Found]):
    """The plan of a subject on a host on which nothing was changed for it yet. recorded: before that."""

    def __init__(self, subject: Subject[Found], transaction: Transaction, recorded: Recorded, absent: bool) -> None:
        self._subject, self._transaction, self._recorded, self._absent = subject, transaction, recorded, absent
        self.found = subject.look(recorded)
        files = [entry for entry in recorded.entries if entry.is_file]
        self.plan = subject.absent(self.found, files) if absent else subject.present(self.found)

    def apply(self, check: bool) -> Converged:
        """Carry it out, or with `check` say what would be done. On Rejected nothing was changed; on TransactionError it was restored."""
        subject, transaction, plan, entries = self._subject, self._transaction, self.plan, self._recorded.entries
        leaving = entries if self._absent else [entry for entry in entries if entry.path in plan.dropped]
        back = subject.absent(self.found, [entry for entry in leaving if entry.is_file]).back if leaving and not self._absent else plan.back
        transaction.restore(back.files, entries)
        for path, content in plan.files.items():
            secret = path in subject.secrets
            if content is None:
                transaction.remove(path, secret)
            else:
                text = content.encode() if isinstance(content, str) else content
                transaction.write(path, text, 0o600 if secret else subject.mode, secret)
        changes = [change.path for change in transaction.changes]
        warnings = _forgotten(transaction.forgotten)
        due = bool(changes or warnings) or transaction.unfinished or (plan.service is not None and plan.service.due())
        word = plan.check(changes, due)
        diff: List[DiffPart] = [
            {**change, "before": plan.shown(change["before"]), "after": plan.shown(change["after"])} for change in transaction.diff()
        ]
        done = back.over(leaving)
        if not check:
            if due:
                for name, (was, becomes) in plan.elsewhere.items():
                    transaction.note(name, was, becomes)
                transaction.apply(word.follow_up or plan.service)
            for entry in done:
                transaction.journal.forget(entry.path)
            if self._absent:
                plan.tidy()
        notes = [*plan.notes, *back.messages]
        return Converged(due or bool(done), changes, notes, [*warnings, *word.warnings], diff, word.why, {**plan.left, **back.left})


def prepare(subject: Subject[Found], absent: bool, point: Callable[[str], None] = nothing) -> Optional[Prepared[Found]]:
    """The plan of a subject, None where it is to go and the journal has nothing of it. It raises Rejected where nothing may be changed."""
    if not is_known(subject.owner):
        raise Rejected(f"found the subject {subject.owner}, which has no row in OWNERS of {is_known.__module__}; expected one: add it")
    transaction = Transaction(subject.owner, subject.root, point)
    recorded = Recorded(transaction.entries(), transaction.unfinished)
    return Prepared(subject, transaction, recorded, absent) if recorded.entries or recorded.unfinished or not absent else None


def converge(subject: Subject[Found], absent: bool, check: bool, point: Callable[[str], None] = nothing) -> Converged:
    """Do it, or with `check` say what would be done. On Rejected nothing was changed; on TransactionError it was restored."""
    prepared = prepare(subject, absent, point)
    return Converged(notes=[NOT_RECORDED]) if prepared is None else prepared.apply(check)


def _forgotten(paths: Sequence[str]) -> List[str]:
    if not paths:
        return []
    return [
        f"the journal of this host, /{FOLDER}, had no entry of {', '.join(paths)}, which are ours; expected one of each: it is noted "
        "again, and uninstall.yml removes them"
    ]
