# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The limit of clients that unset their own: the largest share that a container of the GPU has, kept current."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpushare_runtime.core.bounds import ReportError
from gpushare_runtime.core.mps import MpsState, shares_of
from gpushare_runtime.mps import main
from gpushare_runtime.mps.control import ControlDaemon
from gpushare_runtime.mps.main import MpsOfGpu
from gpushare_runtime.mps.shares import Shares
from unit.fakes.runtime.kube.fake_api import stays, until
from unit.fakes.runtime.mps.stand_ins import STAND_IN, UUID, Gpus, fault, settings, state

OTHER = "GPU-00000000-0000-0000-0000-000000000001"
BOOT, THIS_BOOT = "b", Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def memory(uuid: str, count: int, first: int = 0) -> list[str]:
    return [f"{uuid}-_-{slot}" for slot in range(first, first + count)]


def record(*containers: dict[str, list[str]], unit: str = "GiB", boot: str = BOOT) -> bytes:
    """One pod for each."""
    pods = {f"uid-{number}": {"name": "", "containers": {"main": one}} for number, one in enumerate(containers)}
    return json.dumps({"v": 1, "boot": boot, "unit": unit, "gpus": None, "pods": pods}).encode()


def of_memory(uuid: str, count: int) -> dict[str, list[str]]:
    return {"aliyun.com/gpu-mem": memory(uuid, count)}


@pytest.mark.parametrize(
    ("usage", "largest", "together"),
    [
        (record(), 0, 0),
        (record(of_memory(UUID, 3), {"aliyun.com/gpu-mem": memory(UUID, 5, 3)}, of_memory(OTHER, 9)), 5120, 8192),
        # An init container passes its ids on.
        (record(of_memory(UUID, 3), of_memory(UUID, 5)), 5120, 5120),
        (record(of_memory(UUID, 5), unit="64MiB"), 320, 320),
        (record(of_memory(OTHER, 9)), 0, 0),
        (record({"aliyun.com/gpu-mem": [*memory(UUID, 2), *memory(OTHER, 2)]}), 2048, 2048),
        (record({"aliyun.com/gpu-count": [UUID]}, of_memory(UUID, 1)), 16160, 16160),
        (record({"aliyun.com/gpu-count": [OTHER]}), 0, 0),
        (record(of_memory(UUID, 99)), 16160, 16160),
        (record(of_memory(UUID, 3), boot="another"), 0, 0),
    ],
)
def test_the_largest_share_and_all_together(usage: bytes, largest: int, together: int) -> None:
    assert shares_of(usage, BOOT, UUID, 16160) == (largest, together)


@pytest.mark.parametrize(
    "usage",
    [
        b"",
        b"[]",
        b'{"v": 2}',
        json.dumps({"v": 2, "boot": BOOT, "unit": "GiB", "pods": {}}).encode(),
        json.dumps({"v": 2, "boot": "another"}).encode(),
        b"[" * 100_000,
        record(unit="parsec"),
        record({"aliyun.com/gpu-mem": ["x"]}),
        json.dumps({"v": 1, "boot": BOOT, "unit": "GiB", "pods": [1]}).encode(),
        json.dumps({"v": 1, "boot": BOOT, "unit": "GiB", "pods": {"a": {"containers": {"c": 7}}}}).encode(),
    ],
)
def test_a_record_of_another_form_is_an_error(usage: bytes) -> None:
    with pytest.raises(ReportError, match="found no record of the device plugin"):
        shares_of(usage, BOOT, UUID, 16160)


def test_the_record_is_followed_and_without_it_the_gpu_bounds(tmp_path: Path) -> None:
    file = tmp_path / "held.json"
    shares = Shares(file, UUID, 16160, lambda: BOOT)
    assert (shares.largest(), shares.problem) == (16160, "")
    for usage, mib in ((record(of_memory(UUID, 3)), 3072), (record(of_memory(UUID, 5)), 5120), (record(of_memory(UUID, 2)), 2048)):
        put(file, usage)
        assert (shares.largest(), shares.problem) == (mib, "")
        assert shares.together == mib
    # No container: the next one sets it.
    put(file, record())
    assert (shares.largest(), shares.together, shares.used) == (2048, 0, False)
    put(file, b"broken")
    assert (shares.largest(), shares.together, shares.used) == (16160, 16160, True)
    assert str(file) in shares.problem
    put(file, record(of_memory(UUID, 4)))
    assert (shares.largest(), shares.problem) == (4096, "")
    file.unlink()
    assert (shares.largest(), shares.problem) == (16160, "")


def put(file: Path, usage: bytes) -> None:
    """As the device plugin does."""
    file.parent.mkdir(parents=True, exist_ok=True)
    temporary = file.with_name(".new")
    temporary.write_bytes(usage)
    temporary.rename(file)


