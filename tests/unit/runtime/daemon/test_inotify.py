# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A directory is watched also when it is not there yet, goes, and comes back."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushare_runtime.daemon import inotify
from gpushare_runtime.daemon.inotify import DirectoryWatch
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
    monkeypatch.setattr(DirectoryWatch, "_directory", lambda self: (1, 1) if self.path.exists() else None)
    async with DirectoryWatch(directory) as watch:
        directory.rmdir()
        directory.mkdir()
        seen = watch.changes.count
        await until(lambda: watch.changes.count > seen + 2)
        await noticed(watch, heard)
