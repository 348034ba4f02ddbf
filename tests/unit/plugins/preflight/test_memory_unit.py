# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Which unit of memory preflight rejects: too many ids for kubelet, or another one while pods have memory."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._daemon.service import apart
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts.kubelet_checkpoint import Sharing, recorded, sharing
from ansible_collections.gpushare.kubernetes.plugins.module_utils._formats import config_document
from ansible_collections.gpushare.kubernetes.plugins.module_utils._formats.finding import Finding, HostFindings
from ansible_collections.gpushare.kubernetes.plugins.module_utils._formats.quantity import UNITS
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.host import Host
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._preflight.memory_unit import (
    MESSAGE_BYTES,
    count,
    judge_unit,
    list_bytes,
    smallest_fitting,
)
from hypothesis import given
from hypothesis import strategies as st

from gpushare_runtime.core import quantity
from gpushare_runtime.core.unit_ids import unit_id
from gpushare_runtime.device_plugin.gpu import discovery as runtime
from gpushare_runtime.device_plugin.kubelet.proto import deviceplugin_pb2 as pb
from unit.fakes.plugins.fake_root import FakeRoot, kubelet

UUID = "GPU-00000000-0000-4000-8000-0000000000{:02d}"
PODS = ("11111111-2222-4333-8444-555555555555", "66666666-2222-4333-8444-555555555555", "77777777-2222-4333-8444-555555555555")


def of(number: int, gib: int) -> list[tuple[str, int]]:
    return [(UUID.format(index), gib * 1024) for index in range(number)]


def judged(unit: str, gpus: list[tuple[str, int]], now: str = "", pods: tuple[str, ...] = ()) -> list[Finding]:
    found = HostFindings("gpu1")
    judge_unit(found, unit, gpus, now, pods)
    return found.list


def test_units_are_those_of_the_runtime() -> None:
    assert dict(UNITS) == {unit.name: unit.mib for unit in quantity.UNITS.values()}
    assert list(UNITS.values()) == sorted(UNITS.values(), reverse=True)
    assert MESSAGE_BYTES == runtime.KUBELET_MESSAGE_BYTES


@given(st.lists(st.tuples(st.text("GPU-0a", min_size=1, max_size=40), st.integers(0, 200_000)), max_size=9), st.sampled_from(list(UNITS)))
def test_the_list_is_as_long_as_the_runtime_counts_it(gpus: list[tuple[str, int]], unit: str) -> None:
    size = quantity.UNITS[unit]
    assert list_bytes(gpus, unit) == runtime.list_bytes([(uuid, size.count(mib)) for uuid, mib in gpus])


def test_the_list_is_as_long_as_it_really_is() -> None:
    gpus = of(2, 1)
    ids = [unit_id(uuid, slot) for uuid, mib in gpus for slot in range(mib)]
    message = pb.ListAndWatchResponse(devices=[pb.Device(ID=one, health="Unhealthy") for one in ids])
    assert list_bytes(gpus, "MiB") == message.ByteSize()
    assert count(gpus, "MiB") == len(ids)


@pytest.mark.parametrize(
    ("gpus", "rejected", "fits"),
    [(of(8, 80), ["MiB"], "64MiB"), (of(4, 16), [], "MiB"), (of(16, 192), ["MiB"], "64MiB"), (of(40, 192), ["MiB", "64MiB"], "128MiB")],
)
def test_a_unit_with_too_many_ids_is_rejected_with_the_one_that_fits(gpus: list[tuple[str, int]], rejected: list[str], fits: str) -> None:
    assert smallest_fitting(gpus) == fits
    assert [unit for unit in reversed(UNITS) if judged(unit, gpus)] == rejected
    for unit in rejected:
        (reason,) = judged(unit, gpus)
        assert (reason.check, reason.severity) == ("memory_unit", "error")
        assert f"{count(gpus, unit)} ids" in reason.found
        assert f"gpushare_memory_unit: {fits}" in reason.cure


