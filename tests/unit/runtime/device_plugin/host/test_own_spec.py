# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Our own CDI spec: what is in it, when it is written, and that nothing else reaches kubelet. A program stands in for nvidia-ctk."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpushare_runtime.device_plugin.gpu.discovery import NvmlError
from gpushare_runtime.device_plugin.host.cdi_specs import SpecError, SpecFolders
from gpushare_runtime.device_plugin.host.own_spec import HOOKS, HostFiles, OwnSpec, OwnSpecError, on_host
from gpushare_runtime.device_plugin.kubelet.proto import deviceplugin_pb2 as pb
from unit.fakes.runtime.device_plugin.fake_ctk import CtkHost
from unit.fakes.runtime.device_plugin.fake_nvml import facts
from unit.fakes.runtime.device_plugin.local_pods import memory
from unit.fakes.runtime.device_plugin.plugin import GIB, World, health, healthy, world
from unit.fakes.runtime.kube.fake_api import until
from unit.fakes.runtime.pods import gpu
from unit.golden import Golden

OWN, NVIDIA = "gpushare.kubernetes/gpu", "nvidia.com/gpu"
UUIDS = [facts(index, 0).uuid for index in range(3)]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CtkHost:
    made = CtkHost(tmp_path)
    monkeypatch.setenv("PATH", str(made.programs), prepend=os.pathsep)
    made.gpus({UUIDS[0]: 0, UUIDS[1]: 1})
    return made


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "cdi").mkdir(mode=0o755)
    return tmp_path / "cdi"


def test_it_has_a_device_for_each_gpu_and_the_paths_of_the_host(host: CtkHost, folder: Path) -> None:
    OwnSpec(folder / "gpushare.json", host.files, folder).write(())
    written = (folder / "gpushare.json").read_text()
    assert str(host.root) not in written
    spec = json.loads(written)
    assert (spec["kind"], [one["name"] for one in spec["devices"]]) == (OWN, UUIDS[:2])
    first = spec["devices"][0]["containerEdits"]
    assert first["deviceNodes"] == [{"path": "/dev/nvidia0", "hostPath": "/dev/nvidia0"}]
    assert first["hooks"][0]["args"] == ["nvidia-cdi-hook", "chmod", "--driver-root", "/run/nvidia/driver", "--gpu-id", UUIDS[0]]
    common = spec["containerEdits"]
    assert [one["hostPath"] for one in common["mounts"]] == ["/run/nvidia/driver/usr/lib64/libcuda.so.535.261.03"]
    # The host's program does not know the other hook, and would fail.
    assert [(one["path"], one["args"][1:]) for one in common["hooks"]] == [(HOOKS[0], ["update-ldcache", "--folder=/run/nvidia/driver"])]
    assert stat.S_IMODE((folder / "gpushare.json").stat().st_mode) == 0o644
    assert os.listdir(folder) == ["gpushare.json"]


def test_mig_instances_are_named_by_their_own_uuids_with_their_own_nodes(host: CtkHost, folder: Path) -> None:
    first, second = (gpu(at, 9, uuid=f"MIG-{at}", minor=1, caps=(66 + 9 * at, 67 + 9 * at)) for at in range(2))
    host.gpus({UUIDS[0]: (0,), **{one.uuid: (one.minor, *one.caps) for one in (first, second)}})
    OwnSpec(folder / "gpushare.json", host.files, folder).write((UUIDS[0], first.uuid, second.uuid))
    found = replace(SpecFolders((str(folder),), in_container=True).read(), own_file=str(folder / "gpushare.json"))
    assert [found.problem(one, "535.261.03", OWN) for one in (first, second)] == ["", ""]
    assert "has nvidia-cap66, nvidia-cap67 for it instead of nvidia-cap7 and nvidia-cap8" in (
        found.problem(replace(first, caps=(7, 8)), "535.261.03", OWN)
    )


def test_the_hook_of_a_toolkit_beside_the_driver(host: CtkHost, folder: Path) -> None:
    """As on GKE, where the GPU Operator installs both into one folder."""
    root = "/home/kubernetes/bin/nvidia"
    toolkit = host.files.at(root) / "toolkit"
    (host.files.at(root) / "lib64").mkdir(parents=True)
    (host.files.at(root) / "lib64/libnvidia-ml.so.1").touch()
    host.files.at(HOOKS[0]).parent.rename(toolkit)
    OwnSpec(folder / "gpushare.json", HostFiles(host.root, root), folder).write(())
    hooks = json.loads((folder / "gpushare.json").read_text())["containerEdits"]["hooks"]
    assert [one["path"] for one in hooks] == [f"{root}/toolkit/nvidia-cdi-hook"]


