# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What the plugin's next process learns of this one."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gpushare_runtime.device_plugin.checkpoint import Entry
from gpushare_runtime.device_plugin.holders import Holders
from gpushare_runtime.device_plugin.pods import PodTable
from gpushare_runtime.device_plugin.state_file import StateFile, directory
from unit.runtime.kube.fake_api import until

MEMORY = "aliyun.com/gpu-mem"


def holders() -> Holders:
    return Holders(PodTable(), lambda: 0.0)


def state(path: Path, held: Holders, boot: str = "one") -> StateFile:
    return StateFile(path / "held.json", held, lambda: boot)


def written(path: Path, *entries: Entry) -> None:
    """Run the file's keeper until it has written."""

    async def scenario() -> None:
        held = holders()
        held.set_checkpoint(entries)
        keeper = asyncio.ensure_future(state(path, held).run())
        await until((path / "held.json").exists)
        keeper.cancel()

    asyncio.run(scenario())


def test_what_was_held_is_known_again_in_the_same_boot(tmp_path: Path) -> None:
    entry = Entry("a", "main", MEMORY, frozenset({"GPU-1-_-0", "GPU-1-_-1"}))
    written(tmp_path / "made", entry)
    after = holders()
    state(tmp_path / "made", after).load()
    assert after.snapshot() == {("a", "main", MEMORY): entry.ids}
    rebooted = holders()
    state(tmp_path / "made", rebooted, boot="two").load()
    assert rebooted.snapshot() == {}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"v":2}', '{"v":1,"boot":"one","pods":{"a":3}}'])
def test_a_file_that_cannot_be_used_says_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "held.json").write_text(text)
    held = holders()
    state(tmp_path, held).load()
    assert held.snapshot() == {}


def test_a_folder_that_cannot_be_written_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "file").touch()
    held = holders()
    file = state(tmp_path / "file", held)
    file._write(b"1")
    file._write(b"2")
    assert [record.message for record in caplog.records if "cannot be written" in record.message] == [caplog.records[0].message]
    assert "StateDirectory=" in caplog.text


def test_the_folder_is_systemds_if_it_gave_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATE_DIRECTORY", "/var/lib/a:/var/lib/b")
    assert directory() == Path("/var/lib/a")
    monkeypatch.delenv("STATE_DIRECTORY")
    assert directory() == Path("/run/gpushare-device-plugin")
