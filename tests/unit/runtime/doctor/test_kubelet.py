# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The device plugin's side of kubelet: sockets that somebody really listens on, and what kubelet has recorded."""

from __future__ import annotations

import json
import os
import socket
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest

from gpushare_runtime.core.bounds import MOST_GPUS
from gpushare_runtime.core.protocol import RESOURCE_GPUS, RESOURCE_MEMORY
from gpushare_runtime.doctor.findings import Findings
from gpushare_runtime.doctor.host import PLUGIN
from gpushare_runtime.doctor.kubelet import (
    SocketOwner,
    dra_drivers,
    judge_dra_drivers,
    judge_gpus,
    judge_pods_gpus,
    judge_registration,
    judge_second_plugin,
    listener,
    listeners,
    registered,
    registered_soon,
    takes_plugins,
)
from unit.fakes.runtime.doctor.fake_host import SAYS, Clock, FakeHost, said
from unit.golden import Golden

FOLDER = "/var/lib/kubelet/device-plugins"
SOCKET_MEMORY, SOCKET_GPUS = "aliyungpushare-mem-0123cdef.sock", "aliyungpushare-gpus-4567cdef.sock"
ANY_MEMORY, ANY_GPUS = "aliyungpushare-mem-*.sock", "aliyungpushare-gpus-*.sock"
OURS = [SocketOwner(SOCKET_GPUS, 77, "ours"), SocketOwner(SOCKET_MEMORY, 77, "ours")]
RECORDED: dict[str, list[str]] = {RESOURCE_MEMORY: ["GPU-1"], RESOURCE_GPUS: []}
NOT_READ = "kubelet does not read the list"


@pytest.fixture
def host(tmp_path: Path) -> FakeHost:
    host = FakeHost(tmp_path)
    host.install(PLUGIN)
    return host


def test_who_listens_on_a_device_plugins_socket(host: FakeHost) -> None:
    for name in ("kubelet.sock", "a.sock", "b.sock", "dead.sock", "c.sock"):
        host.socket(f"{FOLDER}/{name}")
    host.file(f"{FOLDER}/kubelet_internal_checkpoint", "{}")
    host.at(f"{FOLDER}/link.sock").symlink_to(host.at(f"{FOLDER}/a.sock"))
    host.file("/proc/5/cmdline", b"/bin/other-plugin\0--x\0y\0z\0")
    host.file("/proc/7/cmdline", b"/bin/alone\0")
    asked = []

    def peer(path: Path) -> int | None:
        asked.append(path)
        return {"dead.sock": None, "b.sock": 6, "c.sock": 7}.get(path.name, 5)

    found = [SocketOwner("a.sock", 5, "/bin/other-plugin --x y"), SocketOwner("b.sock", 6, ""), SocketOwner("c.sock", 7, "/bin/alone")]
    assert listeners(host, peer) == found
    assert list(map(str, found[:2])) == ["process 5 (/bin/other-plugin --x y)", "process 6 (unnamed)"]
    assert asked == [host.at(f"{FOLDER}/{name}.sock") for name in ("a", "b", "c", "dead")]


def test_of_very_many_sockets_some_are_looked_at(host: FakeHost) -> None:
    for number in range(105):
        host.socket(f"{FOLDER}/{number}.sock")
    assert len(listeners(host, lambda _path: 1)) == 100


def test_the_listener_of_a_socket_is_found_by_the_kernels_word() -> None:
    with tempfile.TemporaryDirectory(prefix="gd") as folder, socket.socket(socket.AF_UNIX) as server:
        path = Path(folder, "s")
        assert listener(path) is None
        server.bind(str(path))
        assert listener(path) is None
        server.listen()
        assert listener(path) == os.getpid()


