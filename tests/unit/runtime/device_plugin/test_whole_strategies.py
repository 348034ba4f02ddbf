# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The plugin as a whole by each device strategy: what kubelet gets over gRPC, and what a CDI spec decides while the plugin runs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpushare_runtime.core.inventory import Inventory
from gpushare_runtime.daemon.runner import FatalError
from gpushare_runtime.device_plugin.kubelet.proto import deviceplugin_pb2 as pb
from gpushare_runtime.device_plugin.kubelet.server import ResourceService
from gpushare_runtime.device_plugin.node.counters import Counters
from gpushare_runtime.device_plugin.options import parse_arguments
from unit.fakes.runtime.device_plugin.cdi_folder import write
from unit.fakes.runtime.device_plugin.local_pods import memory
from unit.fakes.runtime.device_plugin.plugin import GIB, MEMORY, NODE, World, health, healthy, world
from unit.fakes.runtime.device_plugin.plugin import running_pod as admitted
from unit.fakes.runtime.kube.fake_api import until


def strategy_of(it: World) -> str:
    text = it.api.objects[NODE]["metadata"]["annotations"].get("gpushare/gpus")
    return Inventory.from_json(text).strategy if text else ""


def node_events(it: World) -> list[dict[str, Any]]:
    made = [value for path, value in it.api.objects.items() if "/events/" in path]
    return [event for event in made if event["involvedObject"]["kind"] == "Node"]


async def pod(it: World, index: int) -> pb.ContainerAllocateResponse:
    """What the container of a pod with 2 units of this GPU gets."""
    await it.kubelet.manager.admit(await it.bind(memory(it.inventory, index, 2, name=f"p{len(it.kubelet.responses)}")))
    return it.kubelet.responses[-1]


def aliyun(response: pb.ContainerAllocateResponse) -> set[str]:
    return {name for name in response.envs if name.startswith("ALIYUN_COM_GPU_MEM_")}


ALIYUN = {f"ALIYUN_COM_GPU_MEM_{name}" for name in ("IDX", "DEV", "POD", "CONTAINER")}


async def test_cdi_devices_over_grpc(cdi: Path) -> None:
    write(cdi, 0, 1)
    async with world(4 * GIB, 4 * GIB, strategy="cdi", cdi_folders=(str(cdi),)) as it:
        response = await pod(it, 1)
        assert [device.name for device in response.cdi_devices] == [f"nvidia.com/gpu={it.inventory.gpus[1].uuid}"]
        assert (list(response.mounts), list(response.devices), response.envs["NVIDIA_VISIBLE_DEVICES"]) == ([], [], "void")
        assert (aliyun(response), response.envs["ALIYUN_COM_GPU_MEM_IDX"]) == (ALIYUN, "1")
        await until(lambda: strategy_of(it) == "cdi")


async def test_mounts_over_grpc() -> None:
    async with world(4 * GIB, 4 * GIB, strategy="volume-mounts") as it:
        response = await pod(it, 1)
        path = f"/var/run/nvidia-container-devices/{it.inventory.gpus[1].uuid}"
        assert [(m.container_path, m.host_path, m.read_only) for m in response.mounts] == [(path, "/dev/null", True)]
        assert (list(response.cdi_devices), response.envs["NVIDIA_VISIBLE_DEVICES"]) == ([], "/var/run/nvidia-container-devices")
        assert aliyun(response) == ALIYUN
        await until(lambda: strategy_of(it) == "volume-mounts")


async def test_device_nodes_that_the_host_has(tmp_path: Path) -> None:
    for name in ("nvidia1", "nvidiactl", "nvidia7"):
        (tmp_path / name).touch()
    async with world(4 * GIB, 4 * GIB) as it:
        service = ResourceService(MEMORY, it.plugin.node, lambda: None, Counters(), dev=tmp_path)
        ids = [i for i in it.kubelet.lists[MEMORY][-1] if i.startswith(it.inventory.gpus[1].uuid)][:2]
        asked = pb.ContainerAllocateRequest(devices_ids=ids)
        answer = await service.Allocate(pb.AllocateRequest(container_requests=[asked]), None)
        assert [(d.container_path, d.host_path, d.permissions) for d in answer.container_responses[0].devices] == [
            # Where the plugin looks is its own affair: kubelet gets the host's names.
            ("/dev/nvidia1", "/dev/nvidia1", "rw"),
            ("/dev/nvidiactl", "/dev/nvidiactl", "rw"),
        ]


