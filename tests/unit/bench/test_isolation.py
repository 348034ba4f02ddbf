# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The benchmark of isolation, without a GPU: its judgements, and its course with stand-ins for CUDA, NVML and the MPS control daemon."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from bench import isolation
from bench.isolation import BROKEN, NOT_STOPPED, STOPPED, Clients, Gpu, Report, judged, rates, without_driver_limits
from gpushare_runtime.mps.control import ControlError
from gpushare_runtime.mps.gpu import GpuForMps

GPU = Gpu("GPU-8f6f2c31-0000-0000-0000-000000000000", "Tesla T4", "535.261.03", 16384)
STAND_IN = Path(__file__).parents[1] / "fakes/runtime/mps/mps_control.py"
OOM = isolation.OUT_OF_MEMORY
# It has the memory that its environment and its group leave, and computes as fast as it is alone.
CLIENT = """
import json, os, sys
from pathlib import Path
pipes = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "")
limit = int(os.environ.get("CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "0=16384M")[2:-1])
if pipes and not Path(pipes, "control").exists():
    print(json.dumps({"allocated_mib": 0, "kernels": 0, "seconds": 0.0, "error": "CUDA_ERROR_MPS_CONNECTION_FAILED"}))
elif sys.argv[1] == "allocate":
    default = Path(pipes, "limit") if pipes else Path("/nonexistent")
    limit = min(limit, int(default.read_text())) if default.exists() else limit
    got = min(limit, int(sys.argv[3]))
    print(json.dumps({"allocated_mib": got, "error": "" if got == int(sys.argv[3]) else "CUDA_ERROR_OUT_OF_MEMORY"}))
else:
    print("ready", flush=True)
    sys.stdin.readline()
    print(json.dumps({"kernels": 100, "seconds": 2.0, "error": ""}))
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    with TemporaryDirectory(prefix="mps-") as name:
        yield Path(name)


@pytest.fixture
def clients(tmp_path: Path) -> Clients:
    (tmp_path / "client.py").write_text(CLIENT)
    return Clients([sys.executable, str(tmp_path / "client.py")], 0.1)


@pytest.mark.parametrize(
    ("allocated", "error", "outcome"),
    [
        (5120, "", NOT_STOPPED),
        (4096, OOM, STOPPED),
        (4032, OOM, STOPPED),
        (4160, OOM, STOPPED),
        (4224, OOM, NOT_STOPPED),
        (2048, OOM, STOPPED),
        (1984, OOM, BROKEN),
        (0, "CUDA_ERROR_NO_DEVICE", BROKEN),
        (4096, "CUDA_ERROR_UNKNOWN", BROKEN),
        (4096, "", BROKEN),
    ],
)
def test_what_counts_as_stopped(allocated: int, error: str, outcome: str) -> None:
    found = judged("mps", "asks", 4096, {"allocated_mib": allocated, "error": error}, STOPPED)
    assert (found.outcome, found.as_expected) == (outcome, outcome == STOPPED)


def test_the_exit_status_is_that_of_the_worst() -> None:
    assert Report().status == 2
    good = judged("mps", "asks", 4096, {"allocated_mib": 4096, "error": OOM}, STOPPED)
    assert Report([good]).status == 0
    assert Report([good, replace(good, outcome=NOT_STOPPED)]).status == 1


def test_rates_are_of_all_clients_together_and_compared_with_one() -> None:
    def answers(count: int, kernels: int) -> list[dict[str, object]]:
        return [{"kernels": kernels, "seconds": 2.0, "error": ""}] * count

    found = rates("mps", {4: answers(4, 90), 1: answers(1, 100), 2: answers(2, 100)})
    assert [(one.clients, one.kernels_per_second, one.of_one) for one in found] == [(1, 50.0, 1.0), (2, 100.0, 2.0), (4, 180.0, 3.6)]
    with pytest.raises(ValueError, match="1 of 2 clients failed: CUDA_ERROR_X"):
        rates("mps", {2: [*answers(1, 1), {"kernels": 0, "seconds": 0.0, "error": "CUDA_ERROR_X"}]})


@pytest.mark.parametrize(
    ("driver", "groups", "root", "said"),
    [
        ("614.99", True, True, "found driver '614.99'; expected 615"),
        ("none", True, True, "expected 615"),
        ("615.71.09", False, True, "no control groups of version 2"),
        ("615.71.09", True, False, "another user than root"),
        ("700.1", True, True, ""),
    ],
)
def test_where_the_driver_cannot_limit(tmp_path: Path, driver: str, groups: bool, root: bool, said: str) -> None:
    if groups:
        (tmp_path / "cgroup.controllers").write_text("memory")
    found = without_driver_limits(driver, tmp_path, root)
    assert said in found
    assert bool(found) == bool(said)


class Gpus:
    exclusive = 3

    def __init__(self) -> None:
        self.mode = 0

    def read(self, uuid: str) -> GpuForMps:
        return GpuForMps((7, 0), False, (), self.mode, GPU.mib)

    def set_mode(self, uuid: str, mode: int) -> None:
        self.mode = mode


def test_without_isolation_nothing_stops_a_process(clients: Clients) -> None:
    report = Report()
    isolation.without_isolation(report, GPU, clients, 4096)
    assert [(one.allocated_mib, one.outcome) for one in report.attempts] == [(5120, NOT_STOPPED)]
    assert [(one.clients, one.of_one) for one in report.throughput] == [(1, 1.0), (2, 2.0), (4, 4.0)]
    assert report.status == 0


def test_with_mps_the_limits_stop_it_and_the_gpu_is_left_as_it_was(clients: Clients, folder: Path) -> None:
    report, gpus = Report(), Gpus()
    asyncio.run(isolation.with_mps(report, GPU, clients, 4096, folder, str(STAND_IN), gpus))
    assert [(one.how.split()[0], one.allocated_mib, one.outcome) for one in report.attempts] == [
        ("allocates", 4096, STOPPED),
        ("unsets", 4096, STOPPED),
        ("leaves", 0, STOPPED),
    ]
    assert [one.clients for one in report.throughput] == [1, 2, 4]
    assert gpus.mode == 0


def test_a_daemon_that_forgets_its_limit_is_an_error_and_the_gpu_is_left_as_it_was(clients: Clients, folder: Path) -> None:
    (folder / "fault").write_text("forgets")
    report, gpus = Report(), Gpus()
    with pytest.raises(ControlError, match="memory limit is ''"):
        asyncio.run(isolation.with_mps(report, GPU, clients, 4096, folder, str(STAND_IN), gpus))
    assert (report.attempts, gpus.mode) == ([], 0)


def test_the_driver_limits_a_group_and_the_limit_goes(clients: Clients, tmp_path: Path) -> None:
    calls: list[tuple[str, int | None]] = []
    report = Report()
    groups = tmp_path / "cgroup"
    groups.mkdir()

    def limit(uuid: str, group: str, most: int | None) -> None:
        assert (uuid, Path(group).parent) == (GPU.uuid, groups)
        calls.append((Path(group).name, most))

    isolation.with_driver(report, GPU, clients, 4096, limit, groups)
    name = "gpushare-bench-isolation"
    assert calls == [(name, 4096 * 1024 * 1024), (name, None)]
    assert "gpushare-bench-isolation" in str(next(groups.iterdir()))
    # Nothing limited it here, and that is said.
    assert [(one.outcome, one.as_expected) for one in report.attempts] == [(NOT_STOPPED, False)]


def test_a_client_that_dies_is_broken(tmp_path: Path) -> None:
    (tmp_path / "client.py").write_text("raise SystemExit('no libcuda')")
    dying = Clients([sys.executable, str(tmp_path / "client.py")], 0.1)
    assert dying.allocate(10, {})["error"] == "no libcuda"
    with pytest.raises(ValueError, match="2 of 2 clients failed: no libcuda"):
        rates("none", {2: dying.work(2, {})})


def test_a_machine_without_a_gpu_is_told_so(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def none(_nvml: object) -> Gpu:
        raise isolation.NvmlError("libnvidia-ml.so.1 was not found")

    monkeypatch.setattr(isolation, "first_gpu", none)
    (tmp_path / "out.json").write_text("of another machine")
    assert isolation.main(["--json", str(tmp_path / "out.json")]) == 2
    assert capsys.readouterr().out == "all: not run: libnvidia-ml.so.1 was not found\n"
    assert (tmp_path / "out.json").read_text() == "of another machine"
