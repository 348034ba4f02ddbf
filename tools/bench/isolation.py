# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What each isolation stops on a real GPU, and what sharing costs: `make isolation`, as root.

It runs by itself on any host with a GPU, without a cluster: each isolation that the driver has, with a process that allocates more than
its share, and the throughput of one, two and four processes with MPS and without. It says what it cannot run here and why. Exit status:
0 if all that ran did what docs/operate/isolation.md states, 1 if something did not, 2 if nothing could run.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import pynvml

from gpushare_runtime.core import mps
from gpushare_runtime.device_plugin.gpu.discovery import NvmlError
from gpushare_runtime.device_plugin.gpu.nvml import Pynvml
from gpushare_runtime.mps.control import PROGRAM, ControlDaemon, ControlError
from gpushare_runtime.mps.gpu import ComputeModes, ExclusiveMode, GpuError, PynvmlGpus, obstacle

CLIENT: Final = (sys.executable, str(Path(__file__).with_name("cuda_client.py")))
CLIENTS: Final = (1, 2, 4)
GROUPS: Final = Path("/sys/fs/cgroup")
LEAST_DRIVER: Final = 615
# A context of its own takes memory, too: what a client may have beyond the share before it counts as not stopped.
SLACK_MIB: Final = 64
STEP_MIB: Final = 64
CLIENT_SECONDS: Final = 120.0
OUT_OF_MEMORY: Final = "CUDA_ERROR_OUT_OF_MEMORY"
STOPPED, NOT_STOPPED, BROKEN = "stopped", "not stopped", "broken"


@dataclass(frozen=True)
class Gpu:
    """What is measured. mib: its memory."""

    uuid: str
    model: str
    driver: str
    mib: int


@dataclass(frozen=True)
class Attempt:
    """One process that asked for more than its share. outcome: STOPPED, NOT_STOPPED, or BROKEN with the error."""

    isolation: str
    how: str
    share_mib: int
    allocated_mib: int
    outcome: str
    expected: str
    error: str = ""

    @property
    def as_expected(self) -> bool:
        return self.outcome == self.expected


@dataclass(frozen=True)
class Throughput:
    """kernels_per_second: of all clients together; of_one: the same of one client in this isolation, as a ratio."""

    isolation: str
    clients: int
    kernels_per_second: float
    of_one: float


@dataclass
class Report:
    """cannot: isolation → why it did not run here."""

    attempts: list[Attempt] = field(default_factory=list)
    throughput: list[Throughput] = field(default_factory=list)
    cannot: dict[str, str] = field(default_factory=dict)

    @property
    def status(self) -> int:
        if not self.attempts:
            return 2
        return 0 if all(one.as_expected for one in self.attempts) else 1

    def to_json(self, gpu: Gpu | None) -> dict[str, Any]:
        head = {"date": time.strftime("%Y-%m-%d"), "gpu": asdict(gpu) if gpu else None}
        return {**head, **asdict(self)}


def judged(isolation: str, how: str, share: int, answer: Mapping[str, Any], expected: str) -> Attempt:
    """Of what the client printed. Within the share it must get its memory, beyond it the driver's own out-of-memory."""
    allocated, error = int(answer["allocated_mib"]), str(answer["error"])
    if not error:
        outcome = NOT_STOPPED if allocated > share else BROKEN
    elif error != OUT_OF_MEMORY or allocated < share // 2:
        # A limit that leaves less than half of the share is no limit but a fault.
        outcome = BROKEN
    else:
        outcome = STOPPED if allocated <= share + SLACK_MIB else NOT_STOPPED
    return Attempt(isolation, how, share, allocated, outcome, expected, error)


def without_driver_limits(driver: str, groups: Path = GROUPS, root: bool | None = None) -> str:
    """Why this host cannot limit by the driver; "" if it may."""
    major = driver.split(".")[0]
    if not major.isdigit() or int(major) < LEAST_DRIVER:
        return f"found driver {driver[:80]!r}; expected {LEAST_DRIVER} or newer"
    if not (groups / "cgroup.controllers").exists():
        return f"found no control groups of version 2 in {groups}; expected them: boot with systemd.unified_cgroup_hierarchy=1"
    if not (os.geteuid() == 0 if root is None else root):
        return "found another user than root; expected root, who alone may limit"
    return ""


