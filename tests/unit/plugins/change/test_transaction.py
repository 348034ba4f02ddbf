# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Transactions on files: all or nothing, whatever is killed when, and back to the byte."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.journal import FOLDER, Journal
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.transaction import Service, Transaction, TransactionError
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.files import FileState, digest, read_state
from hypothesis import given, settings
from hypothesis import strategies as st

from unit.fakes.plugins.host.attributes import LABEL, Attributes
from unit.fakes.plugins.kills import at, killed, killed_around

FIRST, SECOND = "/etc/kubernetes/manifests/scheduler.yaml", "/etc/gpushare/scheduler.yaml"
THIRD = "/etc/gpushare.token"


class Daemon(Service):
    """A daemon that has read FIRST at its last start; `breaks` says with which content it is not healthy."""

    def __init__(self, root: Path, breaks: bytes = b"\0") -> None:
        self.root, self.breaks, self.starts, self.asked = root, breaks, 0, 0
        self.running = self.on_disk()
        self.told: list[bytes | None] = []

    def restored(self) -> None:
        self.told.append(self.on_disk())

    def on_disk(self) -> bytes | None:
        state = read_state(str(self.root / FIRST.lstrip("/")))
        return state.content if state else None

    def due(self) -> bool:
        return self.running != self.on_disk()

    def restart(self) -> None:
        self.starts += 1
        self.running = self.on_disk()

    def problem(self) -> str | None:
        self.asked += 1
        return "the daemon says: no" if self.running == self.breaks else None