def test_what_kubelet_has_registered_by_gpu(host: FakeHost) -> None:
    assert registered(host) == {}

    def of(devices: object) -> dict[str, list[str]]:
        host.file(f"{FOLDER}/kubelet_internal_checkpoint", json.dumps({"Data": {"PodDeviceEntries": None, "RegisteredDevices": devices}}))
        return registered(host)

    ids = ["GPU-1-_-0", "GPU-1-_-1", "GPU-2-_-0"]
    assert of({RESOURCE_MEMORY: ids, RESOURCE_GPUS: ["GPU-1"], "other.com/x": ["1"]}) == {
        RESOURCE_MEMORY: ["GPU-1", "GPU-2"],
        RESOURCE_GPUS: ["GPU-1"],
    }
    by_numa = {"-1": ["GPU-1-_-0"], "0": ["GPU-1-_-1", "GPU-2-_-0"]}
    assert of({RESOURCE_MEMORY: by_numa, RESOURCE_GPUS: None}) == {RESOURCE_MEMORY: ["GPU-1", "GPU-2"], RESOURCE_GPUS: []}
    # The largest machines have 16 GPUs of seven MIG instances.
    instances = [f"MIG-{number:03}" for number in range(112)]
    assert of({RESOURCE_MEMORY: [f"{instance}-_-{unit}" for instance in instances for unit in range(10)]}) == {RESOURCE_MEMORY: instances}
    others = [f"other-{number:03}" for number in range(200)]
    assert of({RESOURCE_MEMORY: others}) == {RESOURCE_MEMORY: others[: MOST_GPUS + 1]}
    for devices in (["a"], {RESOURCE_MEMORY: 7}, {RESOURCE_MEMORY: [7]}, None, 7):
        assert of(devices) == {}
    for content in ("{", "[]", "7", '{"Data": 7}'):
        host.file(f"{FOLDER}/kubelet_internal_checkpoint", content)
        assert registered(host) == {}


@pytest.mark.parametrize(
    ("listening", "says", "expected"),
    [
        (OURS, "", ""),
        ([], NOT_READ, ""),
        (OURS, NOT_READ, ""),
        ([*OURS, SocketOwner("other.sock", 300, "x")], "", ""),
        (
            [OURS[0], SocketOwner(SOCKET_MEMORY, 300, "")],
            "",
            f"process 300 (unnamed) listening on the device plugin's own socket {SOCKET_MEMORY}",
        ),
        (
            [*OURS, SocketOwner("a.sock", 300, "x"), SocketOwner("b.sock", 301, "y")],
            f"gpu-mem: {NOT_READ}",
            f"kubelet not listening to our device plugin (gpu-mem: {NOT_READ}) while process 300 (x) and process 301 (y) serves it",
        ),
        (
            [SocketOwner(SOCKET_GPUS, 300, "x"), SocketOwner("a.sock", 300, "x")],
            NOT_READ,
            f"process 300 (x) listening on the device plugin's own socket {SOCKET_GPUS}",
        ),
        (
            [*OURS, SocketOwner("aliyungpushare.sock", 300, "x")],
            "",
            "process 300 (x) listening on the device plugin's own socket aliyungpushare.sock",
        ),
        ([*OURS, SocketOwner("aliyungpushare-mem-ffffffff.sock", 77, "ours")], "", ""),
    ],
)
def test_another_device_plugin_for_the_gpus(host: FakeHost, listening: list[SocketOwner], says: str, expected: str) -> None:
    found = Findings()
    assert judge_second_plugin(found, replace(host.unit(PLUGIN), says=says), listening) is bool(expected)
    assert said(found) == ([("second_plugin", expected)] if expected else [])


@pytest.mark.parametrize("root", ["", "/data/kubelet"])
def test_a_dra_driver_that_gives_gpus_is_found_by_who_listens_for_kubelet(host: FakeHost, root: str) -> None:
    folder = f"{root or '/var/lib/kubelet'}/plugins_registry"
    uid = "0a1b2c3d-0000-4000-8000-000000000009"
    names = ("gpu.nvidia.com-reg.sock", f"gpu.nvidia.com-{uid}-reg.sock", "hami-core-gpu.project-hami.io-AbC_d-EfGhI-reg.sock")
    for name in (*names, "compute-domain.nvidia.com-reg.sock", "vfio.gpu.nvidia.com-reg.sock", "gpu.nvidia.com-reg.sock.bak"):
        host.socket(f"{folder}/{name}")
    host.file("/proc/5/cmdline", b"gpu-kubelet-plugin\0-v\x004\0")
    found = dra_drivers(host, root, lambda path: None if path.name == names[0] else 5)
    assert [owner.name for owner in found] == [names[1], names[2]]
    report = Findings()
    judge_dra_drivers(report, [])
    assert said(report) == []
    judge_dra_drivers(report, found[:1])
    words = f"process 5 (gpu-kubelet-plugin -v 4) listening on {names[1]}, which gives GPUs by ResourceClaims"
    assert said(report) == [("second_plugin", words)]


