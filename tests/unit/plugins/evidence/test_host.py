# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What verify sees on a host: a folder that stands for it, with programs."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import sys
import tempfile
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.undo import Rejected
from ansible_collections.gpushare.kubernetes.plugins.module_utils._evidence import control_plane as evidence_control_plane
from ansible_collections.gpushare.kubernetes.plugins.module_utils._evidence import daemons, gpu_node
from ansible_collections.gpushare.kubernetes.plugins.module_utils._evidence import host as evidence_host
from ansible_collections.gpushare.kubernetes.plugins.module_utils._evidence.host import Places
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts.device_managers import GpuManager
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts.kubelet_checkpoint import forgotten
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts.node import gather
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts.stopped_unit import StoppedUnit
from ansible_collections.gpushare.kubernetes.plugins.module_utils._formats.answers import answer_of
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.command import Outcome
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.host import Host
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes.cri import CriError
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes.default_runtime import SERVICES
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes.service import arguments_of
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from unit.fakes.plugins.fake_root import FakeRoot, control_plane, debian, gpu, kubelet

ENVIRONMENT = "/opt/gpushare/0.1.0-0123456789ab"
PLUGINS = "/var/lib/kubelet/device-plugins"


def answer(function: Callable[..., Any], *arguments: Any) -> Any:
    """What the module answers of it."""
    return answer_of(function(*arguments))


def see(host: Host, places: Places, only: list[str] | None = None) -> Any:
    return answer(evidence_host.see, host, places) if only is None else answer(evidence_host.see_again, host, places, only)


@pytest.fixture
def root(tmp_path: Path) -> FakeRoot:
    return gpu(kubelet(debian(FakeRoot(tmp_path))))


def installed(root: FakeRoot) -> None:
    """An environment as our marker leaves it."""
    root.file(f"{ENVIRONMENT}/.gpushare-complete.json", json.dumps({"version": "0.1.0", "wheel_sha256": "a", "requirements_sha256": "b"}))
    root.link("/opt/gpushare/current", "0.1.0-0123456789ab")


def test_the_runtime_in_use_and_what_it_was_made_from(root: FakeRoot) -> None:
    nothing = {"version": "", "wheel_sha256": "", "requirements_sha256": "", "environment": ""}
    root.file("/opt/gpushare/.gpushare-complete.json", json.dumps({"version": "0.1.0"}))
    assert answer(daemons.runtime, Host(str(root)), "/opt/gpushare") == nothing
    installed(root)
    sound = {"version": "0.1.0", "wheel_sha256": "a", "requirements_sha256": "b", "environment": ENVIRONMENT}
    assert answer(daemons.runtime, Host(str(root)), "/opt/gpushare") == sound
    root.file(f"{ENVIRONMENT}/.gpushare-complete.json", "no JSON")
    assert answer(daemons.runtime, Host(str(root)), "/opt/gpushare") == {**nothing, "environment": ENVIRONMENT}


DOCTOR = "/opt/gpushare/current/bin/gpushare-doctor"


def doctor(root: FakeRoot, *names: str) -> dict[str, str]:
    return answer(daemons.doctor, Host(str(root)), "/opt/gpushare", names)


@pytest.mark.parametrize("status", [0, 1])
def test_the_doctors_answer_is_taken_as_it_is(root: FakeRoot, status: int) -> None:
    root.at(DOCTOR).write_text(f'#!/bin/sh\necho "$*"\nexit {status}\n')
    root.at(DOCTOR).chmod(0o755)
    assert doctor(root, "a", "b") == {"problem": "", "cure": "", "answer": "--output json a b\n"}
    root.at(DOCTOR).write_text(f"#!/bin/sh\nhead -c 300000 /dev/zero\nexit {status}\n")
    assert len(doctor(root)["answer"]) == 256 * 1024


def test_why_the_doctor_does_not_answer_is_said(root: FakeRoot) -> None:
    assert doctor(root) == {"problem": f"there is no {DOCTOR}", "cure": "", "answer": ""}
    root.program(DOCTOR, "no root", status=2)
    assert doctor(root) == {"problem": f"{DOCTOR} ended with 2: no root", "cure": "", "answer": ""}
    root.at(DOCTOR).write_text("#!/bin/sh\necho ImportError: x >&2\nexit 1\n")
    assert doctor(root) == {"problem": f"{DOCTOR} ended with 1: ImportError: x", "cure": "", "answer": ""}
    root.at(DOCTOR).chmod(0o644)
    assert doctor(root) == {"problem": f"{DOCTOR} may not be executed", "cure": f"chmod 0755 {DOCTOR}", "answer": ""}
    root.at(DOCTOR).chmod(0o755)
    # As a venv is left whose Python was removed.
    root.at(DOCTOR).write_text("#!/nowhere/python\n")
    found = doctor(root)
    assert found["problem"].startswith(f"{DOCTOR} ended with None: [Errno 2] No such file")
    assert found["answer"] == ""