class Stub(Service):
    """A service that does as it is told."""

    def __init__(self, due: Callable[[], bool], restart: Callable[[], None], problem: str | None = None) -> None:
        self._due, self._restart, self._problem = due, restart, problem

    def due(self) -> bool:
        return self._due()

    def restart(self) -> None:
        self._restart()

    def problem(self) -> str | None:
        return self._problem


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A host with FIRST (mode 0600) and without SECOND."""
    first = tmp_path / FIRST.lstrip("/")
    first.parent.mkdir(parents=True)
    first.write_bytes(b"old")
    first.chmod(0o600)
    return tmp_path


def plan(root: Path, point: Callable[[str], None] = lambda _: None, first: bytes = b"new") -> Transaction:
    transaction = Transaction("scheduler", str(root), point)
    transaction.write(SECOND, b"config", mode=0o640)
    transaction.write(FIRST, first)
    return transaction


def content(root: Path, path: str) -> bytes | None:
    state = read_state(str(root / path.lstrip("/")))
    return state.content if state else None


def tree(root: Path) -> dict[str, tuple[int, bytes]]:
    files = (path for path in root.rglob("*") if path.is_file())
    return {str(path.relative_to(root)): (path.stat().st_mode, path.read_bytes()) for path in files}


def test_a_second_run_changes_nothing_at_all(host: Path) -> None:
    daemon = Daemon(host)
    plan(host).apply(daemon)
    before = tree(host)
    plan(host).apply(daemon)
    assert daemon.starts == 1
    assert plan(host).diff() == []
    assert tree(host) == before


def test_a_lost_journal_is_said_and_written_again(host: Path) -> None:
    ours = b"# Copyright: gpushare.kubernetes contributors\n"

    def planned() -> Transaction:
        transaction = Transaction("device_plugin", str(host))
        transaction.write("/etc/gpushare/gpushare-pki.env", ours)
        transaction.write("/etc/gpushare/gpushare-extender.env", ours)
        transaction.write("/etc/theirs", b"as it is")
        return transaction

    (host / "etc/gpushare").mkdir(parents=True, exist_ok=True)
    (host / "etc/gpushare/gpushare-pki.env").write_bytes(ours)
    (host / "etc/theirs").write_bytes(b"as it is")
    transaction = planned()
    assert [change.path for change in transaction.changes] == ["/etc/gpushare/gpushare-extender.env"]
    assert transaction.forgotten == ["/etc/gpushare/gpushare-pki.env"]
    transaction.apply()
    entry = Journal(str(host)).entry("/etc/gpushare/gpushare-pki.env")
    assert entry is not None
    assert (entry.original, entry.owner) == (None, "device_plugin")
    assert planned().forgotten == []


def test_files_get_what_they_were_with_the_mode_that_the_journal_has(host: Path) -> None:
    for owner, path in (("scheduler", FIRST), ("scheduler", SECOND), ("other", "/etc/other")):
        transaction = Transaction(owner, str(host))
        transaction.write(path, b"new", 0o644)
        transaction.apply()
    back = Transaction("scheduler", str(host))
    assert [entry.path for entry in back.entries()] == [SECOND, FIRST]
    back.restore({FIRST: b"old", SECOND: None}, back.entries())
    back.apply()
    first = host / FIRST.lstrip("/")
    assert (first.read_bytes(), first.stat().st_mode & 0o777, content(host, SECOND)) == (b"old", 0o600, None)


def test_planning_writes_nothing_and_shows_what_would_change(host: Path) -> None:
    before = tree(host)
    shown = plan(host).diff()
    assert tree(host) == before
    assert [(d["before_header"], d["before"], d["after"]) for d in shown] == [(SECOND, "", "config"), (FIRST, "old", "new")]


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        (b"", b"new", ("", "new")),
        (b"old", b"", ("old", "")),
        (b"old", None, ("old", "")),
        (b"old", b"\xff", ("old", f"(content with sha256 {digest(bytes([255]))[:16]})\n")),
    ],
)
def test_what_is_shown_of_a_change(host: Path, before: bytes, after: bytes | None, shown: tuple[str, str]) -> None:
    (host / FIRST.lstrip("/")).write_bytes(before)
    transaction = Transaction("runtime", str(host))
    transaction.write(FIRST, after) if after is not None else transaction.remove(FIRST)
    assert transaction.diff() == [{"before_header": FIRST, "after_header": FIRST, "before": shown[0], "after": shown[1]}]


def test_secrets_are_not_shown(host: Path) -> None:
    transaction = Transaction("runtime", str(host))
    transaction.write("/etc/gpushare/kubeconfig", b"token: very-secret", mode=0o600, secret=True)
    transaction.write(FIRST, b"", secret=True)
    transaction.remove(FIRST, secret=True)
    made, emptied, removed = transaction.diff()
    was = f"(content with sha256 {digest(b'old')[:16]})\n"
    assert (made["before"], made["after"]) == ("", f"(content with sha256 {digest(b'token: very-secret')[:16]})\n")
    assert (emptied["before"], emptied["after"]) == (was, f"(content with sha256 {digest(b'')[:16]})\n")
    assert (removed["before"], removed["after"]) == (was, "")


def test_nothing_is_ever_staged_in_a_folder_that_others_read_whole(host: Path) -> None:
    seen = []
    plan(host, lambda _: seen.extend(os.listdir(host / "etc/kubernetes/manifests"))).apply()
    assert set(seen) == {"scheduler.yaml"}


def test_bad_health_puts_everything_back_and_says_why(host: Path) -> None:
    before, daemon = tree(host), Daemon(host, breaks=b"new")
    with pytest.raises(TransactionError, match="the daemon says: no; what was there is restored") as error:
        plan(host).apply(daemon)
    assert error.value.restored
    assert tree(host) == before
    assert (daemon.running, daemon.starts) == (b"old", 2)
    # Before it is asked again whether it is healthy.
    assert daemon.told == [b"old"]


def test_a_failing_restart_puts_everything_back(host: Path) -> None:
    before, attempts = tree(host), []

    def fail() -> None:
        attempts.append(content(host, FIRST))
        raise OSError("systemctl is not there")

    with pytest.raises(TransactionError) as error:
        plan(host).apply(Stub(lambda: content(host, FIRST) == b"new", fail))
    assert (str(error.value), error.value.restored) == ("OSError: systemctl is not there; what was there is restored", True)
    assert tree(host) == before
    # With nothing to put back there is nothing to try again.
    with pytest.raises(TransactionError, match=r"^OSError: systemctl is not there; what was there is restored$"):
        Transaction("scheduler", str(host)).apply(Stub(lambda: True, fail))
    assert attempts == [b"new", b"old"]


def test_when_even_putting_back_does_not_help_both_reasons_are_told(host: Path) -> None:
    before, daemon = tree(host), Daemon(host)
    with pytest.raises(TransactionError) as error:
        plan(host).apply(Stub(daemon.due, daemon.restart, "broken for good"))
    assert (str(error.value), error.value.restored) == ("broken for good; what was there is restored, but: broken for good", True)
    assert tree(host) == before
    assert daemon.running == b"old"


def test_when_putting_back_fails_the_originals_are_named_and_the_next_run_puts_them_back(host: Path) -> None:
    before, first = tree(host), host / FIRST.lstrip("/")

    def fail() -> None:
        first.unlink()
        first.mkdir()
        raise OSError("no room")

    transaction = plan(host)
    with pytest.raises(TransactionError) as error:
        transaction.apply(Stub(lambda: True, fail))
    assert str(error.value) == (
        "OSError: no room; restoring what was there failed as well: OSError: [Errno 22] expected a regular file, found something "
        f"else: '{first}'; the originals are in {host / FOLDER}"
    )
    assert not error.value.restored
    assert transaction.unfinished
    first.rmdir()
    first.write_bytes(b"new")
    with pytest.raises(TransactionError, match="what was there before it is restored"):
        plan(host).apply(Daemon(host, breaks=b"new"))
    assert tree(host) == before


def test_a_disk_that_is_full_is_found_before_the_first_file_has_changed(host: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From the second file on nothing can be written any more, the old first file neither."""
    before, fsync = tree(host), os.fsync
    full: list[str] = []

    def write_through(descriptor: int) -> None:
        if stat.S_ISREG(os.fstat(descriptor).st_mode):
            if os.pread(descriptor_of(descriptor), 6, 0) == b"second":
                full.append("now")
            if full:
                raise OSError(errno.ENOSPC, "No space left on device")
        fsync(descriptor)

    def descriptor_of(descriptor: int) -> int:
        return os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY)

    transaction = Transaction("tests", str(host))
    transaction.write(FIRST, b"new")
    transaction.write(SECOND, b"second")
    monkeypatch.setattr(os, "fsync", write_through)
    with pytest.raises(TransactionError, match="No space left on device; what was there is restored") as error:
        transaction.apply(Daemon(host))
    assert error.value.restored
    assert full == ["now"]
    assert tree(host) == before
    assert not transaction.unfinished


