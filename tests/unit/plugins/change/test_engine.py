# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The lifecycle that all subjects share: what is wanted comes, what is not goes, and a file that cannot be taken back keeps its entry."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.engine import (
    NOT_RECORDED,
    ChangePlan,
    Converged,
    Recorded,
    Subject,
    converge,
)
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.journal import Entry, Journal
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.undo import Rejected

ONE, TWO, UNIT = "/etc/one", "/etc/two", "/etc/systemd/system/gpushare-extender.service"
MARK = "# Copyright: gpushare.kubernetes contributors\n"


class Whole(Subject[Recorded]):
    """Two files that are ours as a whole."""

    owner = "container_runtime.whole"

    def __init__(self, root: Path) -> None:
        self.root = str(root)

    def look(self, recorded: Recorded) -> Recorded:
        return recorded

    def present(self, found: Recorded) -> ChangePlan:
        return ChangePlan({ONE: "ours", TWO: "ours"})


def run(root: Path, state: str, check: bool = False) -> Converged:
    return converge(Whole(root), state == "absent", check)


def host(root: Path) -> tuple[Path, Path]:
    """The two files, with what was there before us, and ours in it."""
    (root / "etc").mkdir()
    files = (root / "etc/one", root / "etc/two")
    for file in files:
        file.write_text("before")
    run(root, "present")
    assert [file.read_text() for file in files] == ["ours", "ours"]
    return files


def test_a_file_that_is_none_any_more_keeps_its_entry_until_it_is_one_again(tmp_path: Path) -> None:
    one, two = host(tmp_path)
    one.unlink()
    one.mkdir()
    predicted = run(tmp_path, "absent", check=True)
    assert two.read_text() == "ours"
    found = run(tmp_path, "absent")
    assert found == predicted
    assert two.read_text() == "before"
    why = found.left[ONE]
    assert why.startswith("it is not a regular file (")
    assert (found.changed, found.files, found.notes, list(found.left)) == (True, [TWO], [f"{ONE} stays: {why}"], [ONE])
    # Nothing more can be done, and the bytes from before us are not lost.
    again = run(tmp_path, "absent")
    assert (again.changed, again.files, again.notes) == (False, [], found.notes)
    (entry,) = Journal(str(tmp_path)).entries()
    assert (entry.path, entry.original and entry.original.content) == (ONE, b"before")
    one.rmdir()
    one.write_text("ours")
    assert run(tmp_path, "absent").left == {}
    assert one.read_text() == "before"
    assert run(tmp_path, "absent") == Converged(notes=[NOT_RECORDED])


def test_a_file_of_others_that_we_cannot_take_our_part_out_of_keeps_its_entry(tmp_path: Path) -> None:
    one, two = host(tmp_path)
    one.write_text("theirs")
    found = run(tmp_path, "absent")
    assert (one.read_text(), two.read_text(), list(found.left)) == ("theirs", "before", [ONE])
    assert [entry.path for entry in Journal(str(tmp_path)).entries()] == [ONE]


def test_a_file_that_is_no_text_gets_its_bytes_back(tmp_path: Path) -> None:
    one, _two = host(tmp_path)
    run(tmp_path, "absent")
    one.write_bytes(b"\xff")
    run(tmp_path, "present")
    run(tmp_path, "absent")
    assert one.read_bytes() == b"\xff"


class Choice(Whole):
    """Bytes, and a file that is wanted no more. Says what the engine asks."""

    def __init__(self, root: Path, dropped: tuple[str, ...] = ()) -> None:
        super().__init__(root)
        self.dropped, self.asked = dropped, list[object]()

    def present(self, found: Recorded) -> ChangePlan:
        files = {path: b"\xff" for path in (ONE, TWO) if path not in self.dropped}
        elsewhere = {"service:one": (b"off", b"on")}
        return ChangePlan(files, dropped=self.dropped, elsewhere=elsewhere, shown=lambda text: text.replace("before", "(hidden)"))

    def absent(self, found: Recorded, entries: Sequence[Entry]) -> ChangePlan:
        self.asked.append([entry.path for entry in entries])
        return replace(super().absent(found, entries), tidy=lambda: self.asked.append("tidy"))


