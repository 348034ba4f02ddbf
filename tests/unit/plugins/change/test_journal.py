# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The journal: what it says, that a later release can read it, and when it no longer calls a file ours."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.journal import (
    FOLDER,
    Entry,
    Journal,
    JournalError,
    Pending,
    Saved,
    entry_of,
    fields_of,
)
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.files import FileState, digest
from hypothesis import given
from hypothesis import strategies as st

from unit.fakes.plugins.host.attributes import LABEL

PATH = "/etc/file"
OLD = FileState(b"old\xff", 0o640, 7, 8, LABEL)
STATES = st.none() | st.builds(
    FileState, st.binary(max_size=3), st.integers(0, 0o7777), st.integers(0, 9), st.integers(0, 9), st.none() | st.binary(max_size=3)
)
ENTRIES = st.builds(
    Entry, st.text(max_size=3), st.text(max_size=3), STATES, st.tuples(st.text(max_size=2), st.text(max_size=2)), st.booleans()
)

# As every release since the first has written it; uninstall of any later one has to undo it.
WRITTEN = {
    "v": 1,
    "path": PATH,
    "owner": "scheduler",
    "original": "b2xk/w==",
    "mode": 0o640,
    "uid": 7,
    "gid": 8,
    "label": "c3lzdGVtX3U6b2JqZWN0X3I6ZXRjX3Q6czA=",
    "left": [digest(b"old\xff"), digest(b"new")],
    "others": False,
}
MADE = {"v": 1, "path": "value:x", "owner": "scheduler", "original": None, "left": ["", digest(b"1")], "others": False}


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(str(tmp_path))


def files(journal: Journal) -> list[Path]:
    return sorted(Path(journal.folder).iterdir())


def test_the_form_on_the_disk_is_kept(journal: Journal) -> None:
    entry = journal.record(PATH, "scheduler", OLD, b"new")
    made = journal.record("value:x", "scheduler", None, b"1")
    assert {path.name: path.read_text() for path in files(journal)} == {
        f"{digest(str(one['path']).encode())[:24]}.json": json.dumps(one, sort_keys=True, indent=1) + "\n" for one in (WRITTEN, MADE)
    }
    assert (entry_of(dict(WRITTEN)), entry_of(dict(MADE))) == (entry, made)
    assert (entry.is_file, made.is_file) == (True, False)


@given(ENTRIES)
def test_what_is_written_is_what_is_read(entry: Entry) -> None:
    assert entry_of(json.loads(json.dumps(fields_of(entry)))) == entry


def test_nobody_else_reads_it(journal: Journal) -> None:
    journal.record(PATH, "scheduler", OLD, b"new")
    Pending(journal, "scheduler").save([])
    assert [oct(path.stat().st_mode & 0o7777) for path in files(journal)] == ["0o600", "0o600"]
    assert oct(Path(journal.folder).stat().st_mode & 0o7777) == "0o700"
    other = Journal(journal.root + "/other")
    Pending(other, "scheduler").save([])
    assert oct(Path(other.folder).stat().st_mode & 0o7777) == "0o700"


