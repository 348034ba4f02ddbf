# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What the plugin's next process learns of this one."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.core.quantity import UNITS
from gpushare_runtime.device_plugin.host.usage_file import StateFile
from gpushare_runtime.device_plugin.node.ids import CheckpointEntry, DeviceKey
from gpushare_runtime.device_plugin.node.local_pods import PodTable
from gpushare_runtime.device_plugin.node.state import NodeState, Told
from gpushare_runtime.device_plugin.options import directory
from unit.fakes.runtime.device_plugin.fake_processes import FakeProcesses
from unit.fakes.runtime.kube.fake_api import until
from unit.fakes.runtime.pods import inventory

MEMORY = "aliyun.com/gpu-mem"


GPUS = inventory(16, 8)


def node_state(gpus: Inventory | None = GPUS, *live: str) -> NodeState:
    processes = FakeProcesses()
    processes.live.update(live)
    node = NodeState(PodTable(), lambda: 0.0, lambda: 0.0, processes)
    if gpus is not None:
        node.devices.set_inventory(gpus)
    return node


def state(path: Path, held: NodeState, boot: str = "one") -> StateFile:
    return StateFile(path / "held.json", held, lambda: boot)


async def kept(path: Path, *entries: CheckpointEntry) -> None:
    """Run the file's keeper until it has written."""
    held = node_state()
    held.recorder.set_checkpoint(entries)
    keeper = asyncio.ensure_future(state(path, held).run())
    await until((path / "held.json").exists)
    keeper.cancel()


def written(path: Path, *entries: CheckpointEntry) -> None:
    asyncio.run(kept(path, *entries))


@pytest.mark.parametrize("text", ["", "{", "[]", '{"v":2}', '{"v":1,"boot":"one","pods":{"a":3}}'])
def test_a_file_that_cannot_be_used_says_nothing(tmp_path: Path, text: str) -> None:
    (tmp_path / "held.json").write_text(text)
    held = node_state()
    state(tmp_path, held).load()
    assert held.usage.snapshot() == {}