def rates(isolation: str, found: Mapping[int, Sequence[Mapping[str, Any]]]) -> list[Throughput]:
    """Of what the clients printed, by their number. ValueError with the error of one that failed."""
    made: list[Throughput] = []
    for clients, answers in sorted(found.items()):
        if wrong := [one["error"] for one in answers if one["error"] or not one["seconds"]]:
            raise ValueError(f"{len(wrong)} of {clients} clients failed: {wrong[0] or 'no time has passed'}")
        rate = sum(one["kernels"] / one["seconds"] for one in answers)
        first = made[0].kernels_per_second if made else rate
        made.append(Throughput(isolation, clients, round(rate, 1), round(rate / first, 2)))
    return made


class Clients:
    """Processes that use the GPU. command: the client; environment: what they all have."""

    def __init__(self, command: Sequence[str] = CLIENT, seconds: float = 5.0) -> None:
        self._command = list(command)
        self._seconds = seconds

    def allocate(self, most: int, environment: Mapping[str, str], group: Path | None = None) -> dict[str, Any]:
        """What one prints that asks for so many MiB. group: the control group in which it runs."""

        def join() -> None:
            if group:
                (group / "cgroup.procs").write_text(str(os.getpid()))

        done = subprocess.run(
            [*self._command, "allocate", str(STEP_MIB), str(most)],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            timeout=CLIENT_SECONDS,
            check=False,
            preexec_fn=join,
        )
        return answer_of(done.stdout, done.stderr)

    def work(self, clients: int, environment: Mapping[str, str]) -> list[dict[str, Any]]:
        """What each of them prints; they compute at the same time."""
        command = [*self._command, "work", str(self._seconds)]
        pipes: Any = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        with contextlib.ExitStack() as stack:
            started = [stack.enter_context(subprocess.Popen(command, env={**os.environ, **environment}, **pipes)) for _ in range(clients)]
            for one in started:
                stack.callback(one.kill)
            # Each prints "ready" once its kernel is loaded; one that fails prints its error instead.
            first = [one.stdout.readline() for one in started if one.stdout]
            for one in started:
                with contextlib.suppress(OSError):
                    if one.stdin:
                        one.stdin.write("go\n")
                        one.stdin.flush()
            ended = [one.communicate(timeout=CLIENT_SECONDS) for one in started]
        return [answer_of(line + out, err) for line, (out, err) in zip(first, ended, strict=True)]


def answer_of(out: str, err: str) -> dict[str, Any]:
    """The JSON object in the last line; one with an error where there is none."""
    try:
        found = json.loads(out.splitlines()[-1])
        return dict(found)
    except (ValueError, IndexError, TypeError):
        last = (err.strip().splitlines() or ["it printed nothing"])[-1]
        return {"allocated_mib": 0, "kernels": 0, "seconds": 0.0, "error": last[:200]}


def without_isolation(report: Report, gpu: Gpu, clients: Clients, share: int) -> None:
    """Nothing stops a process: it gets more than its share."""
    own = {"CUDA_VISIBLE_DEVICES": gpu.uuid}
    answer = clients.allocate(share + 1024, own)
    report.attempts.append(judged("none", "allocates 1 GiB more than its share", share, answer, NOT_STOPPED))
    report.throughput += rates("none", {count: clients.work(count, own) for count in CLIENTS})


async def with_mps(
    report: Report, gpu: Gpu, clients: Clients, share: int, folder: Path, program: str = PROGRAM, nvml: ComputeModes | None = None
) -> None:
    """The control daemon of the runtime, with the limit of a container and with that of the daemon alone. GpuError, ControlError."""
    mode = ExclusiveMode(nvml or PynvmlGpus(), gpu.uuid, folder / "mode")
    mode.enter()
    daemon = ControlDaemon(program, gpu.uuid, folder, folder / "log")
    try:
        await daemon.start()
        await daemon.bound_clients(gpu.mib)
        pipes = {mps.ENV_PIPES: str(folder / mps.PIPES)}
        limited = {**pipes, mps.ENV_MEMORY: f"0={share}M"}
        answer = await asyncio.to_thread(clients.allocate, share + 1024, limited)
        report.attempts.append(judged("mps", "allocates 1 GiB more than its share", share, answer, STOPPED))
        await daemon.bound_clients(share)
        answer = await asyncio.to_thread(clients.allocate, share + 1024, pipes)
        report.attempts.append(judged("mps", "unsets its limit, and the daemon's default is its share", share, answer, STOPPED))
        await daemon.bound_clients(gpu.mib)
        answer = await asyncio.to_thread(
            clients.allocate, share + 1024, {mps.ENV_PIPES: str(folder / "nowhere"), "CUDA_VISIBLE_DEVICES": gpu.uuid}
        )
        outside = Attempt(
            "mps",
            "leaves out the pipe directory",
            share,
            answer["allocated_mib"],
            STOPPED if answer["error"] else NOT_STOPPED,
            STOPPED,
            answer["error"],
        )
        report.attempts.append(outside)
        found = {count: await asyncio.to_thread(clients.work, count, pipes) for count in CLIENTS}
        report.throughput += rates("mps", found)
    finally:
        await daemon.stop()
        mode.leave()