def test_a_driver_on_the_host_itself(tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden) -> None:
    made = CtkHost(tmp_path, driver="/")
    monkeypatch.setenv("PATH", str(made.programs), prepend=os.pathsep)
    made.gpus({UUIDS[0]: 0})
    OwnSpec(folder / "gpushare.json", made.files, folder).write(())
    assert json.loads((folder / "gpushare.json").read_text())["containerEdits"]["mounts"][0]["hostPath"] == (
        "/usr/lib64/libcuda.so.535.261.03"
    )
    with golden.raised(OwnSpecError):
        OwnSpec(folder / "gpushare.json", HostFiles(made.root, "/opt/driver"), folder).write(())


def test_what_it_does_not_know_is_no_spec(golden: Golden) -> None:
    for text in (
        b"",
        b"[]",
        b'{"devices": [3], "containerEdits": {}}',
        b'{"devices":[],"containerEdits":{"hooks":[{"args":["x"]}]}}',
        b"\xff",
    ):
        with golden.raised(SpecError):
            on_host(text, "/host", b"")


def test_why_it_cannot_be_written_and_that_what_is_there_stays(
    host: CtkHost, folder: Path, monkeypatch: pytest.MonkeyPatch, golden: Golden
) -> None:
    path = folder / "gpushare.json"
    own = OwnSpec(path, host.files, folder)
    own.write(())
    before = path.read_bytes()

    def why(uuids: list[str] | None = None) -> str:
        with pytest.raises(OwnSpecError) as found:
            own.write(uuids or [])
        assert path.read_bytes() == before
        return str(found.value)

    golden(why(UUIDS[2:]))
    host.gpus("failed to initialize NVML: Driver Not Loaded")
    assert "Driver Not Loaded" in why()
    host.gpus({})
    golden(why())
    host.gpus({UUIDS[2]: 5})
    folder.chmod(0o777)
    assert "mode 0777; expected a folder of root that others may not write" in why()
    folder.chmod(0o755)
    hook = host.files.at(HOOKS[0])
    hook.chmod(0o644)
    assert "install NVIDIA's container toolkit" in why()
    hook.chmod(0o755)
    monkeypatch.setenv("PATH", "/nowhere")
    assert "nvidia-ctk: " in why()
    assert own.intact()


def test_what_others_put_in_its_place_is_seen(host: CtkHost, folder: Path) -> None:
    path = folder / "gpushare.json"
    own = OwnSpec(path, host.files, folder)
    assert not own.intact()
    own.write(())
    assert own.intact()
    good = path.read_bytes()
    path.write_bytes(good[:50])
    assert not own.intact()
    path.unlink()
    path.symlink_to(folder / "elsewhere")
    (folder / "elsewhere").write_bytes(good)
    assert not own.intact()
    own.write(())
    assert own.intact()
    assert not path.is_symlink()
    # Another process of the plugin takes over a file with the same bytes.
    other = OwnSpec(path, host.files, folder)
    other.write(())
    assert other.intact()


# The whole plugin.


def own_settings(host: CtkHost, folder: Path) -> dict[str, Any]:
    return {"strategy": "cdi", "cdi_folders": (str(folder),), "cdi_dir": folder, "host_root": host.root, "in_container": True}


def named(folder: Path) -> list[str]:
    found = SpecFolders((str(folder),), in_container=True).read()
    return sorted(found.names(OWN))


def kind_of(it: World) -> str:
    known = it.plugin.node.devices.inventory
    return known.cdi_kind if known else "unknown"


async def given(it: World) -> pb.ContainerAllocateResponse:
    """What the container of a pod with 2 units of the first GPU gets."""
    await it.kubelet.manager.admit(await it.bind(memory(it.inventory, 0, 2)))
    return it.kubelet.responses[-1]