def test_entries_come_by_path_and_what_else_lies_there_is_none(journal: Journal) -> None:
    assert (journal.entries(), journal.entry(PATH)) == ([], None)
    paths = [f"/etc/{name}" for name in "cadbfe"]
    for path in paths:
        journal.record(path, "scheduler", None, b"x")
    Pending(journal, "scheduler").save([])
    assert [entry.path for entry in journal.entries()] == sorted(paths)
    journal.forget("/etc/d")
    assert [entry.path[-1] for entry in journal.entries()] == list("abcef")
    assert journal.entry("/etc/d") is None
    # One that goes while they are read.
    (Path(journal.folder) / "x.json").symlink_to("nowhere")
    with pytest.raises(JournalError, match=r"x\.json cannot be used"):
        journal.entries()


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ({"v": 2}, "ValueError: version 2, expected 1"),
        ({"owner": None}, "KeyError: 'owner'"),
        ({"left": ["one"]}, "ValueError: not enough values"),
        ({"original": "b2xk/w==!"}, "Error: "),
        ({"original": 1}, "TypeError: "),
    ],
)
def test_an_entry_that_cannot_be_read_is_named_with_what_to_do(journal: Journal, damage: dict[str, object], words: str) -> None:
    journal.record(PATH, "scheduler", OLD, b"new")
    (path,) = files(journal)
    damaged = {name: value for name, value in {**WRITTEN, **damage}.items() if value is not None}
    path.write_text(json.dumps(damaged))
    with pytest.raises(JournalError) as error:
        journal.entries()
    assert str(error.value).startswith(f"journal entry {path} cannot be used (")
    assert words in str(error.value)
    assert str(error.value).endswith("; move it away; what it describes can then no longer be undone by uninstall")


def test_the_first_owner_stays_and_a_change_of_others_is_never_forgotten(journal: Journal) -> None:
    """The rule, step by step: who turned what into what, and what the journal then says."""

    @dataclass
    class Step:
        owner: str
        before: bytes | None
        after: bytes | None
        said: tuple[str, bytes | None, bool]

    for step in [
        Step("first", b"old", b"1", ("first", b"old", False)),
        Step("second", b"1", b"2", ("first", b"old", False)),
        # The run before was killed between its note and its write: the file still is as it was then.
        Step("second", b"1", b"3", ("first", b"old", False)),
        Step("second", b"theirs", b"4", ("first", b"old", True)),
        Step("second", b"4", b"5", ("first", b"old", True)),
        # Somebody has restored what was there before us: from here on it is a change like the first.
        Step("third", b"old", b"6", ("third", b"old", False)),
        Step("third", b"6", None, ("third", b"old", False)),
        Step("third", None, b"7", ("third", b"old", False)),
    ]:
        before = None if step.before is None else FileState(step.before, 0o600, 1, 2, None)
        made = journal.record(PATH, step.owner, before, step.after)
        assert made == journal.entry(PATH)
        assert (made.owner, made.original and made.original.content, made.others) == step.said, step
        assert made.left == (digest(step.before), digest(step.after))
        for content in (step.before, step.after):
            assert made.untouched(content) != step.said[2]
        assert not made.untouched(b"something else")


def test_what_we_left_before_comes_back_in_place_of_what_others_wrote(journal: Journal) -> None:
    journal.record(PATH, "scheduler", OLD, b"ours")
    made = journal.record(PATH, "scheduler", FileState(b"theirs", 0o600, 1, 2, None), b"ours")
    assert made.untouched(b"ours")
    # Of a run that was killed before it wrote.
    assert not made.untouched(b"theirs")
    assert made.original == OLD


OURS = b"# SPDX-License-Identifier: Apache-2.0\n# Copyright: gpushare.kubernetes contributors\n[Unit]\n"


UNIT = "/etc/systemd/system/gpushare-device-plugin.service"


@pytest.mark.parametrize(
    ("path", "before", "original"),
    [
        (UNIT, OURS + b"edited", None),
        ("/etc/gpushare/gpushare-mps@.env", OURS, None),
        # Whatever stands in it: only units and settings of our daemons are nobody else's.
        ("/etc/containerd/config.toml", OURS, OURS),
        ("/etc/systemd/system/gpushare-boot.service", OURS, OURS),
        (UNIT, b"x" * 600 + OURS, b"x" * 600 + OURS),
        (UNIT, b"theirs", b"theirs"),
        (UNIT, b"a# Copyright: gpushare.kub", b"a# Copyright: gpushare.kub"),
    ],
)
def test_a_file_of_ours_is_never_what_was_there_before_us(journal: Journal, path: str, before: bytes, original: bytes | None) -> None:
    """A journal that was lost, and a run that repairs what somebody has edited since."""
    made = journal.record(path, "device_plugin", FileState(before, 0o644, 0, 0, None), OURS)
    assert (made.original and made.original.content) == original
    assert made.left == (digest(before), digest(OURS))