def with_driver(
    report: Report, gpu: Gpu, clients: Clients, share: int, limit: Callable[[str, str, int | None], None], groups: Path = GROUPS
) -> None:
    """The driver limits a control group. NvmlError, OSError."""
    with group_of_its_own(groups) as group:
        limit(gpu.uuid, str(group), share * 1024 * 1024)
        try:
            answer = clients.allocate(share + 1024, {"CUDA_VISIBLE_DEVICES": gpu.uuid}, group)
            report.attempts.append(judged("driver", "allocates 1 GiB more than its share", share, answer, STOPPED))
        finally:
            limit(gpu.uuid, str(group), None)


@contextlib.contextmanager
def group_of_its_own(groups: Path) -> Iterator[Path]:
    group = groups / "gpushare-bench-isolation"
    group.mkdir(exist_ok=True)
    try:
        yield group
    finally:
        for _ in range(50):
            with contextlib.suppress(OSError):
                group.rmdir()
                break
            # A process of it has not ended yet.
            time.sleep(0.1)


def first_gpu(nvml: Pynvml) -> Gpu:
    """NvmlError without a driver or a GPU."""
    nvml.start()
    if not nvml.count():
        raise NvmlError("found no GPU; expected one: see nvidia-smi")
    facts = nvml.facts(0)
    driver = pynvml.nvmlSystemGetDriverVersion()
    return Gpu(facts.uuid, facts.model, driver.decode() if isinstance(driver, bytes) else str(driver), facts.mib)


def run(report: Report, gpu: Gpu, nvml: Pynvml, share: int) -> None:
    """Every isolation that this host has."""
    clients = Clients()
    try:
        without_isolation(report, gpu, clients, share)
    except ValueError as error:
        report.cannot["none"] = str(error)
    with tempfile.TemporaryDirectory(prefix="mps-") as folder:
        try:
            if not shutil.which(PROGRAM):
                raise ControlError(
                    f"found no {PROGRAM}; install nvidia-compute-utils (Ubuntu), nvidia-cuda-mps (Debian) or nvidia-driver-cuda (RPM)"
                )
            if why := obstacle(gpu.uuid, PynvmlGpus().read(gpu.uuid)):
                raise GpuError(why)
            asyncio.run(with_mps(report, gpu, clients, share, Path(folder)))
        except (GpuError, ControlError, ValueError, OSError) as error:
            report.cannot["mps"] = str(error)
    try:
        if why := without_driver_limits(gpu.driver):
            raise NvmlError(why)
        with_driver(report, gpu, clients, share, nvml.limit_memory)
    except (NvmlError, OSError) as error:
        report.cannot["driver"] = str(error)


def lines(report: Report, gpu: Gpu | None) -> Iterator[str]:
    """For people."""
    if gpu:
        yield f"{gpu.model}, {gpu.mib} MiB, driver {gpu.driver}"
    for one in report.attempts:
        verdict = "as documented" if one.as_expected else f"NOT as documented ({one.expected})"
        got = f"{one.outcome} at {one.allocated_mib} MiB {one.error}".rstrip()
        yield f"{one.isolation}: a process that {one.how} ({one.share_mib} MiB): {got}: {verdict}"
    for rate in report.throughput:
        yield f"{rate.isolation}: {rate.clients} clients: {rate.kernels_per_second} kernels/s, {rate.of_one} times one client"
    for isolation, why in report.cannot.items():
        yield f"{isolation}: not run: {why}"


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=int, default=4096, metavar="MIB", help="the share of the process (default: %(default)s)")
    parser.add_argument("--json", type=Path, help="write the results there")
    options = parser.parse_args(argv)
    report, nvml, gpu = Report(), Pynvml(), None
    try:
        gpu = first_gpu(nvml)
        if options.share + 2048 > gpu.mib:
            parser.error(f"found --share {options.share} on a GPU of {gpu.mib} MiB; expected 2 GiB less than the GPU")
        run(report, gpu, nvml, options.share)
    except NvmlError as error:
        report.cannot["all"] = str(error)
    finally:
        nvml.stop()
    for line in lines(report, gpu):
        print(line)
    # Where nothing could run, the results of another machine stay.
    if options.json and report.status != 2:
        options.json.write_text(json.dumps(report.to_json(gpu), indent=1) + "\n")
    return report.status


if __name__ == "__main__":
    sys.exit(main())