@pytest.mark.parametrize(("number", "cure"), [(errno.ENOSPC, "free space"), (errno.EROFS, "read-only"), (errno.EACCES, "StateDirectory=")])
def test_the_cure_is_that_of_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, number: int, cure: str
) -> None:
    def full(*_: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr("os.replace", full)
    state(tmp_path, node_state())._write(b"1")
    assert cure in caplog.text
    assert (cure == "StateDirectory=") == ("StateDirectory=" in caplog.text)


def test_the_folder_is_systemds_if_it_gave_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STATE_DIRECTORY", "/var/lib/a:/var/lib/b")
    assert directory() == Path("/var/lib/a")
    monkeypatch.delenv("STATE_DIRECTORY")
    assert directory() == Path("/run/gpushare-device-plugin")


def test_the_unit_and_the_gpus_are_known_in_the_next_boot_too(tmp_path: Path) -> None:
    written(
        tmp_path,
        CheckpointEntry("a", "main", MEMORY, frozenset({"GPU-1-_-0"})),
        CheckpointEntry("b", "main", "aliyun.com/gpu-count", frozenset({"GPU-2"})),
    )
    for file in (state(tmp_path, node_state()), state(tmp_path, node_state(), boot="two")):
        assert (file.unit, file.strategy, file.gpus) == ("", "", None)
        file.load()
        assert (file.unit, file.strategy, file.gpus) == ("GiB", "envvar", replace(GPUS, strategy="envvar"))


def test_gpus_are_remembered_as_good_ones(tmp_path: Path) -> None:
    bad = Inventory(GPUS.unit, (replace(GPUS.gpus[0], health="lost", cordoned=True), GPUS.gpus[1]))
    file = state(tmp_path, node_state(bad))
    file._write(file._render(bad))
    file.load()
    assert file.gpus == GPUS


def test_what_events_have_told_is_known_in_the_next_boot_too(tmp_path: Path) -> None:
    told = Told({GPUS.gpus[0].uuid: "XID 79"}, frozenset({("a", "GPU-gone"), ("a", "GPU-too"), ("b", "GPU-gone")}))
    before, after = node_state(), node_state()
    file = state(tmp_path, before)
    file._write(file._render(GPUS))
    before.told = told
    file._write(file._render(GPUS))
    state(tmp_path, after, boot="two").load()
    assert after.told == told


def test_its_pods_are_as_old_as_the_file(tmp_path: Path) -> None:
    written(tmp_path, A)
    past = time.time() - 500
    os.utime(tmp_path / "held.json", (past, past))
    held = node_state()
    state(tmp_path, held).load()
    [known] = held.usage.states.values()
    assert 499 < held.usage.clock() - known.seen_at < 999


@pytest.mark.parametrize("gpus", [3, {"v": 9}, {"v": 1, "unit": "GiB", "gpus": [{}]}])
def test_gpus_that_cannot_be_read_cost_nothing_else(tmp_path: Path, gpus: object, caplog: pytest.LogCaptureFixture) -> None:
    written(tmp_path, A)
    path = tmp_path / "held.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"gpus": gpus}))
    held = node_state()
    file = state(tmp_path, held)
    file.load()
    assert (file.gpus, file.unit, set(held.usage.snapshot())) == (None, "GiB", {DeviceKey("a", "main", MEMORY)})
    assert "the plugin ignores its GPUs" in caplog.text


def test_the_file_of_the_release_before_is_read(tmp_path: Path) -> None:
    (tmp_path / "held.json").write_text(
        '{"v":1,"boot":"one","pods":{"a":{"name":"n/a","containers":{"main":{"aliyun.com/gpu-mem":["x"]}}}}}'
    )
    held = node_state()
    file = state(tmp_path, held)
    file.load()
    assert (file.unit, file.gpus, held.usage.name("a")) == ("", None, "n/a")


@pytest.mark.parametrize(
    ("changes", "found"),
    [({}, ("envvar", "watch")), ({"strategy": "cdi"}, ("cdi", "watch")), ({"isolation": "driver"}, ("envvar", "driver")), (None, ("", ""))],
)
def test_gpus_without_a_strategy_or_an_isolation_are_those_of_a_release_that_had_none(
    tmp_path: Path, changes: dict[str, str] | None, found: tuple[str, str]
) -> None:
    written(tmp_path, A)
    path = tmp_path / "held.json"
    gpus = None if changes is None else json.loads(replace(GPUS, **changes).to_json())  # type: ignore[arg-type]
    path.write_text(json.dumps(json.loads(path.read_text()) | {"gpus": gpus}))
    file = state(tmp_path, node_state())
    file.load()
    assert (file.strategy, file.isolation) == found


async def test_nothing_is_written_before_the_unit_was_compared(tmp_path: Path) -> None:
    await kept(tmp_path, A)
    before = (tmp_path / "held.json").read_bytes()
    held = node_state(None)
    file = state(tmp_path, held)
    file.load()
    keeper = asyncio.ensure_future(file.run())
    held.recorder.set_checkpoint(())
    await asyncio.sleep(0.05)
    assert (tmp_path / "held.json").read_bytes() == before
    gpus = Inventory(UNITS["64MiB"], GPUS.gpus)
    held.devices.set_inventory(gpus)
    await until(lambda: json.loads((tmp_path / "held.json").read_bytes())["unit"] == "64MiB")
    keeper.cancel()


A, B = (CheckpointEntry(name, "main", MEMORY, frozenset({f"GPU-1-_-{slot}"})) for slot, name in enumerate("ab"))


def test_the_file_follows_what_is_held_and_is_written_only_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writes: list[bytes] = []
    rename = os.replace

    def noted(new: Path, old: Path) -> None:
        writes.append(new.read_bytes())
        rename(new, old)

    monkeypatch.setattr("os.replace", noted)
    monkeypatch.setattr("gpushare_runtime.device_plugin.host.usage_file._PAUSE_SECONDS", 0.0)

    async def scenario() -> None:
        held, looks = node_state(), []
        held.recorder.set_checkpoint((A,))
        file = state(tmp_path, held)
        render = file._render
        monkeypatch.setattr(file, "_render", lambda gpus: looks.append(True) or render(gpus))
        keeper = asyncio.ensure_future(file.run())
        await until(lambda: len(writes) == 1)
        # A change that is none for the file.
        held.changes.notify()
        await until(lambda: len(looks) == 2)
        held.recorder.set_checkpoint((A, B))
        await until(lambda: len(writes) == 2)
        held.recorder.set_checkpoint((A, CheckpointEntry("b", "main", MEMORY, frozenset({"GPU-1-_-5"}))))
        await until(lambda: len(writes) == 3)
        assert len(looks) == 4, "one for each change"
        keeper.cancel()

    asyncio.run(scenario())
    assert [sorted(json.loads(text)["pods"]) for text in writes] == [["a"], ["a", "b"], ["a", "b"]]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["held.json"]
    assert (tmp_path / "held.json").read_bytes() == writes[-1]
    after = node_state()
    state(tmp_path, after).load()
    assert after.usage.snapshot()["b", "main", MEMORY] == {"GPU-1-_-5"}


def test_all_of_it_is_written_and_read(tmp_path: Path) -> None:
    held = node_state()
    two = CheckpointEntry("a", "second", "aliyun.com/gpu-count", frozenset({"GPU-2", "GPU-3"}))
    held.recorder.restore(
        {DeviceKey("a", "main", MEMORY): A.ids, DeviceKey("a", "second", two.resource): two.ids, DeviceKey("b", "main", MEMORY): B.ids},
        {"a": "default/a"},
    )
    held.limits.add({("a", "GPU-1"), ("c", "GPU-2"), ("c", "GPU-1")})
    held.limits.set_gpus({"GPU-2", "GPU-1"}, {("b", "GPU-1")})
    file = state(tmp_path / "new" / "folder", held)
    file._write(file._render(GPUS))
    assert json.loads(file.path.read_text()) == {
        "v": 1,
        "boot": "one",
        "unit": "GiB",
        "gpus": json.loads(GPUS.to_json()),
        "pods": {
            "a": {
                "name": "default/a",
                "containers": {"main": {MEMORY: ["GPU-1-_-0"]}, "second": {"aliyun.com/gpu-count": ["GPU-2", "GPU-3"]}},
            },
            "b": {"name": "", "containers": {"main": {MEMORY: ["GPU-1-_-1"]}}},
        },
        "limited": {"a": ["GPU-1"], "c": ["GPU-1", "GPU-2"]},
        "limited_gpus": ["GPU-1", "GPU-2"],
        "exempt": {"b": ["GPU-1"]},
        "bad": {},
        "gone": {},
    }
    assert file.path.parent.stat().st_mode & 0o777 == 0o700
    after = node_state()
    state(tmp_path / "new" / "folder", after).load()
    assert after.usage.snapshot() == held.usage.snapshot()
    assert (after.usage.name("a"), after.usage.name("b")) == ("default/a", "")
    limits = held.limits
    assert (after.limits.pods, after.limits.gpus, after.limits.exempt) == (limits.pods, limits.gpus, limits.exempt)
    rebooted = node_state()
    state(tmp_path / "new" / "folder", rebooted, "two").load()
    assert (rebooted.usage.snapshot(), rebooted.limits.pods) == ({}, limits.pods)
    assert (rebooted.limits.gpus, rebooted.limits.exempt) == (limits.gpus, set()), "no pod has started before a reboot"


def test_what_was_read_is_not_written_again(tmp_path: Path) -> None:
    written(tmp_path, A)
    held = node_state()
    file = state(tmp_path, held)
    file.load()
    before = file.path.stat()
    file._write(file._render(replace(GPUS, strategy="envvar")))
    assert file.path.stat().st_ino == before.st_ino


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"v": 2}, ""),
        ({"boot": "two"}, ""),
        ({"boot": None}, ""),
        ({"pods": [1]}, "is not a file of this plugin"),
        ({"v": "1"}, ""),
        ({"limited": {"a": 1}}, "is not a file of this plugin"),
        ({"limited_gpus": 1}, "is not a file of this plugin"),
        ({"exempt": ["a"]}, "is not a file of this plugin"),
    ],
)
def test_a_file_of_another_version_or_boot_says_nothing(
    tmp_path: Path, change: dict[str, object], said: str, caplog: pytest.LogCaptureFixture
) -> None:
    written(tmp_path, A)
    path = tmp_path / "held.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    held = node_state()
    state(tmp_path, held).load()
    assert held.usage.snapshot() == {}
    assert said in caplog.text
    assert bool(said) == bool(caplog.records)