def test_another_unit_while_pods_have_memory_is_rejected_with_both_cures() -> None:
    (reason,) = judged("256MiB", of(2, 16), "GiB", PODS[:1])
    assert "1 pod that has memory of the GPUs in units of GiB" in reason.found
    assert PODS[0] in reason.found
    assert "keep gpushare_memory_unit: GiB" in reason.cure
    assert judged("256MiB", of(2, 16), "GiB", ()) == []
    assert judged("GiB", of(2, 16), "GiB", PODS) == []
    assert judged("256MiB", of(2, 16), "", PODS) == [], "the original's unit is not known here: the device plugin rejects it itself"
    assert judged("TiB", of(2, 16), "GiB", PODS) == []


def checkpoint(*entries: tuple[str, str]) -> str:
    found = [{"PodUID": uid, "ResourceName": resource, "DeviceIDs": {"-1": ["x"]}} for uid, resource in entries]
    return json.dumps({"Data": {"PodDeviceEntries": found, "RegisteredDevices": {}}, "Checksum": 1})


def test_what_is_shared_now(tmp_path: Path) -> None:
    root = kubelet(FakeRoot(tmp_path))
    assert sharing(Host(str(root))) == Sharing("", ())
    written, settings = apart("[Service]\nExecStart=/x --kubelet-root /x --memory-unit 256MiB\n", "/srv/gpushare/plugin.env", [])
    root.file("/etc/systemd/system/gpushare-device-plugin.service", written)
    root.file("/srv/gpushare/plugin.env", settings)
    entries = [(PODS[0], "aliyun.com/gpu-mem"), (PODS[1], "aliyun.com/gpu-mem"), (PODS[2], "aliyun.com/gpu-count")]
    root.file("/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint", checkpoint(*entries))
    assert sharing(Host(str(root))) == Sharing("256MiB", (), (), "envvar", kubelet_root="/x"), "kubelet forgets pods late"
    systemd = f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{PODS[0].replace('-', '_')}.slice/cri-x.scope\n"
    for pid, group in ((100, systemd), (101, f"1:cpu:/kubepods/besteffort/pod{PODS[2]}/x\n"), (102, "0::/system.slice/x.service\n")):
        root.process(pid, "/bin/sleep", "1")
        root.file(f"/proc/{pid}/cgroup", group)
    assert sharing(Host(str(root))) == Sharing("256MiB", (PODS[0],), (PODS[0], PODS[2]), "envvar", kubelet_root="/x")
    held = "/var/lib/gpushare-device-plugin/held.json"
    for content, limited in (
        (json.dumps({"v": 1, "limited": {PODS[0]: ["GPU-1"], PODS[1]: ["GPU-1"]}}), (PODS[0],)),
        (json.dumps({"v": 1}), ()),
        (json.dumps({"limited": [PODS[0]]}), ()),
        ("[]", ()),
        ("{", ()),
        ("[" * 100_000, ()),
    ):
        root.file(held, content)
        assert sharing(Host(str(root))).limited == limited, content[:80]
    root.file("/srv/gpushare/plugin.env", settings.replace("--memory-unit 256MiB", "--device-strategy cdi"))
    assert sharing(Host(str(root))).strategy == "cdi"
    root.file("/srv/gpushare/plugin.env", apart("[Service]\nExecStart=/x --config /srv/plugin.yaml\n", "/srv/gpushare/plugin.env", [])[1])
    assert sharing(Host(str(root))).unit == ""
    told = {"memoryUnit": "64MiB", "deviceStrategy": "volume-mounts", "kubeletRoot": "/data/kubelet"}
    root.file("/srv/plugin.yaml", config_document.written("gpushare-device-plugin", "DevicePluginConfig", told))
    found = sharing(Host(str(root)))
    assert (found.unit, found.strategy, found.kubelet_root) == ("64MiB", "volume-mounts", "/data/kubelet")
    for value in ("[1]", "{", "1", '"a b"', "[" * 100_000):
        root.file("/srv/plugin.yaml", f"memoryUnit: {value}\n")
        assert sharing(Host(str(root))).unit == "", value[:80]


