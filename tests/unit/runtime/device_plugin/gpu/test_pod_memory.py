# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Memory in use is that of the right pod or of nobody; a pod that uses more than its units is reported once."""

from __future__ import annotations

import asyncio
import random
import shutil
from pathlib import Path

import pytest

from gpushare_runtime.core.load import Load
from gpushare_runtime.device_plugin.gpu import pod_memory
from gpushare_runtime.device_plugin.gpu.discovery import NvmlError, ProcessLoad
from gpushare_runtime.device_plugin.gpu.pod_memory import MemoryWatch
from gpushare_runtime.device_plugin.gpu.use import Pass, Use, UseReader, together
from gpushare_runtime.device_plugin.host import pod_processes
from gpushare_runtime.device_plugin.host.pod_processes import HostProcesses
from unit.fakes.runtime.device_plugin.fake_nvml import FakeNvml
from unit.fakes.runtime.device_plugin.local_pods import memory, whole
from unit.fakes.runtime.device_plugin.node import Node, with_gpu
from unit.fakes.runtime.device_plugin.plugin import NODE, FakeHost, World, admitted, metric, path_of, uses, world
from unit.fakes.runtime.kube.fake_api import until
from unit.fakes.runtime.pods import gpu, inventory

GIB = 1024
BYTES = 1024**3


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_memory, "INTERVAL_SECONDS", 0.02)