GPUS = {RESOURCE_GPUS: ["GPU-1"]}
BOTH = {RESOURCE_MEMORY: ["GPU-1-_-0"], **GPUS}


@pytest.mark.parametrize(
    ("writes", "listening", "changes", "seconds", "recorded"),
    [
        ({0: BOTH}, OURS, {}, (0, 0), 2),
        ({0: GPUS, 12: BOTH}, OURS, {}, (12, 13), 2),
        ({0: {}, 60: BOTH}, OURS, {}, (20, 21), 0),
        ({0: GPUS}, OURS[1:], {}, (0, 0), 1),
        ({0: GPUS}, OURS, {"active": "activating", "state": "start", "says": "waits for kubelet"}, (0, 0), 1),
    ],
)
def test_a_busy_kubelet_has_time_to_record_a_plugin_that_serves_it(
    host: FakeHost,
    monkeypatch: pytest.MonkeyPatch,
    writes: dict[float, dict[str, list[str]]],
    listening: list[SocketOwner],
    changes: dict[str, str],
    seconds: tuple[float, float],
    recorded: int,
) -> None:
    busy = FakeHost(host.at("/"), patience=20)

    def write(passed: float) -> None:
        for after, devices in writes.items():
            if passed >= after:
                host.file(f"{FOLDER}/kubelet_internal_checkpoint", json.dumps({"Data": {"RegisteredDevices": devices}}))

    clock = Clock(monkeypatch, write)
    busy.states = host.states
    assert len(registered_soon(busy, replace(host.unit(PLUGIN), **changes), listening)[1]) == recorded  # type: ignore[arg-type]
    assert seconds[0] <= clock.passed <= seconds[1]


def test_a_plugin_that_kubelet_is_about_to_register_has_time_for_it(host: FakeHost, monkeypatch: pytest.MonkeyPatch) -> None:
    busy = FakeHost(host.at("/"), patience=20)
    host.file(f"{FOLDER}/kubelet_internal_checkpoint", json.dumps({"Data": {"RegisteredDevices": BOTH}}))
    clock = Clock(monkeypatch, lambda passed: busy.install(PLUGIN, StatusText="waits" if passed < 12 else SAYS))
    unit, recorded = registered_soon(busy, busy.unit(PLUGIN), OURS)
    assert (unit.status, len(recorded)) == (SAYS, 2)
    assert 12 <= clock.passed < 13


NOT_LISTENING = f"no device plugin listening on {FOLDER}/"


@pytest.mark.parametrize(
    ("listening", "recorded", "changes", "expected"),
    [
        (OURS, RECORDED, {}, []),
        (OURS[1:], RECORDED, {}, [NOT_LISTENING + ANY_GPUS]),
        (OURS[:1], RECORDED, {"says": "all is well"}, [NOT_LISTENING + ANY_MEMORY]),
        (
            [],
            RECORDED,
            {"says": "waits", "status": "waits"},
            [f"{NOT_LISTENING}{name} (the plugin says: waits)" for name in (ANY_MEMORY, ANY_GPUS)],
        ),
        (
            OURS,
            RECORDED,
            {"says": "gpu-mem: waits", "status": "aliyun.com/gpu-mem: waits; aliyun.com/gpu-count: registered with kubelet"},
            ["a device plugin that waits to be registered for aliyun.com/gpu-mem (the plugin says: gpu-mem: waits)"],
        ),
        (OURS, {RESOURCE_GPUS: ["GPU-1"]}, {}, [f"no {RESOURCE_MEMORY} in kubelet's checkpoint"]),
        (
            [],
            {},
            {"active": "activating", "state": "start", "says": "waits", "status": "waits"},
            [f"{NOT_LISTENING}{name} (the plugin says: waits)" for name in (ANY_MEMORY, ANY_GPUS)],
        ),
    ],
)
def test_a_plugin_that_is_not_known_to_kubelet(
    host: FakeHost, listening: list[SocketOwner], recorded: dict[str, list[str]], changes: dict[str, str], expected: list[str]
) -> None:
    found = Findings()
    judge_registration(found, replace(host.unit(PLUGIN), **changes), listening, recorded)
    assert said(found) == [("plugin_not_registered", words) for words in expected]
    assert all(one.cure.startswith(f"systemctl restart {PLUGIN};") for one in found.findings)