def test_a_path_that_is_planned_twice_ends_as_it_was_planned_last(host: Path) -> None:
    transaction = Transaction("tests", str(host))
    transaction.write(FIRST, b"first")
    transaction.write(FIRST, b"last")
    transaction.apply()
    assert content(host, FIRST) == b"last"


def test_a_link_that_leads_nowhere_is_rejected_and_a_file_of_ours_comes_back_through_one(host: Path) -> None:
    """Its target would be made, and an undo would take the link away and leave the target."""
    link, target = host / "etc/link", host / "etc/elsewhere/file"
    link.parent.mkdir(exist_ok=True)
    link.symlink_to(target)
    before = tree(host)
    with pytest.raises(OSError, match="found a link to one that is not there; remove the link, or restore its target: '/etc/link'"):
        Transaction("tests", str(host)).write("/etc/link", b"new")
    assert tree(host) == before
    target.parent.mkdir()
    target.write_bytes(b"theirs")
    transaction = Transaction("tests", str(host))
    transaction.write("/etc/link", b"new")
    transaction.apply()
    target.unlink()
    again = Transaction("tests", str(host))
    again.write("/etc/link", b"theirs")
    again.apply()
    assert link.is_symlink()
    assert target.read_bytes() == b"theirs"


def test_without_a_service_a_change_that_fails_is_put_back_as_well(host: Path) -> None:
    before, inode = tree(host), (host / FIRST.lstrip("/")).stat().st_ino

    def stop(point: str) -> None:
        if point == f"before {FIRST}":
            raise OSError("no room")

    with pytest.raises(TransactionError, match=r"^OSError: no room; what was there is restored$"):
        plan(host, stop).apply()
    assert tree(host) == before
    # What the change has not reached yet is not written again.
    assert (host / FIRST.lstrip("/")).stat().st_ino == inode


@pytest.mark.parametrize(("planned", "due", "asked"), [(False, False, 0), (False, True, 1), (True, False, 1), (True, True, 1)])
def test_health_is_asked_once_and_only_after_something_was_done(host: Path, planned: bool, due: bool, asked: int) -> None:
    daemon = Daemon(host)
    transaction = Transaction("scheduler", str(host))
    if planned:
        transaction.write(SECOND, b"config")
    daemon.running = b"former" if due else b"old"
    before = tree(host)
    transaction.apply(daemon)
    assert (daemon.asked, daemon.starts) == (asked, due)
    if not planned:
        assert tree(host) == before
        assert not (host / "var").exists()


def test_a_mode_alone_is_a_change_and_a_new_file_is_readable_by_all_unless_said(host: Path) -> None:
    transaction = Transaction("scheduler", str(host))
    transaction.write(FIRST, b"old")
    transaction.write(FIRST, b"old", 0o600)
    transaction.note("value:x", b"1", b"1")
    assert transaction.changes == []
    transaction.write(FIRST, b"old", 0o400)
    transaction.write("/etc/new", b"")
    transaction.apply()
    assert [oct((host / path).stat().st_mode & 0o7777) for path in (FIRST.lstrip("/"), "etc/new")] == ["0o400", "0o644"]
    assert content(host, FIRST) == b"old"