VISIBLE = "NVIDIA_VISIBLE_DEVICES"
MOUNTED = pb.ContainerAllocateResponse(
    envs={VISIBLE: "/var/run/nvidia-container-devices"}, mounts=[pb.Mount(container_path="/var/run/nvidia-container-devices/GPU-1")]
)
BY_CDI = pb.ContainerAllocateResponse(envs={VISIBLE: "void"}, cdi_devices=[pb.CDIDevice(name="nvidia.com/gpu=GPU-1")])
OF_THE_ORIGINAL = pb.ContainerAllocateResponse(envs={VISIBLE: "1", "ALIYUN_COM_GPU_MEM_IDX": "1"})


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([OF_THE_ORIGINAL], "envvar"),
        ([MOUNTED], "volume-mounts"),
        ([BY_CDI], "cdi"),
        # Where pods have their GPUs in several ways, all of them must get them again.
        ([BY_CDI, MOUNTED, OF_THE_ORIGINAL], "envvar"),
        ([BY_CDI, MOUNTED], "volume-mounts"),
        (["!", None, 7, "ü", ""], ""),
    ],
)
def test_without_our_device_plugin_it_is_what_pods_have_their_gpus_by(tmp_path: Path, answers: list[Any], expected: str) -> None:
    root = kubelet(FakeRoot(tmp_path))
    texts = [base64.b64encode(one.SerializeToString()).decode() if hasattr(one, "SerializeToString") else one for one in answers]
    entries = [{"PodUID": PODS[0], "ResourceName": "aliyun.com/gpu-mem", "AllocResp": text} for text in texts]
    other = {"PodUID": PODS[0], "ResourceName": "example.com/nic", "AllocResp": base64.b64encode(b"x").decode()}
    ended = {**entries[0], "PodUID": PODS[1], "AllocResp": base64.b64encode(OF_THE_ORIGINAL.SerializeToString()).decode()}
    path = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
    root.file(path, json.dumps({"Data": {"PodDeviceEntries": [*entries, other, ended], "RegisteredDevices": {}}}))
    assert sharing(Host(str(root))).strategy == ""
    root.process(101, "/bin/sleep", "1")
    root.file("/proc/101/cgroup", f"1:cpu:/kubepods/besteffort/pod{PODS[0]}/x\n")
    assert sharing(Host(str(root))) == Sharing("", (PODS[0],), (PODS[0],), expected)


@pytest.mark.parametrize(
    "content", ["", "{", "[]", '{"Data": 1}', '{"Data": {"PodDeviceEntries": 1}}', '{"Data": {"PodDeviceEntries": [1]}}']
)
def test_a_record_that_cannot_be_read_names_no_pod(tmp_path: Path, content: str) -> None:
    root = kubelet(FakeRoot(tmp_path))
    root.file("/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint", content)
    assert sharing(Host(str(root))).pods == ()


def test_the_record_of_the_smallest_units_is_read_whole(tmp_path: Path) -> None:
    """68,900 ids, and all of them given away: more than other files may have."""
    root = kubelet(FakeRoot(tmp_path))
    ids = [unit_id(UUID.format(0), slot) for slot in range(68_900)]
    entry = {"PodUID": PODS[0], "ResourceName": "aliyun.com/gpu-mem", "DeviceIDs": {"-1": ids}}
    content = json.dumps({"Data": {"PodDeviceEntries": [entry], "RegisteredDevices": {"aliyun.com/gpu-mem": ids}}})
    assert len(content) > 4 * 1024 * 1024
    root.file("/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint", content)
    assert len(recorded(Host(str(root)))["RegisteredDevices"]["aliyun.com/gpu-mem"]) == 68_900