def test_a_kubelet_that_rejects_the_plugin_is_to_be_restarted(host: FakeHost, golden: Golden) -> None:
    found = Findings()
    says = "aliyun.com/gpu-mem: kubelet rejects the registration (UNKNOWN: device plugin already connected: x)"
    judge_registration(found, replace(host.unit(PLUGIN), says=says, status=f"{says}; {SAYS[44:]}"), OURS, RECORDED)
    ((code, words),) = said(found)
    assert (code, words.startswith("a device plugin that waits to be registered for aliyun.com/gpu-mem")) == ("plugin_not_registered", True)
    golden(found.findings[0].cure)


def test_a_kubelet_that_has_lost_its_socket_is_to_be_restarted(host: FakeHost, golden: Golden) -> None:
    assert takes_plugins(host, lambda path: 7 if path.name == "kubelet.sock" else None)
    assert not takes_plugins(host, lambda path: None)
    found = Findings()
    judge_registration(found, replace(host.unit(PLUGIN), says="waits", status="waits"), [], RECORDED, kubelet_listens=False)
    golden(f"{found.findings[0].found}: {found.findings[0].cure}")


@pytest.mark.parametrize(
    ("says", "found"),
    [
        ("gpus: 2 with 40 units of 1 GiB; token: good until 2027", []),
        ("gpus: the NVIDIA kernel driver is not loaded: run `modprobe nvidia`", []),
        (
            "gpus: GPU 0 (GPU-1): XID 79: the GPU has fallen off the bus; drain the node, then restart; GPU 3 (GPU-4): lost; token: good",
            ["gpu_unhealthy: GPU 0 (GPU-1): XID 79: the GPU has fallen off the bus; drain the node, then restart; GPU 3 (GPU-4): lost"],
        ),
        (
            "CDI: GPU 0: no spec; gpus: GPU 1 (GPU-2): the driver requires a reset: stop",
            ["gpu_unhealthy: GPU 1 (GPU-2): the driver requires a reset: stop"],
        ),
        (
            "gpus: GPU 0 (GPU-1): its NVLink fabric is not ready (Not Started): look at nvidia-fabricmanager; GPU 11070 (MIG-2): lost",
            [
                "gpu_unhealthy: GPU 0 (GPU-1): its NVLink fabric is not ready (Not Started): look at nvidia-fabricmanager; "
                "GPU 11070 (MIG-2): lost"
            ],
        ),
        (
            "gpus: GPU 0 is omitted: its memory is the host's; gpushare cannot share it (NVML: Not Supported); token: good",
            ["gpu_unhealthy: GPU 0 is omitted: its memory is the host's; gpushare cannot share it (NVML: Not Supported)"],
        ),
        ("gpus: 9 with 79 units of 1 GiB; GPU 1 in MIG mode without instances: make some; token: good", []),
        ("", []),
    ],
)
def test_a_gpu_that_the_plugin_keeps_new_pods_off(host: FakeHost, says: str, found: list[str]) -> None:
    findings = Findings()
    judge_gpus(findings, replace(host.unit(PLUGIN), says=says))
    assert [f"{one.check}: {one.found}" for one in findings.findings] == found


_IS_GONE = "which is not in this node any more"


@pytest.mark.parametrize(
    ("says", "found"),
    [
        ("gpus: 2 with 40 units of 1 GiB; GPUs of pods: all are in this node; token: good", []),
        (
            f"GPUs of pods: pod a/b has GPU GPU-1, {_IS_GONE}: delete it, and its owner starts it; gpus: 1 with 8 units",
            [f"gpu_gone: pod a/b has GPU GPU-1, {_IS_GONE}"],
        ),
        (
            f"API server: silent; GPUs of pods: pod a/b has GPU GPU-1, {_IS_GONE}, pod a/c has GPU GPU-2, {_IS_GONE}: delete it",
            [f"gpu_gone: pod a/b has GPU GPU-1, {_IS_GONE}, pod a/c has GPU GPU-2, {_IS_GONE}"],
        ),
    ],
)
def test_pods_with_gpus_that_are_gone(host: FakeHost, says: str, found: list[str]) -> None:
    findings = Findings()
    judge_pods_gpus(findings, replace(host.unit(PLUGIN), status=says))
    assert [f"{one.check}: {one.found}" for one in findings.findings] == found
