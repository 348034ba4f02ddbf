# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A directory is watched also when it is not there yet, goes, and comes back."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushare_runtime.daemon import inotify
from gpushare_runtime.daemon.inotify import DirectoryWatch, FolderWatch
from unit.fakes.runtime.kube.fake_api import until


async def test_what_appears_wakes_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inotify, "_POLL_SECONDS", 3600.0)
    async with DirectoryWatch(tmp_path) as watch:
        seen = watch.changes.count
        (tmp_path / "new").touch()
        assert await watch.changes.after(seen, 60)


@pytest.fixture
def heard(monkeypatch: pytest.MonkeyPatch) -> list[DirectoryWatch]:
    """The watches, each time that inotify told them something; they look by themselves often."""
    told, readable = list[DirectoryWatch](), DirectoryWatch._readable

    def noted(watch: DirectoryWatch) -> None:
        told.append(watch)
        readable(watch)

    monkeypatch.setattr(DirectoryWatch, "_readable", noted)
    monkeypatch.setattr(inotify, "_POLL_SECONDS", 0.02)
    return told


async def noticed(watch: DirectoryWatch, heard: list[DirectoryWatch]) -> None:
    """Inotify tells of something in the directory."""
    before = len(heard)
    (watch.path / f"{before}").touch()
    await until(lambda: len(heard) > before)


async def test_a_directory_that_is_made_later_and_made_anew(tmp_path: Path, heard: list[DirectoryWatch]) -> None:
    directory = tmp_path / "device-plugins"
    async with DirectoryWatch(directory) as watch:
        seen = watch.changes.count
        directory.mkdir()
        await until(lambda: watch.changes.count > seen)
        await noticed(watch, heard)
        directory.rename(tmp_path / "old")
        directory.mkdir()
        seen = watch.changes.count
        await until(lambda: watch.changes.count > seen + 2)
        await noticed(watch, heard)


async def test_a_directory_that_is_made_anew_with_the_same_inode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, heard: list[DirectoryWatch]
) -> None:
    """As usual on ext4 and overlayfs."""
    directory = tmp_path / "device-plugins"
    directory.mkdir()
    monkeypatch.setattr(inotify, "_identity", lambda folder: (1, 1) if Path(folder).exists() else None)
    async with DirectoryWatch(directory) as watch:
        directory.rmdir()
        directory.mkdir()
        seen = watch.changes.count
        await until(lambda: watch.changes.count > seen + 2)
        await noticed(watch, heard)


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
    return tmp_path / "first", tmp_path / "second"


async def test_of_many_folders_it_says_which_have_changed(two: tuple[Path, Path]) -> None:
    first, second = map(str, two)
    async with FolderWatch() as watch:
        watch.watch([first, second])
        assert (watch.take(), watch.take()) == ({first, second}, set()), "those that are new, once"
        seen = watch.changes.count
        (two[1] / "new").mkdir()
        assert await watch.changes.after(seen, 60)
        watch.watch([first, second])
        assert watch.take() == {second}
        # One that is watched no more says nothing, and counts as new when it comes again.
        watch.watch([second])
        (two[0] / "new").mkdir()
        (two[1] / "newer").mkdir()
        await until(lambda: watch._changed)
        assert watch.take() == {second}
        watch.watch([first, second])
        assert watch.take() == {first}


@pytest.mark.parametrize("told", [True, False])
async def test_of_many_folders_one_that_goes_and_comes_again(two: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, told: bool) -> None:
    """told: as on most file systems. That of control groups does not tell that a folder is gone."""
    folder = str(two[0])
    if not told:
        monkeypatch.setattr(inotify, "_DELETE_SELF", 0)
        monkeypatch.setattr(inotify, "_IGNORED", 0)
    async with FolderWatch() as watch:
        watch.watch([folder])
        watch.take()
        two[0].rmdir()
        watch.watch([folder])
        assert watch.take() == {folder}
        assert not watch._watched
        two[1].rename(two[0])
        watch.watch([folder])
        assert watch.take() == {folder}
        seen = watch.changes.count
        (two[0] / "new").mkdir()
        assert await watch.changes.after(seen, 60)
        # Another one in its place, between two looks.
        two[0].rename(two[1])
        two[0].mkdir()
        watch.watch([folder])
        watch.take()
        seen = watch.changes.count
        (two[0] / "new").mkdir()
        assert await watch.changes.after(seen, 60)
        assert watch.take() == {folder}


async def test_when_the_kernel_has_lost_changes_each_folder_may_have_changed(
    two: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    folders = set(map(str, two))
    async with FolderWatch() as watch:
        watch.watch(folders)
        watch.take()
        monkeypatch.setattr(inotify, "_events", lambda fd: iter([(-1, 0x4000)]))
        watch._readable()
        assert watch.take() == folders


async def test_a_folder_that_cannot_be_watched_is_read_each_time_until_it_can(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder = str(tmp_path)
    async with FolderWatch() as watch:
        with monkeypatch.context() as patch:
            # The kernel has no watch left, as far as this process can tell.
            patch.setattr(inotify, "_ONLY_FOLDERS", -1)
            for _ in range(3):
                watch.watch([folder])
                assert watch.take() == {folder}
        watch.watch([folder])
        assert (watch.take(), watch.take()) == ({folder}, set())
    assert len(caplog.messages) == 1
