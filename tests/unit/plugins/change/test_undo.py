# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The content that a file gets when our change is taken back: decided once, for every owner."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.journal import Entry
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.undo import Rejected, Undo, undo, undone
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.files import FileState, digest

PATH = "/etc/one"
GONE = f"{PATH} was there before this collection and is gone now; it is not brought back"
OURS_OUT = f"{PATH} was changed by others since: only our part is taken out"
NOTHING_LEFT = f"{PATH} was changed by others since: nothing of ours is left in it"
GOES = f"{PATH} is removed although others have changed it: without this collection it would not be there"


def entry(before: bytes | None, left: bytes | None = b"ours", others: bool = False) -> Entry:
    state = None if before is None else FileState(before, 0o600, 0, 0, None)
    return Entry(PATH, "owner", state, (digest(before), digest(left)), others)


def without_ours(path: str, now: str, original: str) -> str | None:
    return now.replace("ours ", "") + original or None


@pytest.mark.parametrize(
    ("found", "now", "expected"),
    [
        (entry(None), b"ours", Undo(None)),
        (entry(b"before"), b"ours", Undo(b"before")),
        # A run that was killed before it wrote.
        (entry(b"before"), b"before", Undo(b"before")),
        (entry(b"before", others=True), b"before", Undo(b"before")),
        (entry(None), None, Undo(None)),
        (entry(b"before"), None, Undo(None, GONE)),
        # It was us who removed it.
        (entry(b"before", None), None, Undo(b"before")),
        (entry(None, None), None, Undo(None)),
        (entry(None), b"ours theirs", Undo(b"theirs", OURS_OUT)),
        (entry(None), b"ours ", Undo(None, OURS_OUT)),
        (entry(b"before"), b"ours theirs", Undo(b"theirsbefore", OURS_OUT)),
        (entry(None), b"theirs", Undo(b"theirs", NOTHING_LEFT)),
        # They changed it between two of our changes.
        (entry(None, others=True), b"ours theirs", Undo(b"theirs", OURS_OUT)),
    ],
)
def test_what_becomes_of_a_file(found: Entry, now: bytes | None, expected: Undo) -> None:
    assert undo(found, now, without_ours) == expected


def test_an_owner_that_cannot_take_its_part_out_leaves_a_file_of_others() -> None:
    assert undo(entry(None), b"theirs") == Undo(None, GOES)
    stays = undo(entry(b"before"), b"theirs")
    assert (stays.content, stays.note, "others have changed it since" in stays.stays) == (b"theirs", "", True)
    assert undo(entry(b"before"), b"ours") == Undo(b"before")


def test_an_owner_says_by_itself_why_it_takes_only_its_part_out() -> None:
    why = "is not in the journal"
    assert undo(entry(None), b"ours theirs", without_ours, why) == Undo(b"theirs", f"{PATH} {why}: only our part is taken out")


def test_of_several_files_those_that_stay_are_named_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "etc/one").mkdir(parents=True)
    (tmp_path / "etc/two").write_bytes(b"ours theirs")
    two = Entry("/etc/two", "owner", None, ("", digest(b"ours")), False)
    three = Entry("/etc/three", "owner", None, ("", digest(b"ours")), False)
    found = undone([entry(None), two, three], without_ours, str(tmp_path))
    assert found.texts == {"/etc/two": "theirs"}
    assert [note.split(" ")[0] for note in found.notes] == ["/etc/two"]
    assert [(path, why.startswith("it is not a regular file (")) for path, why in found.left.items()] == [(PATH, True)]


def test_a_file_that_is_no_text_is_rejected() -> None:
    with pytest.raises(Rejected, match=r"^/etc/one is not UTF-8 .*; nothing was changed: correct it, and run again$"):
        undo(entry(None), b"\xff", without_ours)
    # As we left it, its bytes count alone.
    assert undo(entry(b"\xff"), b"ours", without_ours) == Undo(b"\xff")
