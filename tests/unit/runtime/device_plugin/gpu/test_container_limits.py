# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What the programs of a container see of their pod's limit: `total` is what the driver reports to them, as NVIDIA measured it."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpushare_runtime.daemon import inotify
from gpushare_runtime.daemon.inotify import FolderWatch
from gpushare_runtime.device_plugin.gpu import pod_limits
from gpushare_runtime.device_plugin.gpu.container_limits import AGAIN_SECONDS, ContainerLimits
from gpushare_runtime.device_plugin.gpu.discovery import NvmlError
from gpushare_runtime.device_plugin.gpu.dmem import limits_of, region_of
from gpushare_runtime.device_plugin.host.pod_processes import HostProcesses
from unit.fakes.runtime.device_plugin.fake_nvml import FakeNvml
from unit.fakes.runtime.device_plugin.local_pods import bound, memory
from unit.fakes.runtime.device_plugin.plugin import World, admitted, start, world
from unit.fakes.runtime.kube.fake_api import until
from unit.fakes.runtime.pods import container
from unit.golden import Golden

GIB = 1024
BYTES = 1024**3
WHOLE = 16 * GIB
POD = "kubepods-burstable-pod1.slice"
# As containerd and CRI-O name it with systemd, and any runtime with cgroupfs.
CONTAINERS = (f"cri-containerd-{'ab' * 32}.scope", f"crio-{'ab' * 32}.scope", f"docker-{'ab' * 32}.scope", "ab" * 32)


class Pod:
    """A pod's group with a limit, on two GPUs of 16 GiB each."""

    def __init__(self, root: Path, **files: str) -> None:
        self.nvml = FakeNvml(WHOLE, WHOLE)
        self.nvml.unlimited = None
        self.root = root
        self.folder = self.group(POD)
        pci = {gpu.uuid: gpu.pci for gpu in self.nvml.gpus}
        self.limits = ContainerLimits(self.nvml, HostProcesses.groups_in, lambda gpu: pci.get(gpu, ""))

    def group(self, path: str, *, dmem: bool = True) -> str:
        """dmem: the kernel's controller counts in it, as runc has it."""
        folder = self.root / path
        folder.mkdir(parents=True, exist_ok=True)
        if dmem:
            (folder / "dmem.max").write_text(self.nvml.dmem(str(folder)))
        return str(folder)

    def container(self, name: str = "a", *, dmem: bool = True) -> str:
        return self.group(f"{POD}/{name}", dmem=dmem)

    def limited(self, units: Mapping[int, int]) -> None:
        """The plugin has set the pod's limit: GPU index → GiB."""
        due = {self.nvml.gpus[index].uuid: count * BYTES for index, count in units.items()}
        for uuid, most in due.items():
            self.nvml.limit_memory(uuid, self.folder, most)
        self.limits.took(self.folder, due)

    def seen(self, name: str = "a", index: int = 0) -> int:
        """GiB, by a program in that group of the pod."""
        return self.nvml.total(index, f"{self.folder}/{name}") // GIB


@pytest.fixture
def pod(tmp_path: Path) -> Pod:
    return Pod(tmp_path)


@pytest.mark.parametrize("name", CONTAINERS)
def test_a_program_sees_the_units_of_its_pod(pod: Pod, name: str) -> None:
    pod.container(name)
    pod.nvml.limit_memory(pod.nvml.gpus[0].uuid, pod.folder, 6 * BYTES)
    assert pod.seen(name) == 16, "with the pod's limit alone"
    pod.limited({0: 6})
    assert (pod.seen(name), pod.seen(name, 1)) == (6, 16)
    pod.limited({0: 4, 1: 5})
    assert (pod.seen(name), pod.seen(name, 1)) == (4, 5)
    pod.container("next")
    pod.limited({0: 8})
    assert (pod.seen(name), pod.seen(name, 1)) == (pod.seen("next"), pod.seen("next", 1)) == (8, 5)


def test_with_the_drivers_other_back_end_a_container_has_no_limit_of_its_own(pod: Pod) -> None:
    """It would count instead of the pod's, so that two containers had twice the pod's units."""
    uuid = pod.nvml.gpus[0].uuid
    # The driver's own accounting on an old kernel; then on one that has dmem and does not count this GPU, or has no limit of the pod.
    for line in (
        None,
        "",
        "nvidia/00000000:ff:00.0/vidmem 6442450944\n",
        f"{region_of(pod.nvml.gpus[0].pci)} max\n",
        "drm/0000:03:00.0/vram0\n",
    ):
        for folder in (pod.folder, pod.container()):
            Path(folder, "dmem.max").unlink(missing_ok=True)
        pod.nvml.limit_memory(uuid, pod.folder, 6 * BYTES)
        assert pod.seen() == 6, "that of the nearest group with one"
        if line is not None:
            for folder in (pod.folder, f"{pod.folder}/a"):
                Path(folder, "dmem.max").write_text(line)
        pod.limits.took(pod.folder, {uuid: 6 * BYTES})
        assert pod.nvml.limits == {(uuid, pod.folder): 6 * BYTES}, line