def test_a_file_that_is_wanted_no_more_goes_as_uninstall_takes_it_out(tmp_path: Path) -> None:
    root, both, less = tmp_path, Choice(tmp_path), Choice(tmp_path, (TWO,))
    (root / "etc").mkdir()
    (root / "etc/two").write_text("before")
    assert converge(both, False, False).files == [ONE, TWO]
    assert (both.asked, (root / "etc/one").read_bytes()) == ([], b"\xff")
    predicted = converge(less, False, True)
    assert (root / "etc/two").read_bytes() == b"\xff"
    found = converge(less, False, False)
    assert (found, less.asked, (root / "etc/two").read_text()) == (predicted, [[TWO], [TWO]], "before")
    assert (found.changed, found.files, found.diff[0]["after"]) == (True, [TWO], "(hidden)")
    assert sorted(entry.path for entry in Journal(str(root)).entries()) == [ONE, "service:one"]
    assert not converge(less, False, False).changed
    # One that was there before us, and is again by others, has only its entry to lose.
    converge(both, False, False)
    (root / "etc/two").write_text("before")
    assert [converge(less, False, False).changed for _again in range(2)] == [True, False]
    # Only what is a file has a fate, and only after it is there a folder to remove.
    del less.asked[:]
    assert converge(less, True, True).changed
    assert less.asked == [[ONE]]
    found = converge(less, True, False)
    assert (less.asked, found.files, Journal(str(root)).entries()) == ([[ONE], [ONE], "tidy"], [ONE], [])


class Unit(Whole):
    """A unit of ours, and a secret."""

    mode = 0o644
    secrets = (ONE,)

    def present(self, found: Recorded) -> ChangePlan:
        return ChangePlan({UNIT: MARK, ONE: "hidden"})


def test_a_secret_is_for_root_and_in_no_diff(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    found = converge(Unit(tmp_path), False, False)
    assert [(path, (tmp_path / path[1:]).stat().st_mode & 0o777) for path in found.files] == [(UNIT, 0o644), (ONE, 0o600)]
    assert ["hidden" in difference["after"] for difference in found.diff] == [False, False]


def test_files_of_ours_that_a_lost_journal_does_not_have_are_noted_again(tmp_path: Path) -> None:
    (tmp_path / "etc").mkdir()
    converge(Unit(tmp_path), False, False)
    Journal(str(tmp_path)).forget(UNIT)
    predicted = converge(Unit(tmp_path), False, True)
    assert Journal(str(tmp_path)).entry(UNIT) is None
    found = converge(Unit(tmp_path), False, False)
    assert found == predicted
    (warning,) = found.warnings
    assert (found.changed, found.files, f"had no entry of {UNIT}, which are ours" in warning) == (True, [], True)
    assert Journal(str(tmp_path)).entry(UNIT) is not None
    assert converge(Unit(tmp_path), False, False) == Converged()


def test_several_results_are_one() -> None:
    whole = Converged(left={ONE: "why"}, notes=["a"])
    whole.add(Converged(True, [TWO], ["b"], ["w"], [{"before": ""}], "it lacks it", {TWO: "because"}))
    whole.add(Converged())
    assert whole == Converged(True, [TWO], ["a", "b"], ["w"], [{"before": ""}], "it lacks it", {ONE: "why", TWO: "because"})


class Unknown(Whole):
    """A subject that somebody has written without its row."""

    owner = "unknown"


@pytest.mark.parametrize("state", ["present", "absent"])
def test_a_subject_without_a_row_is_rejected_before_anything_is_changed(tmp_path: Path, state: str) -> None:
    (tmp_path / "etc").mkdir()
    with pytest.raises(Rejected, match=r"found the subject unknown, which has no row in OWNERS of .*subjects; expected one: add it"):
        converge(Unknown(tmp_path), state == "absent", check=False)
    assert [path.name for path in tmp_path.rglob("*")] == ["etc"]