def four(root: Path, point: Callable[[str], None] = lambda _: None) -> Transaction:
    """A file that is made, one that goes, a value, and one that changes."""
    transaction = Transaction("scheduler", str(root), point)
    transaction.write(SECOND, b"config", mode=0o640)
    transaction.remove(THIRD)
    transaction.note("value:x", b"1", b"2")
    transaction.write(FIRST, b"new")
    return transaction


def states(root: Path) -> dict[str, FileState | None]:
    return {str(path.relative_to(root)): read_state(str(path)) for path in root.rglob("*") if path.is_file()}


class Killed(BaseException):
    """As a kill: nothing of the run comes after it."""


def test_stopped_anywhere_every_file_ends_with_the_mode_the_owner_and_the_label_that_it_shall_have(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attributes = Attributes(monkeypatch)

    def fresh(name: str) -> Path:
        for number, (path, mode) in enumerate(((FIRST, 0o600), (THIRD, 0o444))):
            file = tmp_path / name / path.lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_bytes(b"old")
            file.chmod(mode)
            attributes.give(file, 1001 + number, 2001, LABEL)
        return tmp_path / name

    host = fresh("undisturbed")
    before, passed = states(host), []
    four(host, passed.append).apply(Daemon(host))
    wanted = states(host)
    entry = Journal(str(host)).entry("value:x")
    assert entry is not None
    assert entry.original == FileState(b"1", 0, 0, 0, None)
    files = {name.lstrip("/"): wanted[name.lstrip("/")] for name in (FIRST, SECOND)}
    assert files == {
        FIRST.lstrip("/"): FileState(b"new", 0o600, 1001, 2001, LABEL),
        SECOND.lstrip("/"): FileState(b"config", 0o640, *attributes.ours, None),
    }
    assert wanted.keys() - files.keys() == {f"{FOLDER}/{digest(name.encode())[:24]}.json" for name in (FIRST, SECOND, THIRD, "value:x")}
    assert {wanted[name][1:] for name in wanted.keys() - files.keys()} == {(0o600, *attributes.ours, None)}  # type: ignore[index]
    assert len(passed) == 13
    for victim in passed:
        for breaks in (b"\0", b"new"):
            host = fresh(f"{victim}-{breaks!r}".replace("/", "_"))

            def stop(point: str, victim: str = victim) -> None:
                if point == victim:
                    raise Killed

            with pytest.raises(Killed):
                four(host, stop).apply(Daemon(host))
            if victim == "done":
                assert states(host) == wanted
                continue
            again, daemon = four(host), Daemon(host, breaks)
            daemon.running = b"old"
            if breaks == b"\0":
                again.apply(daemon)
                assert (states(host), daemon.running, daemon.starts) == (wanted, b"new", 1), victim
            else:
                with pytest.raises(TransactionError):
                    again.apply(daemon)
                assert (states(host), daemon.running) == (before, b"old"), victim


def test_what_a_killed_run_left_unproven_is_proven_even_if_nothing_else_is_to_be_done(host: Path) -> None:
    def stop(point: str) -> None:
        if point == f"written {FIRST}":
            raise Killed

    with pytest.raises(Killed):
        plan(host, stop).apply()
    again, daemon = plan(host), Daemon(host)
    assert (again.changes, again.unfinished) == ([], True)
    again.apply(daemon)
    assert (daemon.asked, daemon.starts, plan(host).unfinished) == (1, 0, False)


def test_a_bad_change_after_a_good_one_goes_back_to_the_good_one_and_undo_still_knows_the_original(host: Path) -> None:
    plan(host).apply()
    with pytest.raises(TransactionError):
        plan(host, first=b"bad").apply(Daemon(host, breaks=b"bad"))
    assert content(host, FIRST) == b"new"
    entry = Journal(str(host)).entry(FIRST)
    assert entry is not None
    assert entry.original is not None
    assert (entry.original.content, entry.original.mode, entry.untouched(b"new")) == (b"old", 0o600, True)


def test_killed_around_any_rename_the_next_run_finishes_and_nothing_is_left(host: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    pristine = tmp_path_factory.mktemp("pristine") / "host"
    shutil.copytree(host, pristine)
    plan(host).apply(Daemon(host))
    wanted = tree(host)
    moment = 0
    while True:
        moment += 1
        shutil.rmtree(host)
        shutil.copytree(pristine, host)
        if not killed_around(lambda: plan(host).apply(Daemon(host)), moment, ("rename", "unlink")):
            break
        assert content(host, FIRST) in (b"old", b"new")
        assert content(host, SECOND) in (None, b"config")
        plan(host).apply(Daemon(host))
        assert tree(host) == wanted, moment
    assert moment == 13  # before and after each of: two files, two entries, the note of the beginning, its end


@pytest.mark.parametrize("after", ["before", "noted", "written"])
def test_what_a_killed_run_began_is_put_back_by_the_next_if_it_proves_bad(host: Path, after: str) -> None:
    plan(host, first=b"good").apply()
    before = tree(host)
    assert killed(plan(host, at(f"{after} {FIRST}"), b"bad").apply)
    again = plan(host, first=b"bad")
    assert again.unfinished
    assert (again.changes == []) == (after == "written")
    daemon = Daemon(host, breaks=b"bad")
    with pytest.raises(
        TransactionError, match="no; the files were those of an earlier run that did not end; what was there before it is restored"
    ):
        again.apply(daemon)
    assert tree(host) == before
    assert daemon.running == b"good"
    # What ran when this run began may be bad as well.
    assert daemon.told == []
    assert not plan(host).unfinished


def test_an_edit_after_a_killed_run_is_not_taken_away_by_the_next(host: Path) -> None:
    assert killed(partial(plan(host, at(f"written {FIRST}")).apply, Daemon(host)))
    assert content(host, FIRST) == b"new"
    (host / FIRST.lstrip("/")).write_bytes(b"an administrator's")
    with pytest.raises(TransactionError):
        plan(host, first=b"bad").apply(Daemon(host, breaks=b"bad"))
    assert content(host, FIRST) == b"an administrator's"
    assert content(host, SECOND) is None


def test_what_is_no_file_is_noted_and_unnoted_with_the_files(host: Path) -> None:
    transaction = plan(host)
    transaction.note("value:nodes", None, b"100")
    assert len(transaction.diff()) == 2
    transaction.apply()
    entry = Journal(str(host)).entry("value:nodes")
    assert entry is not None
    assert (entry.is_file, entry.original, entry.untouched(b"100")) == (False, None, True)
    before = tree(host)
    bad = plan(host, first=b"bad")
    bad.note("value:nodes", b"100", b"0")
    with pytest.raises(TransactionError):
        bad.apply(Daemon(host, breaks=b"bad"))
    assert tree(host) == before


def test_a_file_that_others_changed_between_our_changes_is_not_ours_to_put_back(host: Path) -> None:
    plan(host).apply()
    (host / FIRST.lstrip("/")).write_bytes(b"an administrator's")
    plan(host, first=b"newer").apply()
    entry = Journal(str(host)).entry(FIRST)
    assert entry is not None
    assert entry.others
    assert not entry.untouched(b"newer")


def test_a_broken_journal_is_named_and_nothing_is_changed(host: Path) -> None:
    plan(host).apply()
    for name in (host / FOLDER).glob("*.json"):
        name.write_text("{")
    with pytest.raises(TransactionError, match="cannot be used"):
        plan(host, first=b"newer").apply()
    assert content(host, FIRST) == b"new"


STEP = st.tuples(st.sampled_from(["ours", "others"]), st.sampled_from([None, b"a", b"b", b"c"]))


@settings(deadline=None, max_examples=60)
@given(before=st.sampled_from([None, b"a", b"original"]), steps=st.lists(STEP, max_size=6))
def test_only_bytes_that_nobody_else_touched_count_as_ours(
    tmp_path_factory: pytest.TempPathFactory, before: bytes | None, steps: list[tuple[str, bytes | None]]
) -> None:
    root = tmp_path_factory.mktemp("host")
    path = root / "etc/file"
    path.parent.mkdir()
    if before is not None:
        path.write_bytes(before)
    now, original, ours, dirty = before, before, False, False
    for who, what in steps:
        if who == "others":
            path.unlink(missing_ok=True)
            if what is not None:
                path.write_bytes(what)
            dirty = dirty or (ours and what != now)
            now = what
            continue
        transaction = Transaction("x", str(root))
        transaction.write("/etc/file", what) if what is not None else transaction.remove("/etc/file")
        if not transaction.changes:
            continue
        if not ours or now == original:
            original, ours, dirty = now if not ours else original, True, False
        transaction.apply()
        now = what
    entry = Journal(str(root)).entry("/etc/file")
    assert (entry is not None) == ours
    if entry is not None and not dirty:
        assert entry.untouched(now)
        assert (entry.original.content if entry.original else None) == original