def test_where_dmem_does_not_count_in_the_containers_group_nothing_is_set(pod: Pod) -> None:
    """As with crun."""
    pod.container(dmem=False)
    pod.limited({0: 6})
    assert (pod.seen(), len(pod.nvml.limits)) == (6, 1)


def test_what_a_container_makes_is_its_own(pod: Pod, tmp_path: Path) -> None:
    pod.container()
    pod.container("a/own/deeper")
    pod.container("a/plain", dmem=False)
    elsewhere = pod.group("system.slice/x")
    Path(pod.folder, "link").symlink_to(elsewhere)
    Path(pod.folder, "file").touch()
    odd = pod.container("b\udcff\x1b[31m \u2028")
    pod.limited({0: 6})
    groups = {group for _, group in pod.nvml.limits}
    assert groups == {pod.folder, f"{pod.folder}/a", odd}
    assert (pod.seen("a/plain"), pod.seen("a/own/deeper")) == (6, 16)


def test_a_pod_with_more_groups_than_containers_costs_no_more(pod: Pod) -> None:
    for number in range(600):
        pod.container(str(number))
    pod.limited({0: 6})
    assert len(pod.nvml.limits) == 1 + 512


@asynccontextmanager
async def following(pod: Pod, seconds: float = 0.0) -> AsyncIterator[None]:
    """The plugin's loop: it looks when the watch tells it, and otherwise after so many seconds, 0 for never."""
    async with FolderWatch() as watch:

        async def look() -> None:
            while True:
                seen = watch.changes.count
                await pod.limits.follow(watch, asyncio.get_running_loop().time())
                await watch.changes.after(seen, seconds or None)

        task = asyncio.create_task(look())
        yield
        task.cancel()


async def test_a_container_that_appears_is_limited_at_once_and_so_is_the_next_one(pod: Pod) -> None:
    pod.limited({0: 6})
    async with following(pod):
        pod.container("before the watch")
        await until(lambda: pod.seen("before the watch") == 6)
        # A file cannot appear at once with its folder here, as it does in the kernel.
        whole = pod.root / "made"
        for name in ("first", "second"):
            whole.mkdir()
            (whole / "dmem.max").write_text(pod.nvml.dmem(str(whole)))
            whole.rename(Path(pod.folder, name))
            await until(lambda name=name: pod.seen(name) == 6)
            shutil.rmtree(Path(pod.folder, name))


async def test_a_group_in_which_dmem_counts_only_later_is_looked_at_again(pod: Pod) -> None:
    """systemd makes a scope, and the runtime enables the controllers for it afterwards: no event tells of that."""
    pod.limited({0: 6})
    async with FolderWatch() as watch:
        await pod.limits.follow(watch, 0.0)
        pod.container(dmem=False)
        await until(lambda: watch.changes.count)
        await pod.limits.follow(watch, 10.0)
        pod.container()
        await pod.limits.follow(watch, 10.0 + AGAIN_SECONDS)
        assert pod.seen() == 6
        # Then only an event, or the next comparison, is a reason to look.
        pod.nvml.limit_memory(pod.nvml.gpus[0].uuid, f"{pod.folder}/a", None)
        await pod.limits.follow(watch, 11.0 + AGAIN_SECONDS)
        assert pod.seen() == 16


async def test_a_pod_that_has_ended_is_forgotten(pod: Pod) -> None:
    pod.container()
    pod.limited({0: 6})
    async with following(pod, 0.02):
        shutil.rmtree(pod.folder)
        await until(lambda: not pod.limits._due)


