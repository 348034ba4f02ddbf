# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A folder in which containers could make anything is emptied, and nothing else is touched."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from gpushare_runtime.mps.folders import empty


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "folder"
    made.mkdir()
    return made


def test_links_are_removed_and_not_followed(folder: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    (outside / "x").mkdir(parents=True)
    (folder / "in").mkdir()
    for name in ("link", "in/link"):
        (folder / name).symlink_to(outside)
    (folder / "dangling").symlink_to(tmp_path / "nowhere")
    assert empty(folder) == []
    assert os.listdir(folder) == []
    assert os.listdir(outside) == ["x"]
    (tmp_path / "link").symlink_to(outside)
    with pytest.raises(OSError, match="link"):
        empty(tmp_path / "link")


def test_folders_in_folders_deeper_than_a_path(folder: Path) -> None:
    here = os.open(folder, os.O_RDONLY)
    for _ in range(5000):
        os.mkdir("f", dir_fd=here)
        inner = os.open("f", os.O_RDONLY, dir_fd=here)
        os.close(here)
        here = inner
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=here))
    os.close(here)
    assert empty(folder) == []
    assert os.listdir(folder) == []


def test_what_is_newer_and_what_is_named_stays(folder: Path) -> None:
    for name in ("old", "named"):
        (folder / name).mkdir()
    (folder / "old/file").write_text("")
    since, new = (folder / "old").stat().st_ctime + 0.001, folder / "new"
    # The clock of files goes in steps.
    while not new.exists() or new.stat().st_ctime < since:
        new.write_text("")
    assert empty(folder, since, ("named",)) == ["new"]
    assert sorted(os.listdir(folder)) == ["named", "new"]
    assert empty(folder, time.time() + 60) == []