def test_restoring_says_what_was_said_and_writes_only_what_differs(journal: Journal) -> None:
    before = journal.record(PATH, "first", OLD, b"1")
    inode = files(journal)[0].stat().st_ino
    journal.restore(PATH, before)
    assert files(journal)[0].stat().st_ino == inode
    journal.record(PATH, "first", FileState(b"theirs", 0, 0, 0, None), b"2")
    journal.restore(PATH, before)
    assert journal.entry(PATH) == before
    journal.restore(PATH, None)
    assert files(journal) == []


# What is begun and not yet proven.


@pytest.fixture
def pending(journal: Journal) -> Pending:
    return Pending(journal, "scheduler")


def test_what_was_begun_is_read_as_it_was_written(journal: Journal, pending: Pending) -> None:
    assert (pending.exists, pending.load()) == (False, [])
    pending.clear()
    entry = journal.record("value:x", "scheduler", OLD, b"2")
    saved = [Saved("/gone", None, None), Saved("value:x", OLD, entry)]
    pending.save(saved)
    assert (pending.exists, pending.load()) == (True, saved)
    assert not Pending(journal, "another").exists
    (path,) = Path(journal.folder).glob("scheduler.pending")
    former = {
        "v": 1,
        "path": "value:x",
        "owner": "",
        "original": "b2xk/w==",
        "mode": 0o640,
        "uid": 7,
        "gid": 8,
        "left": ["", ""],
        "others": False,
    }
    former["label"] = WRITTEN["label"]
    gone = {"v": 1, "path": "/gone", "owner": "", "original": None, "left": ["", ""], "others": False}
    paths = [{"before": gone, "entry": None}, {"before": former, "entry": fields_of(entry)}]
    assert json.loads(path.read_text()) == {"v": 1, "paths": paths}
    assert path.read_text() == json.dumps(json.loads(path.read_text()), indent=1) + "\n"
    pending.clear()
    assert not pending.exists


@pytest.mark.parametrize(("damage", "words"), [({"v": 2}, "ValueError: version 2, expected 1"), ({"paths": [{}]}, "KeyError: 'before'")])
def test_a_beginning_that_cannot_be_read_is_named_with_what_to_do(
    journal: Journal, pending: Pending, damage: dict[str, object], words: str
) -> None:
    pending.save([])
    path = Path(journal.folder, "scheduler.pending")
    path.write_text(json.dumps({**json.loads(path.read_text()), **damage}))
    with pytest.raises(JournalError) as error:
        pending.load()
    advice = "move it away; a change that a killed run began can then no longer be undone"
    assert str(error.value) == f"{path} cannot be used ({words}); {advice}"


@pytest.mark.parametrize(("now", "is_ours"), [(b"before", True), (b"former", True), (b"new", True), (None, False), (b"theirs", False)])
def test_a_file_that_others_have_changed_since_is_taken_as_it_is(
    journal: Journal, pending: Pending, tmp_path: Path, now: bytes | None, is_ours: bool
) -> None:
    """Ours: as it was before the run, or on either side of our last change by the journal."""
    before = FileState(b"before", 0o600, 1, 2, None)
    saved = Saved(PATH, before, None)
    pending.save([saved])
    entry = journal.record(PATH, "scheduler", FileState(b"former", 0, 0, 0, None), b"new")
    (tmp_path / "etc").mkdir()
    if now is not None:
        (tmp_path / "etc/file").write_bytes(now)
    (found,) = pending.load()
    if is_ours:
        assert found == saved
    else:
        assert (found.path, found.before and found.before.content, found.entry) == (PATH, now, entry)
    journal.forget(PATH)
    assert (pending.load() == [saved]) == (now == b"before")
    assert Path(journal.folder) == tmp_path / FOLDER