async def test_without_inotify_it_looks_again_and_again(
    pod: Pod, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(inotify, "_ONLY_FOLDERS", -1)
    pod.limited({0: 6})
    async with following(pod, 0.02):
        for name in ("a", "b"):
            pod.container(name)
            await until(lambda name=name: pod.seen(name) == 6)
    assert len([one for one in caplog.records if "inotify does not watch" in one.getMessage()]) == 1


def test_a_container_whose_limit_cannot_be_set_is_reported_once_and_tried_again(
    pod: Pod, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, golden: Golden
) -> None:
    pod.container("good")
    pod.container("x" * 200)
    limit = pod.nvml.limit_memory

    def fails(uuid: str, group: str, most: int | None) -> None:
        if "xxx" in group:
            raise NvmlError("the driver is busy")
        limit(uuid, group, most)

    for _ in range(3):
        monkeypatch.setattr(pod.nvml, "limit_memory", fails)
        pod.limited({0: 6})
    assert (pod.seen("good"), pod.seen("x" * 200)) == (6, 16)
    (message,) = caplog.messages
    golden(message)
    assert len(message) < 300
    monkeypatch.setattr(pod.nvml, "limit_memory", limit)
    pod.limited({0: 6})
    assert pod.seen("x" * 200) == 6
    # It answers and sets nothing.
    pod.container("next")
    pod.nvml.ignored = True
    pod.limits.took(pod.folder, {pod.nvml.gpus[0].uuid: 6 * BYTES})
    assert "the kernel has a limit of None bytes after one of 6442450944 was set" in caplog.messages[1]


def test_a_container_that_ends_meanwhile_is_no_error(pod: Pod, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    pod.container()
    limit = pod.nvml.limit_memory

    def ended(uuid: str, group: str, most: int | None) -> None:
        if group != pod.folder:
            shutil.rmtree(group)
            raise NvmlError("Not Found")
        limit(uuid, group, most)

    monkeypatch.setattr(pod.nvml, "limit_memory", ended)
    pod.limited({0: 6})
    assert not caplog.messages


@pytest.mark.parametrize(
    "text",
    [
        "",
        "max",
        "a b c\n",
        "nvidia/00000000:3b:00.0/vidmem\n",
        "nvidia/00000000:3b:00.0/vidmem -5\n",
        f"nvidia/00000000:3b:00.0/vidmem {'9' * 5000}\n",
        "\xff\n",
    ],
)
def test_a_file_of_another_form_says_no_limit(tmp_path: Path, text: str) -> None:
    (tmp_path / "dmem.max").write_bytes(text.encode("latin-1"))
    assert not any(limits_of(str(tmp_path)).values())


def test_a_region_is_named_by_the_gpus_address() -> None:
    """The line of NVIDIA's page "Per-GPU Compute and Memory Limits with MPS" (Dynamo, read on 2026-11-29)."""
    assert region_of("0000:02:00.0") == "nvidia/00000000:02:00.0/vidmem"
    assert region_of("10000:E1:00.0") == "nvidia/00010000:e1:00.0/vidmem"


# The whole plugin.


def groups(it: World, uid: str, *names: str) -> None:
    """The pod's group, and those of such containers, as kubelet and runc make them."""
    for name in ("", *names):
        folder = Path(it.host.root, "kubepods", f"pod{uid}", name)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "dmem.max").write_text(it.nvml.dmem(str(folder)))


def seen(it: World, uid: str, name: str, index: int = 0) -> int:
    return it.nvml.total(index, f"{it.host.root}/kubepods/pod{uid}/{name}") // GIB


async def test_each_container_of_a_pod_sees_what_the_pod_may_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_limits, "INTERVAL_SECONDS", 3600.0)
    async with world(16 * GIB, isolation="auto") as it:
        await until(lambda: it.plugin._limits.interval == 3600.0)
        pod = bound(it.inventory, {0: {0: 3}, 1: {0: 5}}, container("a", mem=3), container("b", mem=5))
        uid = await admitted(it, pod)
        groups(it, uid, "sandbox")
        await start(it, pod)
        groups(it, uid, "first")
        await until(lambda: seen(it, uid, "first") == 8)
        await start(it, pod, 1)
        groups(it, uid, "second")
        await until(lambda: seen(it, uid, "second") == 8)
        assert seen(it, uid, "first") == 8


async def test_a_container_that_started_while_no_plugin_ran_is_limited_by_the_next_one() -> None:
    async with world(16 * GIB, isolation="auto") as it:
        pod = memory(it.inventory, 0, 6)
        uid = await admitted(it, pod)
        groups(it, uid)
        await start(it, pod)
        await it.stop()
        groups(it, uid, "main")
        assert seen(it, uid, "main") == 16
        it.start()
        await until(lambda: seen(it, uid, "main") == 6)


async def test_a_limit_that_a_container_lost_is_set_again_at_the_next_comparison(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pod_limits, "INTERVAL_SECONDS", 0.05)
    async with world(16 * GIB, isolation="auto") as it:
        pod = memory(it.inventory, 0, 6)
        uid = await admitted(it, pod)
        groups(it, uid)
        await start(it, pod)
        groups(it, uid, "main")
        await until(lambda: seen(it, uid, "main") == 6)
        it.nvml.limit_memory(it.inventory.gpus[0].uuid, f"{it.host.root}/kubepods/pod{uid}/main", None)
        await until(lambda: seen(it, uid, "main") == 6)


@pytest.mark.parametrize("mode", ["watch", "none"])
async def test_without_the_drivers_limits_no_group_is_touched(mode: str) -> None:
    async with world(16 * GIB, isolation=mode) as it:
        pod = memory(it.inventory, 0, 6)
        uid = await admitted(it, pod)
        groups(it, uid, "main")
        await start(it, pod)
        await it.stays(lambda: seen(it, uid, "main") == 16 and not it.nvml.limits)