async def test_nothing_is_registered_before_a_spec_names_every_gpu(cdi: Path) -> None:
    write(cdi, 0)
    async with world(4 * GIB, 4 * GIB, strategy="cdi", cdi_folders=(str(cdi),), registered=False) as it:
        await until(lambda: health(it, 1).startswith("no CDI spec in "))
        assert health(it, 0) == "ok"
        wrong = f"degraded: CDI: GPU 1: no CDI spec in {cdi} names nvidia.com/gpu={it.inventory.gpus[1].uuid}"
        await until(lambda: wrong in it.plugin.status.report()[1])
        assert not it.plugin.status.report()[0]
        await until(lambda: [event["reason"] for event in node_events(it)] == ["GPUShareCDISpecUnusable"])
        await it.stays(lambda: it.kubelet.registrations == [])
        write(cdi, 0, 1)
        await it.registered()
        assert healthy(it) == 8
        assert not it.plugin.node.devices.unusable_specs()
        await until(lambda: "ok: CDI: a spec names every GPU" in it.plugin.status.report()[1])


async def test_a_stale_spec_takes_its_gpus_from_new_pods_until_it_is_made_again(cdi: Path) -> None:
    write(cdi, 0, 1)
    async with world(4 * GIB, 4 * GIB, strategy="cdi", cdi_folders=(str(cdi),)) as it:
        write(cdi, 0)
        await until(lambda: healthy(it) == 4)
        await until(lambda: health(it, 1).startswith("no CDI spec in "))
        text = "".join(it.plugin.metrics_text())
        assert 'gpushare_device_plugin_strategy_info{strategy="cdi"} 1.0' in text
        first, second = (gpu.uuid for gpu in it.inventory.gpus)
        assert f'gpushare_device_plugin_gpu_cdi_usable{{gpu="0",uuid="{first}"}} 1.0' in text
        assert f'gpushare_device_plugin_gpu_cdi_usable{{gpu="1",uuid="{second}"}} 0.0' in text
        # A driver upgrade changes nothing in the folder.
        write(cdi, 0, 1)
        await until(lambda: healthy(it) == 8)
        (cdi.parent / "libcuda.so.1").unlink()
        await until(lambda: healthy(it) == 0)
        await until(lambda: "is stale, the host has no" in health(it, 0))
        (cdi.parent / "libcuda.so.1").touch()
        await until(lambda: healthy(it) == 8 and health(it, 0) == "ok")


async def test_a_gpu_that_does_not_answer_holds_up_nothing(cdi: Path) -> None:
    write(cdi, 0)
    async with world(4 * GIB, 4 * GIB, strategy="cdi", cdi_folders=(str(cdi),), registered=False) as it:
        await until(lambda: it.plugin.node.devices.unusable_specs())
        it.nvml.lost = {1}
        await it.registered()
        assert healthy(it) == 4


async def test_a_plugin_that_starts_beside_pods_serves_them_and_no_others(cdi: Path) -> None:
    write(cdi, 0, 1)
    async with world(8 * GIB, 8 * GIB, strategy="cdi", cdi_folders=(str(cdi),)) as it:
        await admitted(it)
        await it.stop()
        (cdi / "nvidia.yaml").unlink()
        it.start()
        await until(lambda: len(it.kubelet.registrations) == 2)
        # The ids of the pod, until it releases them.
        await until(lambda: healthy(it) == 6)
        write(cdi, 0, 1)
        await until(lambda: healthy(it) == 16)


async def test_another_strategy_waits_until_the_pods_have_gone(cdi: Path) -> None:
    write(cdi, 0, 1)
    async with world(8 * GIB, 8 * GIB, strategy="volume-mounts", cdi_folders=(str(cdi),)) as it:
        await admitted(it)
        await until(lambda: (it.plugin._settings.state / "held.json").exists())
        await it.stop()
        it.start(strategy="cdi")
        with pytest.raises(FatalError, match=r"1 pods have GPUs by the device strategy volume-mounts .* should use cdi") as found:
            await it.task
        assert found.value.restart
        it.live.clear()
        it.start()
        await until(lambda: strategy_of(it) == "cdi")


@pytest.mark.parametrize(
    ("arguments", "strategy", "folders", "notes"),
    [
        ([], "envvar", ("/etc/cdi", "/var/run/cdi"), 0),
        (["--device-strategy", "cdi", "--cdi-spec-dir", "/a", "--cdi-spec-dir=/b"], "cdi", ("/a", "/b"), 0),
        (["--device-strategy=auto"], "volume-mounts", ("/etc/cdi", "/var/run/cdi"), 1),
        # The node decides, preparation.py.
        (["--device-strategy=auto", "--in-container", "--cdi-dir=/c", "--host-root=/host"], "volume-mounts", ("/c",), 0),
    ],
)
def test_options(arguments: list[str], strategy: str, folders: tuple[str, ...], notes: int) -> None:
    settings = parse_arguments(["--node-name", "n", *arguments])
    assert (settings.strategy, settings.cdi_folders, len(settings.notes)) == (strategy, folders, notes)


@pytest.mark.parametrize(
    "arguments", [["--device-strategy", "legacy"], ["--cdi-spec-dir", "relative"], ["--driver-root", "x"], ["--cdi-dir", "without"]]
)
def test_options_that_are_none(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        parse_arguments(["--node-name", "n", *arguments])
    assert arguments[1] in capsys.readouterr().err