def test_a_runtime_on_a_mount_without_programs_is_not_to_be_removed(root: FakeRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing could be built there anew."""
    real = os.statvfs(root.at("/"))
    monkeypatch.setattr(os, "statvfs", lambda _path: SimpleNamespace(f_flag=real.f_flag | os.ST_NOEXEC))
    assert doctor(root) == {
        "problem": f"the file system of {DOCTOR} is mounted noexec",
        "cure": "mount -o remount,exec $(findmnt -n -o TARGET -T /opt/gpushare)",
        "answer": "",
    }


def test_a_link_to_a_runtime_that_is_gone_is_no_runtime(root: FakeRoot) -> None:
    root.link("/opt/gpushare/current", "gone-1")
    assert answer(daemons.runtime, Host(str(root)), "/opt/gpushare")["environment"] == ""


def test_a_doctor_that_hangs_is_left() -> None:
    def run(argv: list[str], timeout: float) -> Outcome:
        assert 60 < timeout < 120
        return Outcome(argv, None, "{}", timed_out=timeout)

    found = answer(daemons.doctor, Host("/", run=run), str(Path(sys.executable).parents[1]), [])
    assert "there is no" in found["problem"]
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder, "current/bin/gpushare-doctor")
        place.parent.mkdir(parents=True)
        place.touch(0o755)
        hangs = {"cure": f"see on the host what hangs: {place}", "answer": ""}
        assert answer(daemons.doctor, Host("/", run=run), folder, []) == {"problem": f"{place} did not end within 90 s", **hangs}


def watched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What `see` asks of the parts, which answer with their own name and arguments."""
    asked: list[tuple[Any, ...]] = []

    def part(name: str) -> Any:
        def answer(_host: Host, *arguments: Any) -> Any:
            asked.append((name, *arguments))
            return (name, *arguments)

        return answer

    for module, names in (
        (daemons, ("runtime", "doctor")),
        (gpu_node, ("images", "sandbox", "cdi", "devices", "containers", "strangers")),
        (evidence_control_plane, ("scheduler_files", "lives")),
    ):
        for name in names:
            monkeypatch.setattr(module, name, part(name))
    monkeypatch.setattr(gpu_node, "container_runtime", lambda *asked_of: asked.append(("container_runtime", *asked_of)) or asked_of)
    monkeypatch.setattr(evidence_host, "time", SimpleNamespace(time=lambda: 5.0))
    return asked


PLACES: dict[str, Any] = {
    "dashboard": True,
    "install_dir": "/i",
    "pki_dir": "/p",
    "extender_port": 1,
    "extender_weight": 3,
    "extender_http_timeout": "2s",
    "preemption": False,
    "memory_unit": "MiB",
    "device_strategy": "cdi",
    "minimum_driver": "550.54",
    "expect_gpus": 8,
    "expect_memory_mib": 81000,
    "metrics_plugin": "a:1",
    "metrics_extender": "b:2",
    "runtime_name": "docker",
    "runtime_default": "nvidia",
    "runtime_unit": "x.service",
    "runtime_config": "/x.toml",
    "scheduler_manifest": "/m.yaml",
    "scheduler_config": "/s.yaml",
}


PLUGIN, EXTENDER = "gpushare-device-plugin", "gpushare-extender"


def test_every_part_of_a_host_is_looked_at_where_it_is(root: FakeRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    watched(monkeypatch)
    places = Places(gpu_node=True, control_plane=True, **PLACES)
    found = see(Host(str(root)), places)
    gpu_, plane = found.pop("gpu"), found.pop("plane")
    smi, driver = gpu_.pop("nvidia_smi"), gpu_.pop("driver")
    assert found == {
        "places": {"gpu_node": True, "control_plane": True, **PLACES},
        "node_name": "node-7",
        "kubelet": {"running": True, "unit": None, "says": "", "unreached": "", "proxy": ""},
        "runtime": ("runtime", "/i"),
        "doctor": ("doctor", "/i", [PLUGIN, EXTENDER, "gpushare-dashboard"]),
        "files": {"problem": "", "changed": [], "unrecorded": [], "drop_ins": []},
        "now": 5.0,
    }
    assert (len(smi["gpus"]), driver["loaded"], driver["library"]) == (2, "535.261.03", "535.261.03")
    assert gpu_ == {
        "managers": [],
        "container_runtime": gpu_["container_runtime"],
        "images": ("images", "unix:///run/containerd/containerd.sock"),
        "sandbox": ("sandbox", "unix:///run/containerd/containerd.sock", "containerd"),
        "forgotten": [],
        "kubelet_life": None,
        "kubelet_roots": ("/var/lib/kubelet", ""),
        "without_room": (),
        "mps": False,
        "cdi": ("cdi",),
        "devices": ("devices", [0, 1]),
        "strangers": ("strangers",),
        "containers": ("containers",),
        # No container runtime answers at this folder.
        "cgroups": {"kubelet": "", "runtime": "", "handler": ""},
        "limits": [],
        "strategy": {
            "cdi": {
                "kubelet": "",
                "runtime": "containerd 1.6.20~ds1 does not take CDI devices from kubelet, releases from 1.7.2 on do",
                "spec": "no CDI spec in /etc/cdi or /var/run/cdi names GPUs as nvidia.com/gpu by their UUID",
                "off": False,
                "reader": "containerd 1.6.20~ds1 reads no CDI specs of version 0.7.0, releases from 1.7.16 on do",
                "newer": False,
            },
            "toolkit": {"environment": False, "mounts": True, "problem": "", "no_cgroups": False, "version": ""},
            "now": "",
            "holders": [],
        },
    }
    assert gpu_["container_runtime"][:-2] == ("docker", "x.service", "/x.toml")
    assert plane == {"scheduler": ("scheduler_files", "/m.yaml", "/s.yaml"), "lives": ("lives",)}


def test_a_host_is_looked_at_for_what_it_is_and_what_is_asked_for(root: FakeRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = watched(monkeypatch)
    host = Host(str(root))
    found = see(host, Places(gpu_node=False, control_plane=True))
    assert (found["gpu"], found["doctor"]) == (None, ("doctor", "/opt/gpushare", [EXTENDER]))
    assert not {one[0] for one in asked} & {"containers", "images"}
    asked.clear()
    found = see(host, Places(gpu_node=True, control_plane=False, runtime_name=""))
    assert (found["plane"], found["gpu"]["container_runtime"]) == (None, None)
    assert found["doctor"] == ("doctor", "/opt/gpushare", [PLUGIN])
    assert not {one[0] for one in asked} & {"scheduler_files", "container_runtime"}
    again = ("doctor", "/opt/gpushare", [EXTENDER])
    for only, parts, calls in ((["containers"], {"gpu"}, [("containers",)]), (["extender"], {"doctor"}, [again]), ([], set(), [])):
        asked.clear()
        found = see(host, Places(gpu_node=True, control_plane=True), only)
        assert {part for part in ("gpu", "plane", "doctor") if found.get(part) is not None} == parts
        assert set(found) == {"places", "gpu", "plane", "now", *parts}
        assert asked == calls
    for both in (Places(gpu_node=False, control_plane=False), Places(gpu_node=False, control_plane=True)):
        assert see(host, both, ["containers"])["gpu"] is None
    assert "doctor" not in see(host, Places(gpu_node=True, control_plane=False), ["extender"])


def test_the_runtime_is_not_asked_where_kubelet_uses_another(root: FakeRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    watched(monkeypatch)
    root.file("/proc/30/cmdline", b"/usr/bin/kubelet\0--container-runtime-endpoint=unix:///run/rkt.sock\0")
    found = see(Host(str(root)), Places(gpu_node=True, control_plane=False))["gpu"]
    assert (found["container_runtime"], found["images"]) == (None, ("images", "unix:///run/rkt.sock"))
    root.file("/proc/30/cmdline", b"/usr/bin/kubelet\0--container-runtime-endpoint=unix:///run/cri-dockerd.sock\0")
    found = see(Host(str(root)), Places(gpu_node=True, control_plane=False))["gpu"]
    assert found["container_runtime"][:-2] == ("docker", "", "")


def test_a_gpu_host_without_a_driver_is_looked_at(root: FakeRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    watched(monkeypatch)
    monkeypatch.setattr(evidence_host, "managers", lambda *asked: [GpuManager(name, name == "on", asked[1:]) for name in ("on", "off")])
    monkeypatch.setattr(evidence_host, "gather", lambda host, subsets: replace(gather(host, subsets), driver=None))
    found = see(Host(str(root)), Places(gpu_node=True, control_plane=False, install_dir="/i"))["gpu"]
    assert found["driver"] is None
    assert [(one["name"], one["active"], list(one["evidence"])) for one in found["managers"]] == [("on", True, ["/i", "/var/lib/kubelet"])]


SPEC = {
    "cdiVersion": "0.5.0",
    "kind": "nvidia.com/gpu",
    "devices": [{"name": "GPU-00000000-0000-4000-8000-000000000001", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}}],
    "containerEdits": {
        "mounts": [{"hostPath": "/usr/lib/libcuda.so.535.1.2", "containerPath": "/in/the/container"}],
        "hooks": [{"hookName": "createContainer", "path": "/usr/bin/nvidia-cdi-hook", "args": ["--link", "libcuda.so.1::/usr/lib/x"]}],
    },
}
YAML = """\
---
cdiVersion: 0.5.0
kind: nvidia.com/gpu
devices:
- name: "0"
  containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
containerEdits:
  mounts:
  - containerPath: /in/the/container
    hostPath: /usr/lib/libcuda.so.535.1.2
"""


@pytest.mark.parametrize(
    ("name", "text"), [("nvidia.yaml", json.dumps(SPEC)), ("nvidia.json", json.dumps(SPEC, indent=1)), ("n.yaml", YAML)]
)
def test_a_cdi_spec_in_yaml_and_in_json(root: FakeRoot, name: str, text: str) -> None:
    root.file(f"/etc/cdi/{name}", text)
    root.file("/etc/cdi/other.yaml", text.replace("nvidia.com/gpu", "nvidia.com/net"))
    root.file("/etc/cdi/README", text)
    root.file("/etc/nvidia-container-runtime/config.toml", '[nvidia-container-runtime]\nmode = "cdi"\n')
    found = answer(gpu_node.cdi, Host(str(root)))
    assert found["mode"] == "cdi"
    (spec,) = found["specs"]
    assert (spec["path"], spec["versions"]) == (f"/etc/cdi/{name}", ["535.1.2"])
    assert spec["gpus"] == (["GPU-00000000-0000-4000-8000-000000000001"] if "GPU-" in text else [])
    assert set(spec) == {"path", "gpus", "versions", "missing", "newer"}
    assert "/usr/lib/libcuda.so.535.1.2" in spec["missing"]
    assert not {"/dev/nvidia0", "/in/the/container"} & set(spec["missing"])
    root.file("/usr/lib/libcuda.so.535.1.2")
    root.file("/usr/bin/nvidia-cdi-hook")
    assert answer(gpu_node.cdi, Host(str(root)))["specs"][0]["missing"] == []


def test_without_a_cdi_spec_or_a_mode_there_is_nothing(root: FakeRoot) -> None:
    assert answer(gpu_node.cdi, Host(str(root))) == {"mode": "", "specs": []}
    root.file("/etc/nvidia-container-runtime/config.toml", '#mode = "cdi"\n  mode = "legacy"\n')
    root.file("/var/run/cdi/x.yaml", YAML)
    root.file("/etc/cdi/empty.yaml")
    found = answer(gpu_node.cdi, Host(str(root)))
    assert (found["mode"], [spec["path"] for spec in found["specs"]]) == ("legacy", ["/var/run/cdi/x.yaml"])


def field(number: int, value: bytes | int) -> bytes:
    """A field of a protobuf message, with a number below 128 or fewer than 16384 bytes."""
    if isinstance(value, int):
        return bytes([number << 3, value])
    size = bytes([len(value)]) if len(value) < 128 else bytes([128 | len(value) % 128, len(value) // 128])
    return bytes([number << 3 | 2]) + size + value


def test_the_sandbox_image_among_a_nodes_images_the_pinned_first() -> None:
    app = field(1, field(2, b"docker.io/library/pauser:1") + field(8, 0))
    old = field(1, field(2, b"registry.k8s.io/pause:3.8") + field(8, 0))
    pinned = field(1, field(2, b"registry.k8s.io/pause:3.10") + field(2, b"pause@sha256:abc") + field(8, 1))
    names = ["registry.k8s.io/pause:3.10", "pause@sha256:abc", "registry.k8s.io/pause:3.8"]
    assert gpu_node.pause_images(app + field(2, b"pause:1") + field(1, 7) + old + pinned) == names
    assert gpu_node.pause_images(field(2, field(2, b"pause:1"))) == []
    assert gpu_node.pause_images(field(1, field(1, b"pause:1") + field(2, b"pause:2") + field(2, 3))) == ["pause:2"]
    many = field(1, b"".join(field(2, b"pause:%d" % number) for number in range(6)) + field(2, 7) + field(8, 0) + field(3, b"pause:9"))
    assert gpu_node.pause_images(many) == [f"pause:{number}" for number in range(5)]
    unpinned_last = field(1, field(2, b"pause:1") + field(8, 1) + field(9, 0))
    assert gpu_node.pause_images(old + unpinned_last) == ["pause:1", "registry.k8s.io/pause:3.8"]


@pytest.mark.parametrize(
    ("endpoint", "socket_"),
    [("unix:///run/crio/crio.sock", "/run/crio/crio.sock"), (None, "/run/containerd/containerd.sock"), ("/run/x", "/run/x")],
)
def test_the_images_are_asked_of_kubelets_runtime(
    root: FakeRoot, monkeypatch: pytest.MonkeyPatch, endpoint: str | None, socket_: str
) -> None:
    asked = []

    def call(*arguments: object) -> bytes:
        asked.append(arguments)
        return field(1, field(2, b"pause:1"))

    monkeypatch.setattr(gpu_node.cri, "call", call)
    assert gpu_node.images(Host(str(root)), endpoint) == ["pause:1"]
    ((address, method, request, seconds),) = asked
    assert (address, method, request) == (str(root.at(socket_)), "/runtime.v1.ImageService/ListImages", b"")
    assert isinstance(seconds, float)
    monkeypatch.undo()
    assert gpu_node.images(Host(str(root)), "/run/nobody.sock") == []


@pytest.mark.parametrize(
    ("runtime", "said", "puller"),
    [
        ("containerd", "of status", "ctr -n k8s.io images pull"),
        ("cri-o", "of status", "crictl pull"),
        ("containerd", "of dump", "crictl pull"),
        ("docker", "of argument", "docker pull"),
    ],
)
@pytest.mark.parametrize("there", [True, False])
def test_the_sandbox_image_is_the_one_that_the_runtime_is_configured_with(
    root: FakeRoot, monkeypatch: pytest.MonkeyPatch, runtime: str, said: str, puller: str, there: bool
) -> None:
    """By the place where each kind and release has it; whether it is there is asked of the runtime by that name."""
    name = "registry.example.org:5000/" + "p" * 150 + "/pause:3.9"
    if said == "of dump":
        dump = f"[plugins.'io.containerd.cri.v1.images'.pinned_images]\nsandbox = '{name}'\n"
        root.program("/usr/bin/containerd", dump)
        root.program("/usr/bin/crictl")
    root.program("/usr/bin/cri-dockerd")
    root.process(21, "/usr/bin/cri-dockerd", f"--pod-infra-container-image={name}")
    status = field(2, field(1, b"config") + field(2, json.dumps({"sandboxImage": name} if said == "of status" else {}).encode()))

    def call(_address: str, method: str, request: bytes, _seconds: float) -> bytes:
        if method.endswith("/Status"):
            return status
        assert method == "/runtime.v1.ImageService/ImageStatus"
        assert request == field(1, field(1, name.encode()))
        return field(1, field(2, b"x")) if there else b""

    monkeypatch.setattr(gpu_node.cri, "call", call)
    assert answer(gpu_node.sandbox, Host(str(root)), None, runtime) == {"image": name, "missing": not there, "puller": puller}


@pytest.mark.parametrize("name", ["", "a; rm -r /", "x" * 600, 5, None])
def test_a_sandbox_image_that_nothing_names_is_not_said_to_be_missing(root: FakeRoot, monkeypatch: pytest.MonkeyPatch, name: Any) -> None:
    status = field(2, field(1, b"config") + field(2, json.dumps({"sandboxImage": name}).encode()))
    monkeypatch.setattr(gpu_node.cri, "call", lambda *asked: status if asked[1].endswith("/Status") else b"")
    found = answer(gpu_node.sandbox, Host(str(root)), None, "cri-o")
    assert (found["missing"], found["image"]) == ((True, "5") if name == 5 else (False, None))
    monkeypatch.undo()
    assert answer(gpu_node.sandbox, Host(str(root)), "/run/nobody.sock", "containerd")["image"] is None
    assert answer(gpu_node.sandbox, Host(str(root)), None, "docker")["image"] is None


def test_pods_that_kubelet_has_forgotten_while_they_run(root: FakeRoot) -> None:
    """As after rm /var/lib/kubelet/device-plugins/* and a restart of kubelet."""
    here, gone, known = (f"{letter * 8}-0000-4000-8000-000000000000" for letter in "abc")
    root.file("/proc/sys/kernel/random/boot_id", "boot\n")
    root.file("/var/lib/gpushare-device-plugin/held.json", json.dumps({"boot": "boot", "pods": {uid: [] for uid in (here, gone, known)}}))
    for pid, uid in ((70, here), (71, known)):
        root.process(pid, "/app")
        root.file(f"/proc/{pid}/cgroup", f"0::/kubepods/pod{uid}/{'e' * 64}\n")
    assert forgotten(Host(str(root))) == [], "without a checkpoint kubelet has just begun"
    root.file(
        f"{PLUGINS}/kubelet_internal_checkpoint", json.dumps({"Data": {"PodDeviceEntries": [{"PodUID": known, "ResourceName": "x"}]}})
    )
    assert forgotten(Host(str(root))) == [here]
    root.file("/proc/sys/kernel/random/boot_id", "another\n")
    assert forgotten(Host(str(root))) == []


def runtime_service(silent: str | None, lacks: str | None) -> Any:
    """What the parts of a container runtime say; they are tested by themselves."""
    return SimpleNamespace(
        silent=silent,
        wanted=lambda: SimpleNamespace(default="of files"),
        running=lambda: ({}, SimpleNamespace(default="of process")),
        differs=lambda wanted, running: lacks if (wanted.default, running.default) == ("of files", "of process") else "others",
    )


@pytest.mark.parametrize("name", ["containerd", "docker"])
@pytest.mark.parametrize(("unit", "config"), [("x.service", "/mine"), ("", "")])
def test_a_container_runtime_is_compared_with_its_files(
    root: FakeRoot, monkeypatch: pytest.MonkeyPatch, name: str, unit: str, config: str
) -> None:
    opened: list[tuple[object, ...]] = []
    usual = f"{name}.service"
    program = {"containerd": "containerd", "docker": "dockerd"}[name]

    def open_(*asked: object) -> Any:
        opened.append(asked)
        return answers.pop(0)

    monkeypatch.setitem(SERVICES, name, open_)
    monkeypatch.setattr(gpu_node, "find_unit", lambda *asked: type("Found", (tuple,), {"active": "active"})(asked))
    answers = [runtime_service(None, "an entry"), runtime_service(None, None), runtime_service("dead", None)]
    same = {"name": name, "problem": "", "broken": "", "unit": unit or usual, "stopped": None}
    seen = {**same, "file_default": "of files", "running_default": "of process"}
    host = Host(str(root))
    for expected in ({**seen, "lacks": "an entry"}, {**seen, "lacks": ""}):
        assert answer(gpu_node.container_runtime, name, unit, config, "run", host) == expected
    silent = {**seen, "problem": "dead", "running_default": "", "lacks": "", "stopped": asdict(StoppedUnit(unit or usual))}
    assert answer(gpu_node.container_runtime, name, unit, config, "run", host) == silent
    assert opened == [((unit or usual, "run", arguments_of, program), config or None, "run", 10.0, False)] * 3


@pytest.mark.parametrize("error", [Rejected("no"), CriError("no"), OSError("no"), ValueError("no")])
def test_why_a_container_runtime_does_not_answer_is_said_with_its_units_state_and_words(
    root: FakeRoot, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def find_unit(*_arguments: object) -> None:
        raise error

    monkeypatch.setattr(gpu_node, "find_unit", find_unit)
    state = "LoadState=loaded\nActiveState=failed\nSubState=failed\nResult=exit-code\nInvocationID=" + "a1" * 16 + "\n"
    root.program("/usr/bin/systemctl", state)
    root.program("/usr/bin/journalctl", 'level=info msg=up\ntime="x" level=fatal msg="failed to load plugin"\nlevel=info msg=down\n')
    found = answer(gpu_node.container_runtime, "docker", "x.service", "", lambda *_: None, Host(str(root)))
    says = 'time="x" level=fatal msg="failed to load plugin"'
    assert found.pop("stopped") == asdict(StoppedUnit("x.service", "loaded", "failed", "failed", "exit-code", says))
    rest = {"file_default": "", "running_default": "", "lacks": "", "unit": "x.service"}
    assert found == {"name": "docker", "problem": "no", "broken": "", **rest}


@pytest.mark.parametrize(("active", "key"), [("active", "broken"), ("failed", "problem")])
def test_a_file_that_does_not_parse_is_told_from_a_runtime_that_does_not_run(
    root: FakeRoot, monkeypatch: pytest.MonkeyPatch, active: str, key: str
) -> None:
    def reject(*_arguments: object) -> None:
        raise Rejected("(26, 2): unexpected token")

    monkeypatch.setattr(gpu_node, "find_unit", lambda *_: SimpleNamespace(active=active))
    monkeypatch.setitem(SERVICES, "docker", reject)
    found = answer(gpu_node.container_runtime, "docker", "x.service", "", lambda *_: None, Host(str(root)))
    assert {one: found[one] for one in ("problem", "broken")} == {"problem": "", "broken": "", key: "(26, 2): unexpected token"}


def test_a_silent_runtime_is_told_with_what_its_files_say_of_it(monkeypatch: pytest.MonkeyPatch, root: FakeRoot) -> None:
    """As containerd, whose file switches the CRI plugin off."""

    class Silent:
        silent = "unloaded"

        def wanted(self) -> None:
            raise Rejected("disabled_plugins")

    monkeypatch.setattr(gpu_node, "find_unit", lambda *_: SimpleNamespace(active="active"))
    monkeypatch.setitem(SERVICES, "containerd", lambda *_: Silent())
    found = answer(gpu_node.container_runtime, "containerd", "", "", lambda *_: None, Host(str(root)))
    assert (found["problem"], found["broken"]) == ("unloaded", "disabled_plugins")


UID, OTHER, FORGOTTEN = (f"{number}1111111-2222-4333-8444-555555555555" for number in (1, 2, 3))


def test_containers_with_gpus_that_kubelet_gave_no_device(root: FakeRoot) -> None:
    kinds = {40: (UID, ("nvidia0",)), 41: (OTHER, ("nvidia1", "null")), 42: (OTHER, ("nvidia0", "kmsg")), 43: (OTHER, ("nvidia0", "kmsg"))}
    for pid, (uid, nodes) in kinds.items():
        root.process(pid, "/app", namespace="pid:[7]")
        root.file(f"/proc/{pid}/cgroup", f"0::/kubepods/pod{uid}/{pid:02d}{'a' * 62}\n")
        for node in nodes:
            root.file(f"/proc/{pid}/root/dev/{node}")
    # Of two privileged ones, which have every device node, one uses a GPU.
    root.link("/proc/43/fd/7", "/dev/nvidia1")
    root.link("/proc/42/fd/7", "/dev/nvidiactl")
    entry = {"PodUID": UID, "ContainerName": "c", "ResourceName": "aliyun.com/gpu-mem"}
    root.file(f"{PLUGINS}/kubelet_internal_checkpoint", json.dumps({"Data": {"PodDeviceEntries": [entry]}}))
    root.file(f"/var/log/pods/n_p_{OTHER}/x")
    # Deleted by force: kubelet has forgotten it, its process still runs, and our device plugin counts its memory.
    root.process(44, "/app", namespace="pid:[7]")
    root.file("/proc/44/cgroup", f"0::/kubepods/pod{FORGOTTEN}/44{'a' * 62}\n")
    root.file("/proc/44/root/dev/nvidia1")
    # One that has named a group in its own one after a pod that has a device.
    root.process(45, "/app", namespace="pid:[7]")
    root.file("/proc/45/cgroup", f"0::/kubepods/pod{OTHER}/45{'a' * 62}/pod{UID}\n")
    root.file("/proc/45/root/dev/nvidia0")
    forgotten = {"name": f"container 44aaaaaaaaaa of pod {FORGOTTEN} (process 44)", "gpus": ["nvidia1"], "privileged": False}
    root.file("/proc/sys/kernel/random/boot_id", "this-boot\n")
    state: Any
    for state, known in (
        ({"boot": "this-boot", "pods": {FORGOTTEN: {"name": "n/f", "containers": {}}}}, True),
        # UIDs of static pods stay the same after a boot.
        ({"boot": "another", "pods": {FORGOTTEN: {}}}, False),
        ({"boot": "this-boot", "pods": [FORGOTTEN]}, False),
        ([FORGOTTEN], False),
        ("[" * 100_000, False),
    ):
        root.file("/var/lib/gpushare-device-plugin/held.json", state if isinstance(state, str) else json.dumps(state))
        assert (forgotten in answer(gpu_node.strangers, Host(str(root)))) is not known, state
    root.file("/var/lib/gpushare-device-plugin/held.json", json.dumps({"boot": "this-boot", "pods": {FORGOTTEN: {}}}))
    assert answer(gpu_node.strangers, Host(str(root))) == [
        {"name": "container 41aaaaaaaaaa of pod n/p (process 41)", "gpus": ["nvidia1"], "privileged": False},
        {"name": "container 43aaaaaaaaaa of pod n/p (process 43)", "gpus": ["nvidia1"], "privileged": True},
        {"name": "container 45aaaaaaaaaa of pod n/p (process 45)", "gpus": ["nvidia0"], "privileged": False},
    ]


@pytest.mark.parametrize(
    "group",
    [
        "/system.slice/crio-conmon-{id}.scope",
        "/kubepods.slice/kubepods-pod{uid}.slice/crio-conmon-{id}.scope",
        "/kubepods/pod{uid}/crio-conmon-{id}",
        "/kubepods.slice/kubepods-pod{uid}.slice/crio-{id}.scope",
    ],
)
def test_a_process_with_the_hosts_files_says_nothing_of_a_container(root: FakeRoot, group: str) -> None:
    """CRI-O's conmon, and what a runtime leaves in the container's own group: they are older than the container, and see each GPU."""
    identity = "a1" * 32
    groups = {40: group, 41: "/kubepods.slice/kubepods-pod{uid}.slice/crio-{id}.scope/container"}
    root.process(40, "/usr/bin/conmon", "-c", identity)
    root.process(41, "/app", namespace="pid:[7]")
    for pid, text in groups.items():
        root.file(f"/proc/{pid}/cgroup", f"0::{text.format(id=identity, uid=UID.replace('-', '_'))}\n")
    for node in ("nvidia0", "nvidia1", "kmsg"):
        root.file(f"/dev/{node}")
    root.file("/proc/41/root/dev/nvidia0")
    root.link("/proc/41/fd/7", "/dev/nvidia0")
    assert gpu_node.containers(Host(str(root))) == {identity: ["nvidia0"]}
    entry = {"PodUID": UID, "ContainerName": "c", "ResourceName": "aliyun.com/gpu-mem"}
    root.file(f"{PLUGINS}/kubelet_internal_checkpoint", json.dumps({"Data": {"PodDeviceEntries": [entry]}}))
    assert answer(gpu_node.strangers, Host(str(root))) == []
    # The helper outlives it by a moment.
    root.file("/proc/41/cgroup", "")
    assert gpu_node.containers(Host(str(root))) == {}


@pytest.mark.parametrize(
    "group",
    [
        "0::/kubepods/burstable/pod1/{id}",
        "0::/kubepods.slice/kubepods-pod1.slice/cri-containerd-{id}.scope",
        "12:pids:/system.slice/{other}/kubepods/pod1/{id}\n1:name=systemd:/x",
        "0::/kubepods.slice/crio-{id}.scope/container",
    ],
)
def test_the_device_nodes_of_containers(root: FakeRoot, group: str) -> None:
    identity, other = "a1" * 32, "b2" * 32
    for pid, name in ((40, "nvidia0"), (41, "nvidia1")):
        root.process(pid, "/app", namespace="pid:[7]")
        root.file(f"/proc/{pid}/cgroup", group.format(id=identity, other=other) + "\n")
        for node in (name, "nvidiactl", "null"):
            root.file(f"/proc/{pid}/root/dev/{node}")
    # Two processes of another one, the elder of which sees no device; one of the host.
    for pid in (42, 43):
        root.process(pid, "/app", namespace="pid:[8]")
        root.file(f"/proc/{pid}/cgroup", f"0::/kubepods/{other}\n")
    root.at("/proc/42/root/dev/").mkdir()
    for node in ("nvidia11", "nvidia2", "nvidia2x", "xnvidia3"):
        root.file(f"/proc/43/root/dev/{node}")
    root.process(44, "/usr/sbin/sshd")
    root.file("/proc/44/cgroup", "0::/system.slice/ssh.service\n")
    root.process(45, "/usr/sbin/cron")
    # One whose first process ends while it is looked at, and one of which nothing is left.
    short, gone = "c3" * 32, "d4" * 32
    for pid, container in ((46, short), (47, short), (48, gone)):
        root.process(pid, "/app", namespace="pid:[9]")
        root.file(f"/proc/{pid}/cgroup", f"0::/kubepods/{container}\n")
    root.file("/proc/47/root/dev/nvidia1")
    assert gpu_node.containers(Host(str(root))) == {identity: ["nvidia0"], other: [], short: ["nvidia1"]}
    root.at("/proc/42/root/dev/nvidia7").touch()
    root.at("/proc/42/root/dev/nvidia12").touch()
    assert gpu_node.containers(Host(str(root)))[other] == ["nvidia12", "nvidia7"]
    # Instances of GPUs in MIG mode; nvidia-caps of a container that leads elsewhere is not followed.
    root.file("/proc/42/root/dev/nvidia-caps/nvidia-cap67")
    root.file("/proc/42/root/dev/nvidia-caps/else")
    assert gpu_node.containers(Host(str(root)))[other] == ["nvidia-caps/nvidia-cap67", "nvidia12", "nvidia7"]
    root.at("/proc/42/root/dev/nvidia-caps").rename(root.at("/proc/42/elsewhere"))
    root.link("/proc/42/root/dev/nvidia-caps", str(root.at("/proc/42/elsewhere")))
    assert gpu_node.containers(Host(str(root)))[other] == ["nvidia12", "nvidia7"]


def test_a_container_that_starts_while_the_host_is_looked_at_is_seen(root: FakeRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    """The doctor may wait for half a minute. Each container that has been started by `now` is judged."""
    started = {}

    def starts(pid: int) -> Any:
        started[identity := f"{pid:02d}" * 32] = ["nvidia0"]
        root.process(pid, "/app", namespace="pid:[7]")
        root.file(f"/proc/{pid}/cgroup", f"0::/kubepods/{identity}\n")
        root.file(f"/proc/{pid}/root/dev/nvidia0")
        return float(pid)

    starts(50)
    monkeypatch.setattr(daemons, "doctor", lambda *_: daemons.DoctorSays("", "", str(starts(51))))
    monkeypatch.setattr(evidence_host, "time", SimpleNamespace(time=lambda: starts(52)))
    found = see(Host(str(root)), Places(gpu_node=True, control_plane=False))
    assert (found["now"], found["gpu"]["containers"]) == (52.0, started)


def test_the_schedulers_files_and_those_beside_them(root: FakeRoot) -> None:
    control_plane(root)
    folder = "/etc/kubernetes/manifests"
    root.file(f"{folder}/kube-scheduler.yaml", "- kube-scheduler\n- --config=/etc/k/s.yaml\n")
    root.file(f"{folder}/kube-scheduler.yaml.bak", "- kube-scheduler\n")
    root.file(f"{folder}/.kube-scheduler.yaml.swp", "- kube-scheduler\n")
    root.file("/etc/k/s.yaml", "a: 1\n")
    found = answer(evidence_control_plane.scheduler_files, Host(str(root)), f"{folder}/kube-scheduler.yaml", "/etc/default.yaml")
    assert found["others"] == {f"{folder}/kube-scheduler.yaml.bak": "- kube-scheduler\n"}
    assert found["manifest"] == "- kube-scheduler\n- --config=/etc/k/s.yaml\n"
    assert found["configs"] == {
        "/etc/default.yaml": None,
        "/etc/k/s.yaml": {"text": "a: 1\n", "sha256": hashlib.sha256(b"a: 1\n").hexdigest()},
    }


def test_a_control_plane_without_the_schedulers_manifest(root: FakeRoot) -> None:
    manifest = "/etc/kubernetes/manifests/kube-scheduler.yaml"
    root.file("/etc/kubernetes/manifests/large", b" " * (256 * 1024 - 14) + b"kube-scheduler" + b"\xff")
    root.file("/etc/kubernetes/manifests/odd", b"\xffkube-scheduler")
    root.file("/etc/kubernetes/manifests/folder/kube-scheduler.yaml", "kube-scheduler")
    root.file("/etc/default.yaml", b"\xff")
    # Of a large file no more is read than a manifest could have.
    others = {"large": " " * (256 * 1024 - 14) + "kube-scheduler", "odd": "\N{REPLACEMENT CHARACTER}kube-scheduler"}
    found = answer(evidence_control_plane.scheduler_files, Host(str(root)), manifest, "/etc/default.yaml")
    config = {"text": "\N{REPLACEMENT CHARACTER}", "sha256": hashlib.sha256(b"\xff").hexdigest()}
    assert found == {
        "manifest": None,
        "others": {f"/etc/kubernetes/manifests/{name}": text for name, text in others.items()},
        "configs": {"/etc/default.yaml": config},
        "unreached": {},
        "says": "",
        "server_says": "",
        "controllers_say": "",
        "controllers_elect": True,
    }


def test_the_lives_of_a_control_planes_certificates_and_nothing_else_of_its_kubeconfigs(root: FakeRoot) -> None:
    begin, end = datetime(2026, 1, 1, tzinfo=timezone.utc), datetime(2027, 1, 1, tzinfo=timezone.utc)
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "system:kube-scheduler")])
    pem = x509.CertificateBuilder(name, name, key.public_key(), 1, begin, end).sign(key, hashes.SHA256())
    data = base64.b64encode(pem.public_bytes(serialization.Encoding.PEM)).decode()
    root.file("/etc/kubernetes/scheduler.conf", f"users:\n- user:\n    client-certificate-data: {data}\n    client-key-data: c2VjcmV0\n")
    root.file("/etc/kubernetes/admin.conf", "users:\n- user:\n    token: abc\n")
    assert evidence_control_plane.lives(Host(str(root))) == {"/etc/kubernetes/scheduler.conf": (begin.timestamp(), end.timestamp())}


def test_the_last_error_of_the_scheduler_is_that_of_its_last_start(root: FakeRoot) -> None:
    folder = "/var/log/pods/kube-system_kube-scheduler-cp1_0123/kube-scheduler"
    line = "2026-11-29T10:00:00.5Z stderr F {}1129 10:00:00.500000       1 reflector.go:227] {}\n"
    root.file(f"{folder}/0.log", line.format("E", "of the start before"))
    os.utime(root.at(f"{folder}/0.log"), (1, 1))
    said = line.format("E", 'leaderelection.go:452] "error: Unauthorized \x1b"') + line.format("W", "a warning")
    said += line.format("E", "The manifest file is empty, ignoring.")
    root.file(f"{folder}/1.log", "x" * 100_000 + "\n" + said)
    # Of a container that docker has removed.
    root.at(f"{folder}/2.log").symlink_to("/nonexistent")
    root.file("/var/log/pods/kube-system_other-cp1_1/kube-scheduler/9.log", line.format("E", "of another"))
    server = "/var/log/pods/kube-system_kube-apiserver-cp1_0123/kube-apiserver/0.log"
    full = 'err="etcdserver: mvcc: database space exceeded"'
    root.file(server, line.format("E", full))
    controllers = "/var/log/pods/kube-system_kube-controller-manager-cp1_0123/kube-controller-manager/0.log"
    root.file(controllers, "2026-11-29T10:00:00.5Z stderr F Error: unknown flag: --x\n2026-11-29T10:00:00.5Z stderr F Usage: Error: none\n")
    found = answer(evidence_control_plane.scheduler_files, Host(str(root)), "/none", "/none")
    assert found["server_says"] == full
    assert found["controllers_say"].endswith(": --x")
    assert found["says"] == 'leaderelection.go:452] "error: Unauthorized "'


def test_controllers_that_run_alone_are_told_by_their_manifest(root: FakeRoot) -> None:
    control_plane(root)
    folder = "/etc/kubernetes/manifests"
    for line, elect in (("--leader-elect=true", True), ("--leader-elect=false", False), ("--leader-elect-lease-duration=1s", True)):
        root.file(f"{folder}/kube-controller-manager.yaml", f"spec:\n  containers:\n  - command:\n    - {line}\n")
        found = answer(evidence_control_plane.scheduler_files, Host(str(root)), f"{folder}/kube-scheduler.yaml", "/none")
        assert found["controllers_elect"] is elect


def test_everything_in_one_go_is_json_and_writes_nothing(root: FakeRoot, tmp_path: Path) -> None:
    control_plane(root)
    installed(root)
    before = {str(path): path.lstat().st_mtime_ns for path in tmp_path.rglob("*")}
    found = see(Host(str(root)), Places(gpu_node=True, control_plane=True, extender_port=1))
    assert {str(path): path.lstat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    assert json.loads(json.dumps(found))["places"]["extender_port"] == 1
    assert found["node_name"] == "node-7"
    assert len(found["gpu"]["nvidia_smi"]["gpus"]) == 2
    assert "there is no" in found["doctor"]["problem"]
    again = see(Host(str(root)), Places(gpu_node=True, control_plane=True, extender_port=1), ["containers", "extender"])
    assert set(again["gpu"]) == {"containers"}
    assert set(again["doctor"]) == {"problem", "cure", "answer"}


def test_a_dashboard_that_is_there_is_looked_at_whether_it_shall_be_or_not(root: FakeRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    watched(monkeypatch)
    places = Places(gpu_node=False, control_plane=True)
    assert see(Host(str(root)), places)["doctor"][2] == [EXTENDER]
    root.file("/etc/systemd/system/gpushare-dashboard.service", "[Service]\n")
    assert see(Host(str(root)), places)["doctor"][2] == [EXTENDER, "gpushare-dashboard"]
