# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The golden file rejects each text that is not the one in it, and is written only for whoever asks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from unit.golden import FILE, Golden, Sentences


class Held(Exception):
    reason = "held"


def file_of(folder: Path, texts: list[str]) -> Sentences:
    (folder / FILE).write_text(json.dumps({"test_a.py::test_x[1]": texts}))
    return Sentences(folder / FILE)


def test_another_text_fails(tmp_path: Path) -> None:
    known = Golden("test_a.py::test_x[1]", file_of(tmp_path, ["no GPU", "on a"]), False)
    known("no GPU")
    known.hide(tmp_path, "TMP")
    known.hide(tmp_path / "x", "a")
    known(f"on {tmp_path}/x")
    known.end()
    for others in (["no GPU", "on b"], ["no GPU"], [], ["on a", "no GPU"]):
        other = Golden("test_a.py::test_x[1]", file_of(tmp_path, others), False)
        with pytest.raises(AssertionError, match="--write-golden"):
            [other(text) for text in ("no GPU", "on a")]
    short = Golden("test_a.py::test_x[1]", file_of(tmp_path, ["no GPU", "on a"]), False)
    short("no GPU")
    with pytest.raises(AssertionError, match="more sentences"):
        short.end()
    with pytest.raises(AssertionError, match="found int"):
        short(7)  # type: ignore[arg-type]


def test_an_error_has_its_reason_and_its_text(tmp_path: Path) -> None:
    def raise_(text: str, reason: str | None) -> None:
        golden = Golden("test_a.py::test_x[1]", file_of(tmp_path, ["no GPU"]), False)
        with golden.raised(Held, reason):
            raise Held(text)

    raise_("no GPU", None)
    raise_("no GPU", "held")
    for text, reason in (("no GPU", "other"), ("one GPU", "held")):
        with pytest.raises(AssertionError):
            raise_(text, reason)


def test_what_is_written_are_the_texts_of_tests_that_are_there(tmp_path: Path) -> None:
    (tmp_path / "test_a.py").write_text("def test_x(golden): ...\ndef test_z(golden): ...\n")
    names = ("test_a.py::test_x[2]", "test_a.py::test_y", "test_b.py::test_x")
    former = {name: ["kept"] for name in names}
    (tmp_path / FILE).write_text(json.dumps(former))
    golden = Golden("test_a.py::test_z", Sentences(tmp_path / FILE), True)
    golden("größer")
    golden.end()
    assert json.loads((tmp_path / FILE).read_text()) == former
    Sentences(tmp_path / FILE).write("test_a.py::test_z", golden.texts)
    assert json.loads((tmp_path / FILE).read_text()) == {"test_a.py::test_x[2]": ["kept"], "test_a.py::test_z": ["größer"]}


@pytest.mark.parametrize("path", sorted(Path(__file__).parent.rglob(FILE)), ids=lambda path: str(path.parent))
def test_no_golden_file_has_sentences_of_a_test_that_is_gone(path: Path) -> None:
    sentences = Sentences(path)
    assert [test for test in sentences.known if not sentences.is_there(test)] == []