@asynccontextmanager
async def running(folder: Path) -> AsyncIterator[tuple[MpsOfGpu, ControlDaemon]]:
    """The service and its daemon."""
    stop = asyncio.Event()
    made = MpsOfGpu(settings(folder), Gpus(), interval=0.05)
    task = asyncio.ensure_future(made.run(stop))
    try:
        yield made, ControlDaemon(str(STAND_IN), UUID, folder / "r" / UUID, folder / "l" / UUID)
        assert not task.done()
    finally:
        stop.set()
        await asyncio.gather(task, return_exceptions=True)


async def test_the_daemon_and_its_servers_follow_the_largest_share(root: Path) -> None:
    async with running(root) as (_, daemon):
        await until(lambda: state(root).limit == 16160)
        (root / "r" / UUID / "servers").write_text("4711 4712")
        put(root / "u/held.json", record(of_memory(UUID, 4), boot=THIS_BOOT))
        await until(lambda: state(root).limit == 4096)
        assert await daemon.ask("get_default_device_pinned_mem_limit 0") == "4G"
        assert await daemon.ask("get_device_pinned_mem_limit 4712 0") == "4G"
        put(root / "u/held.json", record(of_memory(UUID, 4), of_memory(UUID, 7), boot=THIS_BOOT))
        await until(lambda: state(root).limit == 7168)
        assert await daemon.ask("get_device_pinned_mem_limit 4711 0") == "7G"
        assert state(root).problem == ""


async def test_a_server_that_keeps_another_limit_is_reported_and_tried_again(root: Path) -> None:
    fault(root, "stubborn")
    async with running(root) as (made, _):
        await until(lambda: state(root).limit == 16160)
        (root / "r" / UUID / "servers").write_text("4711")
        put(root / "u/held.json", record(of_memory(UUID, 4), boot=THIS_BOOT))
        await until(lambda: "the memory limit of server 4711 is '' after 4096M was set" in made.status.report()[1])
        # A container with more than the former limit still waits for it; with less it is as it was.
        assert state(root).limit == 16160
        (root / "r" / UUID / "servers").write_text("")
        await until(lambda: state(root).limit == 4096)
        await until(lambda: "degraded" not in made.status.report()[1])


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How often the largest share was asked for. Each time all that is in shared memory is old enough to be removed."""
    asked: list[object] = []

    class CountedShares(Shares):
        def largest(self) -> int:
            asked.append(self)
            return super().largest()

    monkeypatch.setattr(main, "Shares", CountedShares)
    monkeypatch.setattr(main, "SHARES_SECONDS", 0.02)
    monkeypatch.setattr(main, "_COARSE_SECONDS", -60.0)
    return lambda: len(asked)


def shared_memory(folder: Path) -> list[str]:
    return sorted(path.name for path in (folder / "r" / UUID / "shm").iterdir())


def leave(folder: Path) -> None:
    """What a container leaves there that has used the GPU. The cover of a name is ours."""
    for name in ("cuda.shm.0.1", "in/a/folder/x", "cuda_injection_path_shm"):
        path = folder / "r" / UUID / "shm" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x" * 4096)


async def test_once_no_container_has_the_gpu_its_servers_end_and_its_shared_memory_is_emptied(
    root: Path, passes: Callable[[], int]
) -> None:
    async with running(root) as (_, daemon):
        await until(lambda: state(root).limit == 16160)
        put(root / "u/held.json", record(of_memory(UUID, 4), of_memory(OTHER, 9), boot=THIS_BOOT))
        await until(lambda: state(root).limit == 4096)
        leave(root)
        (root / "r" / UUID / "servers").write_text("4711 4712")
        await stays(lambda: len(shared_memory(root)) == 3, passes)
        assert await daemon.servers() == [4711, 4712]
        put(root / "u/held.json", record(of_memory(OTHER, 9), boot=THIS_BOOT))
        await until(lambda: shared_memory(root) == ["cuda_injection_path_shm"])
        assert await daemon.servers() == []


@pytest.mark.parametrize("usage", [None, b"broken"])
async def test_where_it_is_not_known_who_has_the_gpu_nothing_is_removed(root: Path, passes: Callable[[], int], usage: bytes | None) -> None:
    async with running(root) as (made, _):
        await until(lambda: state(root).limit == 16160)
        if usage is not None:
            put(root / "u/held.json", usage)
            await until(lambda: "held.json" in made.status.report()[1])
        leave(root)
        await stays(lambda: len(shared_memory(root)) == 3, passes)


def test_a_state_of_the_release_before_has_no_limit() -> None:
    assert MpsState.from_json('{"v": 1, "at": 5, "problem": "", "servers": 1}').limit == 0
    assert MpsState.from_json(MpsState(5, "", 1, 4096).to_json()) == MpsState(5, "", 1, 4096)
    with pytest.raises(ReportError):
        MpsState.from_json('{"v": 1, "at": 5, "problem": "", "servers": 1, "limit": "x"}')