class Kernel:
    """Processes that come and go between any two questions; a PID is given again at once. pods: PID → UID, now."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.started = 0
        self.processes: dict[int, tuple[int, str]] = {}
        self.sizes: dict[int, int] = {}

    def live(self) -> None:
        for _ in range(self._random.randint(0, 3)):
            pid = self._random.randint(1, 12)
            self.started += 1
            if self._random.random() < 0.3:
                self.processes.pop(pid, None)
            else:
                self.processes[pid] = self.started, self._random.choice(["", "a", "b", "c"])
                # Its size tells whose it is.
                self.sizes[pid] = {"": 1, "a": 100, "b": 10_000, "c": 1_000_000}[self.processes[pid][1]]

    def identify(self, pid: int) -> tuple[int, str] | None:
        self.live()
        return self.processes.get(pid)

    def is_still(self, pid: int, known: tuple[int, str]) -> bool:
        return self.identify(pid) == known

    def container_of(self, pid: int) -> str:
        self.live()
        # Each pod has one container, by which it is told.
        found = self.processes.get(pid)
        return found[1] if found else ""


class Driver(FakeNvml):
    def __init__(self, kernel: Kernel) -> None:
        super().__init__(16 * GIB)
        self.kernel = kernel

        self.at = 0
        # What the processes since the last question were busy with: the last sample of each PID.
        self.samples: dict[int, ProcessLoad] = {}

    def processes(self, uuid: str) -> list[tuple[int, int | None]]:
        self.live()
        return [(pid, self.kernel.sizes[pid]) for pid in self.kernel.processes]

    def live(self) -> None:
        self.kernel.live()
        self.at += 1
        for pid, (_, uid) in self.kernel.processes.items():
            # Its load tells whose it is.
            self.samples[pid] = ProcessLoad(pid, self.at, LOADS[uid])

    def loads(self, uuid: str, since: int) -> list[ProcessLoad]:
        self.live()
        found = [one for one in self.samples.values() if one.at > since]
        self.samples = {}
        return found


LOADS = {"": Load(9, 0, 0, 0), "a": Load(1, 0, 0, 0), "b": Load(0, 1, 0, 0), "c": Load(0, 0, 1, 0)}


def test_no_byte_and_no_percent_is_ever_attributed_to_a_wrong_pod() -> None:
    """A thousand courses of events of several readings: what a pod is said to use is of its own processes alone."""
    attributed = busy = 0
    for seed in range(1000):
        kernel = Kernel(seed)
        for _ in range(12):
            kernel.live()
        driver = Driver(kernel)
        reader = UseReader(driver, kernel, lambda driver=driver: driver.at / 1e6)  # type: ignore[misc]
        for _ in range(3):
            found = reader.read(gpu(0, 16), sensors=False)
            for (uid, _), size in found.by_pod.items():
                assert size % {"a": 100, "b": 10_000, "c": 1_000_000}[uid] == 0, (seed, found)
                assert size < {"a": 10_000, "b": 1_000_000, "c": 10**9}[uid], (seed, found)
                attributed += 1
            for (uid, _, container), size in found.by_container.items():
                assert container == uid, (seed, found)
                assert size % {"a": 100, "b": 10_000, "c": 1_000_000}[uid] == 0, (seed, found)
            for (uid, _), load in found.loads.items():
                assert [value > 0 for value in load.values()] == [value > 0 for value in LOADS[uid].values()], (seed, found)
                busy += 1
    assert attributed > 1000, "most processes live for longer than a reading"
    assert busy > 100, "some live for longer than two"


class Proc:
    """/proc as the kernel has it, with trees of processes in the control groups of containers. Between any two reads a process starts
    (mostly as the child of another one, in its group), ends, or moves into a container's group, as a container runtime's do. PIDs are few,
    and given again at once.

    owners: PID → number of the process, pod's UID; now, beside the files.
    """

    UIDS = ("11111111-2222-4333-8444-555555555555", "66666666-2222-4333-8444-555555555555")

    def __init__(self, root: Path, seed: int) -> None:
        self.root = root
        self.random = random.Random(seed)
        self.owners: dict[int, tuple[int, str]] = {}
        self._groups: dict[int, str] = {}
        self._started = 0
        self._systemd = self.random.random() < 0.5
        (root / "self").mkdir(parents=True)
        (root / "self/mountinfo").write_text(f"30 23 0:26 / {root}/groups rw - cgroup2 cgroup2 rw\n")
        for uid in self.UIDS:
            for pod in self.pods(uid):
                (root / f"groups{pod}").mkdir(parents=True)

    def pods(self, uid: str) -> tuple[str, ...]:
        """Where the pod's group may be with the driver of this kubelet."""
        slice_ = uid.replace("-", "_")
        if self._systemd:
            return (f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{slice_}.slice",)
        return f"/kubepods/besteffort/pod{uid}", f"/kubepods/pod{uid}"

    def group(self, uid: str) -> str:
        if not uid:
            spoofed = "/".join(["/user.slice", *self.pods(self.random.choice(self.UIDS))[0].split("/")[1:]])
            return self.random.choice(("/", "/system.slice/sshd.service", "/user.slice/pod.slice", spoofed))
        made = self.random.choice(("cri-containerd-b1.scope", "c2", "c2/init.scope", f"c2/pod{self.UIDS[0]}"))
        return f"{self.random.choice(self.pods(uid))}/{made}"

    def live(self) -> None:
        for _ in range(self.random.randint(0, 2)):
            what, pid = self.random.random(), self.random.randint(2, 9)
            if what < 0.3:
                self.owners.pop(pid, None)
                shutil.rmtree(self.root / str(pid), ignore_errors=True)
            elif what < 0.5 and pid in self.owners and not self.owners[pid][1]:
                self._put(pid, self.owners[pid][0], self.random.choice(self.UIDS), "")
            else:
                parent = self.random.choice([0, *self.owners])
                self._started += 1
                uid = self.owners[parent][1] if parent else self.random.choice(("", *self.UIDS))
                self._put(pid, self._started, uid, self._groups.get(parent, ""))

    def _put(self, pid: int, number: int, uid: str, group: str) -> None:
        folder = self.root / str(pid)
        folder.mkdir(parents=True, exist_ok=True)
        self.owners[pid], self._groups[pid] = (number, uid), group or self.group(uid)
        # A process that has exec'd itself has any name.
        name = self.random.choice(("python", "a ) b", "(pod1)"))
        (folder / "stat").write_text(f"{pid} ({name}) S 1 {pid} {pid} 0 -1 0 1 0 0 0 2 3 0 0 20 0 1 0 {1000 + number} 1000 10 0")
        (folder / "cgroup").write_text(f"0::{self._groups[pid]}\n")

    def size(self, pid: int) -> int:
        """Tells whose it is."""
        return {"": 1, self.UIDS[0]: 100, self.UIDS[1]: 10_000}[self.owners[pid][1]]


class ProcDriver(FakeNvml):
    """Knows the processes by their numbers, as the driver does."""

    def __init__(self, proc: Proc) -> None:
        super().__init__(16 * GIB)
        self.proc = proc

    def processes(self, uuid: str) -> list[tuple[int, int | None]]:
        self.proc.live()
        found: list[tuple[int, int | None]] = [(pid, self.proc.size(pid)) for pid in self.proc.owners]
        self.proc.live()
        return found


def test_trees_of_processes_with_pids_that_are_given_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The real reader of /proc: something happens between any two files that it reads."""
    read, attributed, doubted = pod_processes._read, 0, 0
    for seed in range(200):
        proc = Proc(tmp_path / str(seed), seed)
        for _ in range(20):
            proc.live()

        def between(path: str, proc: Proc = proc) -> bytes:
            proc.live()
            return read(path)

        monkeypatch.setattr(pod_processes, "_read", between)
        found = UseReader(ProcDriver(proc), HostProcesses(proc.root, lambda folder: 0)).read(gpu(0, 16), sensors=False).by_pod
        for (uid, _), size in found.items():
            each = {proc.UIDS[0]: 100, proc.UIDS[1]: 10_000}[uid]
            assert size % each == 0, (seed, found)
            assert size < 10 * each, (seed, found)
            attributed += 1
        doubted += not found
        shutil.rmtree(proc.root, ignore_errors=True)
    assert min(attributed, doubted) > 20, "some trees live for longer than a reading, and some do not"


class Silent(FakeNvml):
    """Its GPU 1 does not answer."""

    def processes(self, uuid: str) -> list[tuple[int, int | None]]:
        if uuid == "GPU-00000001":
            raise NvmlError("the GPU is lost")
        return super().processes(uuid)


def test_a_gpu_that_does_not_answer_and_a_size_that_nobody_knows_count_for_nobody() -> None:
    driver, host = Silent(), FakeHost(Path())
    host.processes, driver.using = {7: (70, "a"), 8: (80, "b")}, {"GPU-00000000": [(7, 5), (8, None)]}
    host.containers = {8: "x"}
    reading = Pass(UseReader(driver, host), [gpu(0, 16), gpu(1, 16)], sensors=False)
    reading.run()
    assert together(reading.leave().values()) == Use(
        {("a", "GPU-00000000"): 5},
        {"GPU-00000000": 5},
        {},
        {"GPU-00000000"},
        loose={("a", "GPU-00000000")},
        unsized={("b", "GPU-00000000")},
    )


def test_a_pod_that_was_deleted_by_force_may_use_too_much_and_has_nobody_to_be_told(monkeypatch: pytest.MonkeyPatch) -> None:
    node, driver, host = Node(inventory(16, 16)), FakeNvml(), FakeHost(Path())
    pod = node.takes(memory(node.state.devices.inventory, 0, 4))
    uid = pod["metadata"]["uid"]
    node.force_delete(pod, alive=True)
    with_gpu(node, 1, health="it is lost")
    host.processes, driver.using = {7: (70, uid)}, {"GPU-00000000": [(7, 5 * BYTES)], "GPU-00000001": [(8, BYTES)]}
    told: list[str] = []
    watch = MemoryWatch(node.state, driver, host, lambda pod, text: told.append(text))
    naps: list[float] = []

    async def nap(seconds: float) -> None:
        naps.append(seconds)
        if len(naps) == 2:
            raise asyncio.CancelledError

    monkeypatch.setattr(asyncio, "sleep", nap)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(asyncio.wait_for(watch.run(), 10))
    assert (watch.over, list(watch.lasting(0.0)), told, naps) == (1, [(uid, "GPU-00000000")], [], [0.02, 0.02])
    assert watch.use.by_gpu == {"GPU-00000000": 5 * BYTES}, "the other one is not asked"


def reported(it: World) -> list[str]:
    events = [thing for path, thing in it.api.objects.items() if "/events/" in path]
    return [event["note"] if "note" in event else event["message"] for event in events if event["reason"] == "GPUShareMemoryExceeded"]


def values(it: World, name: str) -> list[float]:
    return [float(line.rpartition(" ")[2]) for line in metric(it, name)]


async def test_a_pod_that_uses_more_than_its_units_is_reported_once_until_it_ends() -> None:
    async with world(16 * GIB) as it:
        pod, beside = memory(it.inventory, 0, 4), memory(it.inventory, 0, 2)
        uid, other = await admitted(it, pod), await admitted(it, beside)
        await uses(it, uid, 4096)
        await uses(it, other, 2048, pid=8)
        await until(lambda: values(it, "pod_memory_used_bytes") == [4 * BYTES, 2 * BYTES])
        assert (values(it, "pods_exceeding"), values(it, "gpu_memory_used_bytes")) == ([0], [6 * BYTES])
        assert values(it, "pod_units") == [4, 2]
        assert metric(it, "pod_info") == [
            f'gpushare_device_plugin_pod_info{{namespace="default",pod="{one["metadata"]["name"]}",state="allocated",uid="{of}"}} 1.0'
            for one, of in sorted(((pod, uid), (beside, other)), key=lambda pair: pair[1])
        ]
        assert values(it, "healthy") == [float(it.plugin.status.report()[0])]
        await uses(it, uid, 4097)
        await until(lambda: values(it, "pods_exceeding") == [1] and reported(it))
        assert reported(it) == [
            "It uses 4097 MiB of GPU 0 and requested 4096 MiB there: other pods of the GPU may run out of memory; reduce its use, "
            "or request more"
        ]
        await uses(it, uid, 4000)
        await until(lambda: it.plugin._memory.use.by_pod[uid, it.inventory.by_index[0].uuid] == 4000 * 1024 * 1024)
        assert values(it, "pods_exceeding") == [1], "a little below its units it may be above them at the next reading"
        await uses(it, uid, 3000)
        await until(lambda: values(it, "pods_exceeding") == [0])
        await it.api.remove(path_of(pod))


async def test_without_isolation_nobody_exceeds_and_nobody_is_evicted() -> None:
    async with world(16 * GIB, isolation="none", overuse="evict", overuse_grace=0.0) as it:
        pod = memory(it.inventory, 0, 4)
        uid = await admitted(it, pod)
        await uses(it, uid, 8192)
        await until(lambda: values(it, "pod_memory_used_bytes") == [8 * BYTES])
        readings = it.nvml.reads
        await until(lambda: it.nvml.reads > readings + 10)
        assert (values(it, "pods_exceeding"), reported(it)) == ([0], [])
        assert "gpushare/evictions" not in it.api.objects[NODE]["metadata"]["annotations"]


async def test_whole_gpus_and_processes_that_are_nobodys_are_no_excess() -> None:
    async with world(16 * GIB) as it:
        uid = await admitted(it, whole(it.inventory, 0))
        await uses(it, uid, 15 * GIB)
        await uses(it, "", 512, pid=9)
        await until(lambda: values(it, "gpu_memory_used_bytes") == [15.5 * BYTES])
        await until(lambda: values(it, "pod_memory_used_bytes") == [15 * BYTES])
        assert values(it, "pods_exceeding") == [0]


async def test_a_size_that_the_driver_does_not_report_is_nobodys() -> None:
    async with world(16 * GIB) as it:
        uid = await admitted(it, memory(it.inventory, 0, 4))
        it.host.processes[7] = 7, uid
        it.nvml.using[it.inventory.by_index[0].uuid] = [(7, None)]
        await until(lambda: values(it, "gpu_memory_used_bytes") == [0])
        assert values(it, "pod_memory_used_bytes") == []
