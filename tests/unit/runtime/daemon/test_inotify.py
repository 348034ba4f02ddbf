# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A directory is watched also when it is not there yet, goes, and comes back."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from gpushare_runtime.daemon.inotify import DirectoryWatch
from unit.runtime.kube.fake_api import until


def test_what_appears_wakes_at_once(tmp_path: Path) -> None:
    async def scenario() -> float:
        async with DirectoryWatch(tmp_path) as watch:
            seen, started = watch.changes.count, time.monotonic()
            asyncio.get_running_loop().call_soon((tmp_path / "new").touch)
            assert await watch.changes.after(seen, 5)
            return time.monotonic() - started

    assert min(asyncio.run(scenario()) for _ in range(3)) < 0.25


async def noticed(watch: DirectoryWatch) -> None:
    """Something in the directory is noticed sooner than by looking once a second."""
    for number in range(20):
        seen, started = watch.changes.count, time.monotonic()
        (watch.path / f"{number}-{started}").touch()
        assert await watch.changes.after(seen, 5)
        if time.monotonic() - started < 0.25:
            return
    raise AssertionError("only looks once a second")


async def test_a_directory_that_is_made_later_and_made_anew(tmp_path: Path) -> None:
    directory = tmp_path / "device-plugins"
    async with DirectoryWatch(directory) as watch:
        seen = watch.changes.count
        directory.mkdir()
        await until(lambda: watch.changes.count > seen)
        await noticed(watch)
        directory.rename(tmp_path / "old")
        directory.mkdir()
        seen = watch.changes.count
        await until(lambda: watch.changes.count > seen + 2)
        await noticed(watch)


async def test_a_directory_that_is_made_anew_with_the_same_inode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As usual on ext4 and overlayfs."""
    directory = tmp_path / "device-plugins"
    directory.mkdir()
    monkeypatch.setattr(DirectoryWatch, "_directory", lambda self: (1, 1) if self.path.exists() else None)
    async with DirectoryWatch(directory) as watch:
        directory.rmdir()
        directory.mkdir()
        seen = watch.changes.count
        await until(lambda: watch.changes.count > seen + 2)
        await noticed(watch)