async def test_it_is_there_before_kubelet_hears_of_a_gpu_and_follows_the_gpus(host: CtkHost, folder: Path) -> None:
    async with world(4 * GIB, 4 * GIB, **own_settings(host, folder)) as it:
        assert named(folder) == UUIDS[:2]
        assert it.kubelet.lists["aliyun.com/gpu-mem"], "the first list has healthy ids"
        await until(lambda: healthy(it) == 8)
        assert kind_of(it) == OWN
        [device] = (await given(it)).cdi_devices
        assert device.name == f"{OWN}={UUIDS[0]}"
        # The second GPU is exchanged: the same device node, another UUID.
        host.gpus({UUIDS[0]: 0, UUIDS[2]: 1})
        it.nvml.gpus[1] = facts(1, 4 * GIB, uuid=UUIDS[2])
        await until(lambda: named(folder) == [UUIDS[0], UUIDS[2]])
        await until(lambda: healthy(it) == 8 and health(it, 1) == "ok")
        # One is lost: the others do not wait for it.
        it.nvml.lost = {1}
        host.gpus({UUIDS[0]: 0})
        await until(lambda: healthy(it) == 4)
        assert health(it, 0) == "ok"
        # Another driver.
        it.nvml.lost = set()
        host.gpus({UUIDS[0]: 0, UUIDS[2]: 1})
        host.driver("580.65.06")
        it.nvml.version = "580.65.06"
        it.nvml.failure = NvmlError("the driver is away")
        # The ids of the pod.
        await until(lambda: healthy(it) == 2)
        it.nvml.failure = None
        await until(lambda: healthy(it) == 8)
        assert "580.65.06" in (folder / "gpushare.json").read_text()


async def test_a_half_written_and_a_foreign_spec_do_not_stay_and_name_no_gpu(host: CtkHost, folder: Path) -> None:
    async with world(4 * GIB, 4 * GIB, **own_settings(host, folder)) as it:
        await until(lambda: healthy(it) == 8)
        path = folder / "gpushare.json"
        good = path.read_bytes()
        for bad in (good[:100], good.replace(b"/dev/nvidia1", b"/dev/nvidia0"), b"x: y: z"):
            path.write_bytes(bad)
            await until(lambda: path.read_bytes() == good)
            await until(lambda: healthy(it) == 8)
        # One that cannot be written again is named to kubelet by no id.
        host.gpus("no NVML")
        path.write_bytes(good.replace(b'"/dev/nvidiactl"', b'"/dev/sda"'))
        await until(lambda: healthy(it) == 0)
        await until(lambda: "is not what the device plugin has written" in health(it, 0))
        await until(lambda: "no NVML" in health(it, 0))
        host.gpus({UUIDS[0]: 0, UUIDS[1]: 1})
        await until(lambda: path.read_bytes() == good, seconds=20)
        await until(lambda: healthy(it) == 8)
        # Another file of the folder with our devices: the container runtime uses neither.
        (folder / "x.json").write_bytes(good)
        await until(lambda: "both name it" in health(it, 0))
        (folder / "x.json").unlink()
        await until(lambda: healthy(it) == 8)


async def test_a_spec_of_nvidias_serves_until_it_no_longer_fits(host: CtkHost, folder: Path) -> None:
    def nvidias(*minors: int) -> None:
        devices = [{"name": UUIDS[minor], "containerEdits": {"deviceNodes": [{"path": f"/dev/nvidia{minor}"}]}} for minor in minors]
        text = json.dumps({"cdiVersion": "0.6.0", "kind": NVIDIA, "devices": devices})
        (folder / ".new").write_text(text)
        (folder / ".new").rename(folder / "nvidia.yaml")

    nvidias(0, 1)
    async with world(4 * GIB, 4 * GIB, **own_settings(host, folder)) as it:
        await until(lambda: healthy(it) == 8)
        assert (kind_of(it), named(folder)) == ("", [])
        (folder / "nvidia.yaml").unlink()
        await until(lambda: named(folder) == UUIDS[:2])
        await until(lambda: healthy(it) == 8 and kind_of(it) == OWN)
        await until(lambda: OWN in (Path(it.plugin._settings.state) / "held.json").read_text())
        await it.stop()
        # The next process keeps to it, also after a reboot, which empties the folder.
        (folder / "gpushare.json").unlink()
        nvidias(0, 1)
        it.start()
        await until(lambda: named(folder) == UUIDS[:2])
        await until(lambda: healthy(it) == 8 and kind_of(it) == OWN)