def test_a_file_that_cannot_be_read_is_said_and_one_that_is_missing_is_not(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    held = node_state()
    state(tmp_path, held).load()
    assert not caplog.records
    (tmp_path / "held.json").mkdir()
    state(tmp_path, held).load()
    assert "cannot be read (" in caplog.text


def test_a_trouble_with_writing_is_said_again_when_it_was_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "held.json"
    file = state(tmp_path, node_state())
    for expected in (1, 2):
        path.mkdir()
        for text in (b"1", b"2"):
            file._write(text)
        assert len(caplog.records) == expected
        assert [one.name for one in tmp_path.iterdir()] == ["held.json"], "nothing is left behind"
        path.rmdir()
        file._write(b"%d" % expected)
        assert path.read_bytes() == b"%d" % expected
        path.unlink()


def test_without_a_word_it_is_the_boot_that_the_kernel_names(tmp_path: Path) -> None:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text()
    assert json.loads(StateFile(tmp_path / "held.json", node_state())._render(GPUS))["boot"] == boot[:36]


def test_what_a_running_container_keeps_beside_its_record_is_known_again(tmp_path: Path) -> None:
    before, first, anew = node_state(GPUS, "a"), frozenset({"GPU-1-_-0"}), frozenset({"GPU-2-_-0"})
    file = state(tmp_path, before)
    for entries in ((CheckpointEntry("a", "main", MEMORY, first),), (), (CheckpointEntry("a", "main", MEMORY, anew),)):
        before.recorder.set_checkpoint(entries)
    file._write(file._render(GPUS))
    after = node_state()
    state(tmp_path, after).load()
    after.recorder.set_checkpoint((CheckpointEntry("a", "main", MEMORY, anew),))
    assert after.usage.memory_of("a") == {"GPU-1": 1, "GPU-2": 1}
    other = node_state()
    state(tmp_path, other, boot="two").load()
    assert other.usage.kept == {}
