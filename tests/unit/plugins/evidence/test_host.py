# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What verify sees on a host: a folder that stands for it, and a socket that somebody really listens on."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import socket
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._evidence import control_plane as evidence_control_plane
from ansible_collections.gpushare.kubernetes.plugins.module_utils._evidence import daemons, gpu_node
from ansible_collections.gpushare.kubernetes.plugins.module_utils._evidence import host as evidence_host
from ansible_collections.gpushare.kubernetes.plugins.module_utils._evidence.host import Places, see
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts import kubelet_checkpoint
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts.device_managers import Manager
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts.node import gather
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.host import Host
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes.containerd_config import Refused
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes.cri import CriError

from unit.plugins.fake_root import FakeRoot, control_plane, debian, gpu, kubelet

ENVIRONMENT = "/opt/gpushare/0.1.0-0123456789ab"
PACKAGES = f"{ENVIRONMENT}/lib/python3.11/site-packages"
ROOT = "/var/lib/kubelet"


@pytest.fixture
def root(tmp_path: Path) -> FakeRoot:
    return gpu(kubelet(debian(FakeRoot(tmp_path))))


def installed(root: FakeRoot) -> None:
    """An environment as pip and our marker leave it."""
    content = b"x = 1\n"
    digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    root.file(f"{PACKAGES}/gpushare_runtime/core/ledger.py", content)
    record = f"gpushare_runtime/core/ledger.py,sha256={digest},6\n../../../bin/gpushare-extender,sha256=abc,9\ngpushare_runtime/x.pyc,,\n"
    root.file(f"{PACKAGES}/gpushare_runtime-0.1.0.dist-info/RECORD", record)
    root.file(f"{ENVIRONMENT}/.gpushare-complete.json", json.dumps({"version": "0.1.0", "wheel_sha256": "a", "requirements_sha256": "b"}))
    root.link("/opt/gpushare/current", "0.1.0-0123456789ab")


def seen_runtime(root: FakeRoot) -> dict[str, Any]:
    return daemons.runtime(Host(str(root)), "/opt/gpushare")


NO_RUNTIME = {
    "version": "",
    "wheel_sha256": "",
    "requirements_sha256": "",
    "environment": "",
    "files": 0,
    "damaged": [],
    "damaged_count": 0,
}


def test_the_runtime_and_a_file_of_it_that_was_changed(root: FakeRoot) -> None:
    root.file("/opt/gpushare/lib/python3.11/site-packages/gpushare_runtime-1.dist-info/RECORD", "gpushare_runtime/x.py,sha256=abc,1\n")
    assert seen_runtime(root) == NO_RUNTIME
    installed(root)
    sound = {"version": "0.1.0", "wheel_sha256": "a", "requirements_sha256": "b", "environment": ENVIRONMENT, "files": 1}
    assert seen_runtime(root) == {**sound, "damaged": [], "damaged_count": 0}
    # Another package, and another Python's folder, are none of ours.
    root.file(f"{PACKAGES}/other-1.0.dist-info/RECORD", "other/x.py,sha256=abc,1\n")
    root.file(f"{PACKAGES}/gpushare_runtime-0.1.0.data/RECORD", "gpushare_runtime/x.py,sha256=abc,1\n")
    root.file(f"{ENVIRONMENT}/lib/pypy3/site-packages/gpushare_runtime-0.1.0.dist-info/RECORD", "gpushare_runtime/x.py,sha256=abc,1\n")
    assert seen_runtime(root) == {**sound, "damaged": [], "damaged_count": 0}
    root.file(f"{PACKAGES}/gpushare_runtime/core/ledger.py", "x = 2\n")
    assert seen_runtime(root) == {**sound, "damaged": ["gpushare_runtime/core/ledger.py"], "damaged_count": 1}
    root.file(f"{ENVIRONMENT}/.gpushare-complete.json", "no JSON")
    without = {**NO_RUNTIME, "environment": ENVIRONMENT, "files": 1}
    assert seen_runtime(root) == {**without, "damaged": ["gpushare_runtime/core/ledger.py"], "damaged_count": 1}


def test_of_many_files_that_are_gone_five_are_named(root: FakeRoot) -> None:
    installed(root)
    nothing = base64.urlsafe_b64encode(hashlib.sha256(b"").digest()).rstrip(b"=").decode()
    names = [f"gpushare_runtime/{name}.py" for name in ("a", "b", "c", "d,d", "e", "f")]
    rows = [f"{name},sha256={nothing},0" for name in names]
    rows += ["gpushare_runtime/g.py,md5=abc,1", "gpushare_runtime/h.txt,sha256=abc,1", "gpushare_runtime/i.py,sha256=abc"]
    root.file(f"{PACKAGES}/gpushare_runtime-0.1.0.dist-info/RECORD", "\n".join(rows))
    found = seen_runtime(root)
    # An empty file has the recorded hash, one that is gone has none.
    assert (found["files"], found["damaged"], found["damaged_count"]) == (6, names[:5], 6)
    for name in names:
        root.file(f"{PACKAGES}/{name}")
    found = seen_runtime(root)
    assert (found["files"], found["damaged"], found["damaged_count"]) == (6, [], 0)
    root.at(f"{PACKAGES}/gpushare_runtime-0.1.0.dist-info/RECORD").unlink()
    assert seen_runtime(root)["files"] == 0


def test_a_unit_with_the_generations_of_its_file_and_of_its_process(root: FakeRoot) -> None:
    start = (
        "ExecStart=/opt/x/gpushare-extender --token-file y \\\n  --metrics-token-file '/a b' \\\n  --listen 127.0.0.1:1\nExecStartPost=z\n"
    )
    root.file("/etc/systemd/system/gpushare-extender.service", f"[Service]\nEnvironment=GPUSHARE_GENERATION=new\n{start}")
    root.program(
        "/usr/bin/systemctl", "LoadState=loaded\nActiveState=active\nSubState=running\nUnitFileState=enabled\nMainPID=77\nStatusText=a=b"
    )
    # It may say of itself what it likes; root reads the files that are named there, and sends one of them away.
    root.process(77, "/opt/x/gpushare-extender", "--metrics-listen", "192.0.2.1:1", "--metrics-token-file", "/etc/shadow")
    root.file("/proc/77/environ", b"XGPUSHARE_GENERATION=x\0A=1\0GPUSHARE_GENERATION=old\0GPUSHARE_GENERATION=later\0")
    assert daemons.unit(Host(str(root)), "gpushare-extender") == {
        "name": "gpushare-extender",
        "exists": True,
        "active": "active",
        "state": "running",
        "enabled": True,
        "says": "a=b",
        "pid": 77,
        "with_token": True,
        "arguments": ["/opt/x/gpushare-extender", "--token-file", "y", "--metrics-token-file", "/a b", "--listen", "127.0.0.1:1"],
        "file_generation": "new",
        "process_generation": "old",
    }


def test_a_unit_of_which_less_is_there(root: FakeRoot) -> None:
    nothing = {"active": "unknown", "state": "", "enabled": False, "says": "", "pid": 0, "arguments": [], "process_generation": None}
    without = {"name": "gpushare-extender", "exists": False, "with_token": False, "file_generation": None}
    assert daemons.unit(Host(str(root)), "gpushare-extender") == {**nothing, **without}
    root.file("/etc/systemd/system/gpushare-extender.service", "[Service]\n# Environment=GPUSHARE_GENERATION=no\n")
    root.program("/usr/bin/systemctl", "no words\nActiveState=inactive\nSubState=dead\nUnitFileState=disabled\nMainPID=\nStatusText=")
    root.file("/proc/0/cmdline", b"idle\0")
    root.file("/proc/0/environ", b"")
    stopped = {**without, "active": "inactive", "state": "dead", "exists": True, "file_generation": ""}
    assert daemons.unit(Host(str(root)), "gpushare-extender") == {**nothing, **stopped}
    root.program("/usr/bin/systemctl", "MainPID=77")
    assert daemons.unit(Host(str(root)), "gpushare-extender")["process_generation"] is None
    root.file("/proc/77/environ", b"A=1")
    root.file("/etc/systemd/system/gpushare-extender.service", "[Service]\nExecStart=x 'y\n")
    found = daemons.unit(Host(str(root)), "gpushare-extender")
    assert (found["arguments"], found["process_generation"]) == ([], "")


def test_systemd_is_asked_about_the_unit_by_its_file_name(root: FakeRoot) -> None:
    root.at("/usr/bin/systemctl").write_text('#!/bin/sh\necho "StatusText=$*"\n')
    root.at("/usr/bin/systemctl").chmod(0o755)
    words = daemons.unit(Host(str(root)), "x")["says"].split()
    assert words[:2] == ["show", "x.service"]
    wanted = {"LoadState", "ActiveState", "SubState", "UnitFileState", "MainPID", "StatusText"}
    assert set(words[2].removeprefix("--property=").split(",")) == wanted


def test_a_token_file_with_claims_without_and_none(root: FakeRoot) -> None:
    path = "/var/lib/gpushare-extender/token"
    assert daemons.token(Host(str(root)), path) == {"path": path, "exists": False, "claims": None}
    root.file(path, "no token")
    assert daemons.token(Host(str(root)), path) == {"path": path, "exists": True, "claims": None}
    account = {"serviceaccount": {"name": "a", "uid": "u"}, "namespace": "kube-system"}
    content = {"sub": "system:serviceaccount:kube-system:a", "iat": 100, "exp": 200, "kubernetes.io": account}
    body = base64.urlsafe_b64encode(json.dumps(content).encode()).rstrip(b"=").decode()
    root.file(path, f"e30.{body}.c2ln\n")
    found = daemons.token(Host(str(root)), path)
    assert (found["exists"], found["claims"]["issued"], found["claims"]["expires"], found["claims"]["uid"]) == (True, 100, 200, "u")


def test_certificates_as_the_runtime_says_or_why_not(root: FakeRoot) -> None:
    program = "/opt/gpushare/current/bin/gpushare-pki"
    assert "there is no" in daemons.certificates(Host(str(root)), "/opt/gpushare", "/p")["problem"]
    root.program(program, '{"certificates": [{"path": "ca.crt"}]}')
    assert daemons.certificates(Host(str(root)), "/opt/gpushare", "/p") == {"problem": "", "certificates": [{"path": "ca.crt"}]}
    root.at(program).write_text('#!/bin/sh\nprintf \'{"certificates": "%s"}\' "$*"\n')
    assert daemons.certificates(Host(str(root)), "/opt/gpushare", "/p")["certificates"] == "status --dir /p"
    for output in ("[]", "{}"):
        root.program(program, output)
        found = daemons.certificates(Host(str(root)), "/opt/gpushare", "/p")
        assert found["certificates"] == []
        assert found["problem"].startswith(f"{program} status --dir /p ended with 0")
    root.program(program, "no permission", status=1)
    assert daemons.certificates(Host(str(root)), "/opt/gpushare", "/p")["problem"].endswith("ended with 1: no permission")


def test_who_listens_on_a_device_plugins_socket(root: FakeRoot) -> None:
    for name in ("kubelet.sock", "a.sock", "b.sock", "dead.sock"):
        root.socket(f"{ROOT}/device-plugins/{name}")
    root.file(f"{ROOT}/device-plugins/kubelet_internal_checkpoint", "{}")
    root.process(5, "/bin/other-plugin", "--x", "y", "z")
    root.process(7, "/bin/alone")
    root.socket(f"{ROOT}/device-plugins/c.sock")
    asked = []

    def peer(path: str) -> int | None:
        asked.append(path)
        return {"dead.sock": None, "b.sock": 6, "c.sock": 7}.get(Path(path).name, 5)

    assert gpu_node.sockets(Host(str(root)), ROOT, peer) == [
        {"name": "a.sock", "pid": 5, "process": "/bin/other-plugin --x y"},
        {"name": "b.sock", "pid": 6, "process": ""},
        {"name": "c.sock", "pid": 7, "process": "/bin/alone"},
    ]
    assert asked == [str(root.at(f"{ROOT}/device-plugins/{name}.sock")) for name in ("a", "b", "c", "dead")]


def test_the_listener_of_a_socket_is_found_by_the_kernels_word() -> None:
    with tempfile.TemporaryDirectory(prefix="gv") as folder, socket.socket(socket.AF_UNIX) as server:
        path = f"{folder}/s"
        assert gpu_node.listener(path) is None
        server.bind(path)
        assert gpu_node.listener(path) is None
        server.listen()
        assert gpu_node.listener(path) == os.getpid()


def test_a_plugin_that_restarts_while_it_is_looked_at_is_looked_at_again(root: FakeRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    pids, owners = iter([1, 2, 2]), iter([2, 2])
    monkeypatch.setattr(daemons, "unit", lambda host, name: {"pid": next(pids), "arguments": []})
    monkeypatch.setattr(gpu_node, "sockets", lambda host, root, peer: [{"pid": next(owners)}])
    found = see(Host(str(root)), Places(gpu_node=True, control_plane=False))["gpu"]
    assert (found["plugin"]["pid"], found["sockets"][0]["pid"]) == (2, 2)
    assert list(owners) == []


def watched(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """What `see` asks of the parts, which answer with their own name and arguments."""
    asked: list[tuple[Any, ...]] = []

    def part(name: str) -> Any:
        def answer(_host: Host, *arguments: Any) -> Any:
            asked.append((name, *arguments))
            return {"pid": 7, "arguments": ["a"], "name": arguments[0]} if name == "unit" else (name, *arguments)

        return answer

    for module, names in (
        (daemons, ("unit", "runtime", "token", "certificates", "metrics")),
        (gpu_node, ("sockets", "container_runtime", "images", "cdi", "containers")),
        (evidence_control_plane, ("scheduler_files",)),
    ):
        for name in names:
            monkeypatch.setattr(module, name, part(name))
    monkeypatch.setattr(evidence_control_plane, "health", lambda port, ca: ("health", port, ca))
    monkeypatch.setattr(kubelet_checkpoint, "registered_by_card", part("registered"))
    monkeypatch.setattr(daemons, "now", lambda: 5.0)
    return asked


PLACES: dict[str, Any] = {
    "install_dir": "/i",
    "config_dir": "/c",
    "pki_dir": "/p",
    "extender_port": 1,
    "memory_unit": "MiB",
    "metrics_plugin": "a:1",
    "metrics_extender": "b:2",
    "runtime_unit": "x.service",
    "runtime_config": "/x.toml",
    "scheduler_manifest": "/m.yaml",
    "scheduler_config": "/s.yaml",
}


def tokens_of(unit: str, seed: str) -> dict[str, tuple[str, str]]:
    return {"own": ("token", f"/var/lib/{unit}/token"), "seed": ("token", f"/c/{seed}.token")}


def test_every_part_of_a_host_is_looked_at_where_it_is(root: FakeRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    watched(monkeypatch)
    places = Places(gpu_node=True, control_plane=True, **PLACES)
    found = see(Host(str(root)), places)
    gpu_, plane = found.pop("gpu"), found.pop("plane")
    smi, driver = gpu_.pop("nvidia_smi"), gpu_.pop("driver")
    assert found == {
        "places": {"gpu_node": True, "control_plane": True, **PLACES},
        "node_name": "node-7",
        "kubelet": {"running": True, "root": ROOT},
        "runtime": ("runtime", "/i"),
        "now": 5.0,
    }
    assert (len(smi["cards"]), driver["loaded"], driver["library"]) == (2, "535.261.03", "535.261.03")
    assert gpu_ == {
        "plugin": {"pid": 7, "arguments": ["a"], "name": "gpushare-device-plugin"},
        "metrics": ("metrics", "a:1", ["a"]),
        "tokens": tokens_of("gpushare-device-plugin", "device-plugin"),
        "sockets": ("sockets", ROOT, gpu_node.listener),
        "registered": ("registered", ROOT),
        "managers": [],
        "container_runtime": gpu_["container_runtime"],
        "images": ("images", gpu_["container_runtime"][1]),
        "cdi": ("cdi",),
        "containers": ("containers",),
    }
    name, endpoint, unit, config, _run = gpu_["container_runtime"]
    assert (name, endpoint, unit, config) == ("container_runtime", "unix:///run/containerd/containerd.sock", "x.service", "/x.toml")
    assert plane == {
        "extender": {"pid": 7, "arguments": ["a"], "name": "gpushare-extender"},
        "metrics": ("metrics", "b:2", ["a"]),
        "tokens": tokens_of("gpushare-extender", "extender"),
        "certificates": ("certificates", "/i", "/p"),
        "scheduler": ("scheduler_files", "/m.yaml", "/s.yaml"),
        "health": ("health", 1, "/p/ca.crt"),
    }


def test_a_host_is_looked_at_for_what_it_is_and_what_is_asked_for(root: FakeRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = watched(monkeypatch)
    host = Host(str(root))
    found = see(host, Places(gpu_node=False, control_plane=True))
    assert (found["gpu"], found["plane"]["certificates"], found["plane"]["health"]) == (None, None, ("health", 32766, ""))
    assert not {one[0] for one in asked} & {"sockets", "containers", "images"}
    asked.clear()
    found = see(host, Places(gpu_node=True, control_plane=False, runtime_unit=""))
    assert (found["plane"], found["gpu"]["container_runtime"]) == (None, None)
    assert not {one[0] for one in asked} & {"scheduler_files", "certificates", "container_runtime"}
    for only, parts in (["containers"], {"gpu": {"containers"}}), (["extender"], {"plane": {"health"}}), ([], {}):
        asked.clear()
        found = see(host, Places(gpu_node=True, control_plane=True), only)
        assert {part: set(found[part]) for part in ("gpu", "plane") if found[part] is not None} == parts
        assert set(found) == {"places", "gpu", "plane", "now"}
        assert asked == ([("containers",)] if only == ["containers"] else [])
    for both in (Places(gpu_node=False, control_plane=False), Places(gpu_node=False, control_plane=True)):
        assert see(host, both, ["containers"])["gpu"] is None
    assert see(host, Places(gpu_node=True, control_plane=False), ["extender"])["plane"] is None


def test_the_runtime_is_not_asked_where_kubelet_uses_another(root: FakeRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    watched(monkeypatch)
    root.file("/proc/30/cmdline", b"/usr/bin/kubelet\0--container-runtime-endpoint=unix:///run/crio/crio.sock\0")
    found = see(Host(str(root)), Places(gpu_node=True, control_plane=False))["gpu"]
    assert (found["container_runtime"], found["images"]) == (None, ("images", "unix:///run/crio/crio.sock"))


def test_a_gpu_host_without_a_driver_is_looked_at(root: FakeRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    watched(monkeypatch)
    monkeypatch.setattr(evidence_host, "managers", lambda *asked: [Manager(name, name == "on", asked[1:]) for name in ("on", "off")])
    monkeypatch.setattr(evidence_host, "gather", lambda host, subsets: replace(gather(host, subsets), nvidia_smi=None, driver=None))
    found = see(Host(str(root)), Places(gpu_node=True, control_plane=False, install_dir="/i"))["gpu"]
    assert (found["nvidia_smi"], found["driver"]) == (None, None)
    assert [(one["name"], one["active"], list(one["evidence"])) for one in found["managers"]] == [("on", True, [ROOT, "/i"])]


def test_a_plugin_that_restarts_all_the_time_is_looked_at_three_times(root: FakeRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    pids = iter(range(1, 9))
    looks = iter(range(1, 9))
    monkeypatch.setattr(daemons, "unit", lambda host, name: {"pid": next(pids), "arguments": []})
    monkeypatch.setattr(gpu_node, "sockets", lambda host, root, peer: [{"pid": next(looks)}])
    found = see(Host(str(root)), Places(gpu_node=True, control_plane=False))["gpu"]
    assert (found["plugin"]["pid"], found["sockets"]) == (4, [{"pid": 3}])


def test_what_kubelet_has_registered_by_card(root: FakeRoot) -> None:
    path = f"{ROOT}/device-plugins/kubelet_internal_checkpoint"
    devices = {"aliyun.com/gpu-mem": ["GPU-1-_-0", "GPU-1-_-1", "GPU-2-_-0"], "aliyun.com/gpu-count": ["GPU-1"], "other.com/x": ["1"]}
    root.file(path, json.dumps({"Data": {"PodDeviceEntries": None, "RegisteredDevices": devices}}))
    found = kubelet_checkpoint.registered_by_card(Host(str(root)), ROOT)
    assert found == {"aliyun.com/gpu-mem": {"GPU-1": 2, "GPU-2": 1}, "aliyun.com/gpu-count": {"GPU-1": 1}}
    by_numa = {"aliyun.com/gpu-mem": {"-1": ["GPU-1-_-0"], "0": ["GPU-1-_-1", "GPU-2-_-0"]}, "aliyun.com/gpu-count": None}
    root.file(path, json.dumps({"Data": {"PodDeviceEntries": None, "RegisteredDevices": by_numa}}))
    found = kubelet_checkpoint.registered_by_card(Host(str(root)), ROOT)
    assert found == {"aliyun.com/gpu-mem": {"GPU-1": 2, "GPU-2": 1}, "aliyun.com/gpu-count": {}}
    for content in (
        "{",
        json.dumps({"Data": {"RegisteredDevices": ["a"]}}),
        json.dumps({"Data": {"RegisteredDevices": {"aliyun.com/x": 7}}}),
    ):
        root.file(path, content)
        assert kubelet_checkpoint.registered_by_card(Host(str(root)), ROOT) == {}


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
    found = gpu_node.cdi(Host(str(root)))
    assert found["mode"] == "cdi"
    (spec,) = found["specs"]
    assert (spec["path"], spec["versions"]) == (f"/etc/cdi/{name}", ["535.1.2"])
    assert spec["cards"] == (["GPU-00000000-0000-4000-8000-000000000001"] if "GPU-" in text else [])
    assert set(spec) == {"path", "cards", "versions", "missing"}
    assert "/usr/lib/libcuda.so.535.1.2" in spec["missing"]
    assert not {"/dev/nvidia0", "/in/the/container"} & set(spec["missing"])
    root.file("/usr/lib/libcuda.so.535.1.2")
    root.file("/usr/bin/nvidia-cdi-hook")
    assert gpu_node.cdi(Host(str(root)))["specs"][0]["missing"] == []


def test_without_a_cdi_spec_or_a_mode_there_is_nothing(root: FakeRoot) -> None:
    assert gpu_node.cdi(Host(str(root))) == {"mode": "", "specs": []}
    root.file("/etc/nvidia-container-runtime/config.toml", '#mode = "cdi"\n  mode = "legacy"\n')
    root.file("/var/run/cdi/x.yaml", YAML)
    root.file("/etc/cdi/empty.yaml")
    found = gpu_node.cdi(Host(str(root)))
    assert (found["mode"], [spec["path"] for spec in found["specs"]]) == ("legacy", ["/var/run/cdi/x.yaml"])


def field(number: int, value: bytes | int) -> bytes:
    """A field of a protobuf message, of fewer than 128 bytes."""
    return bytes([number << 3 | (0 if isinstance(value, int) else 2)]) + (
        bytes([value]) if isinstance(value, int) else bytes([len(value)]) + value
    )


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
    ("endpoint", "of_unit", "config", "address"),
    [
        ("unix:///run/kubelets.sock", "/run/units.sock", "", "/run/kubelets.sock"),
        (None, "/run/units.sock", "/mine.toml", "/run/units.sock"),
        ("", "", "", "/run/dumps.sock"),
    ],
)
def test_containerd_is_asked_at_kubelets_socket_and_compared_with_its_files(
    root: FakeRoot, monkeypatch: pytest.MonkeyPatch, endpoint: str | None, of_unit: str, config: str, address: str
) -> None:
    """The parts are tested by themselves; here is what each of them gets from the others."""
    look = gpu_node
    unit = SimpleNamespace(containerd=lambda run: ("binary", run), config="/units.toml", address=of_unit)

    def installation(binary: object, path: str) -> object:
        assert binary == ("binary", "run")
        return SimpleNamespace(dump=lambda: f"dump of {path}")

    monkeypatch.setattr(look, "find_unit", lambda name, run, arguments_of: unit if (name, run) == ("x.service", "run") else None)
    monkeypatch.setattr(look, "Installation", installation)
    monkeypatch.setattr(look, "dump_section", lambda dump: f"section of {dump}")
    monkeypatch.setattr(look, "Runtimes", SimpleNamespace(of=lambda section: SimpleNamespace(default=section)))
    monkeypatch.setattr(look, "socket_address", lambda dump: "/run/dumps.sock")
    monkeypatch.setattr(look.cri, "status", lambda path: SimpleNamespace(config=f"config at {path}"))
    monkeypatch.setattr(look, "running_runtimes", lambda text: SimpleNamespace(default=text))
    for lacks in ("an entry", None):
        monkeypatch.setattr(look, "not_running", lambda wanted, running, lacks=lacks: lacks)
        assert look.container_runtime(Host(str(root)), endpoint, "x.service", config, "run") == {  # type: ignore[arg-type]
            "problem": "",
            "file_default": f"section of dump of {config or '/units.toml'}",
            "running_default": f"config at {root.at(address)}",
            "lacks": lacks or "",
            "unit": "x.service",
        }


@pytest.mark.parametrize("error", [Refused("no"), CriError("no"), OSError("no"), ValueError("no")])
def test_why_containerd_does_not_answer_is_said(root: FakeRoot, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def find_unit(*_arguments: object) -> None:
        raise error

    monkeypatch.setattr(gpu_node, "find_unit", find_unit)
    found = gpu_node.container_runtime(Host(str(root)), None, "x.service", "", lambda *_: None)  # type: ignore[arg-type,return-value]
    assert found == {"problem": "no", "file_default": "", "running_default": "", "lacks": "", "unit": "x.service"}


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
    for node in ("nvidia11", "nvidia2", "nvidia2x", "xnvidia3"):
        root.file(f"/proc/43/root/dev/{node}")
    root.process(44, "/usr/sbin/sshd")
    root.file("/proc/44/cgroup", "0::/system.slice/ssh.service\n")
    root.process(45, "/usr/sbin/cron")
    assert gpu_node.containers(Host(str(root))) == {identity: ["nvidia0"], other: []}
    root.at("/proc/42/root/dev/nvidia7").touch()
    root.at("/proc/42/root/dev/nvidia12").touch()
    assert gpu_node.containers(Host(str(root)))[other] == ["nvidia12", "nvidia7"]


def test_the_schedulers_files_and_those_beside_them(root: FakeRoot) -> None:
    control_plane(root)
    folder = "/etc/kubernetes/manifests"
    root.file(f"{folder}/kube-scheduler.yaml", "- kube-scheduler\n- --config=/etc/k/s.yaml\n")
    root.file(f"{folder}/kube-scheduler.yaml.bak", "- kube-scheduler\n")
    root.file(f"{folder}/.kube-scheduler.yaml.swp", "- kube-scheduler\n")
    root.file("/etc/k/s.yaml", "a: 1\n")
    found = evidence_control_plane.scheduler_files(Host(str(root)), f"{folder}/kube-scheduler.yaml", "/etc/default.yaml")
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
    found = evidence_control_plane.scheduler_files(Host(str(root)), manifest, "/etc/default.yaml")
    config = {"text": "\N{REPLACEMENT CHARACTER}", "sha256": hashlib.sha256(b"\xff").hexdigest()}
    assert found == {
        "manifest": None,
        "others": {f"/etc/kubernetes/manifests/{name}": text for name, text in others.items()},
        "configs": {"/etc/default.yaml": config},
    }


@pytest.mark.parametrize(
    ("ca", "expected"), [("", ["http://127.0.0.1:1/healthz"]), ("/ca.crt", ["https://127.0.0.1:1/healthz", "/ca.crt"])]
)
def test_the_extenders_health_is_asked_for_as_it_listens(monkeypatch: pytest.MonkeyPatch, ca: str, expected: list[str]) -> None:
    asked = []

    def fetch(*arguments: object) -> tuple[dict[str, bool], str]:
        asked.append(arguments)
        return {"synced": True}, "why"

    monkeypatch.setattr(evidence_control_plane, "fetch_json", fetch)
    assert evidence_control_plane.health(1, ca) == {"report": {"synced": True}, "why": "why"}
    assert [one for one in asked[0] if isinstance(one, str)] == expected


def test_everything_in_one_go_is_json_and_writes_nothing(root: FakeRoot, tmp_path: Path) -> None:
    control_plane(root)
    installed(root)
    before = {str(path): path.lstat().st_mtime_ns for path in tmp_path.rglob("*")}
    found = see(Host(str(root)), Places(gpu_node=True, control_plane=True, extender_port=1))
    assert {str(path): path.lstat().st_mtime_ns for path in tmp_path.rglob("*")} == before
    assert json.loads(json.dumps(found))["places"]["extender_port"] == 1
    assert found["node_name"] == "node-7"
    assert len(found["gpu"]["nvidia_smi"]["cards"]) == 2
    assert found["plane"]["certificates"] is None
    assert found["plane"]["health"]["report"] is None
    again = see(Host(str(root)), Places(gpu_node=True, control_plane=True, extender_port=1), ["containers", "extender"])
    assert set(again["gpu"]) == {"containers"}
    assert set(again["plane"]) == {"health"}


@contextmanager
def metrics_server(token: str) -> Iterator[str]:
    """The address of one that wants this token, "" for none."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            good = not token or self.headers.get("Authorization") == f"Bearer {token}"
            self.send_response(200 if good and self.path == "/metrics" else 401)
            self.end_headers()

        def log_message(self, *_words: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()


@pytest.mark.parametrize(
    ("token", "file", "stranger", "scraper"),
    [("s3cret", "s3cret\n", 401, 200), ("s3cret", "other\n", 401, 401), ("", "", 200, 200), ("", "s3cret\n", 200, 200)],
)
def test_metrics_are_asked_for_with_the_token_and_without(root: FakeRoot, token: str, file: str, stranger: int, scraper: int) -> None:
    root.file("/etc/gpushare/x.token", file)
    with metrics_server(token) as address:
        arguments = ["x", "--metrics-listen", address, *(["--metrics-token-file", "/etc/gpushare/x.token"] if file else [])]
        found = daemons.metrics(Host(str(root)), address, arguments)
    assert found == {"wanted": address, "listens": address, "wants_token": bool(file), "stranger": stranger, "scraper": scraper}


@pytest.mark.parametrize(
    ("address", "name"),
    [
        ("0.0.0.0:9440", "127.0.0.1"),
        ("[::]:9440", "::1"),
        ("[fd00::1]:9440", "fd00::1"),
        ("10.0.0.5:9440", "10.0.0.5"),
        ("gpu1.example.org:9440", "gpu1.example.org"),
    ],
)
def test_who_listens_everywhere_is_asked_on_this_host(root: FakeRoot, monkeypatch: pytest.MonkeyPatch, address: str, name: str) -> None:
    made: list[tuple[str, int]] = []
    ended = []

    class Silent:
        def __init__(self, name: str, port: int, *, timeout: float) -> None:
            made.append((name, port))
            assert 0 < timeout < 60

        def request(self, *_arguments: object, **_more: object) -> None:
            raise TimeoutError

        def close(self) -> None:
            ended.append(True)

    monkeypatch.setattr(daemons, "HTTPConnection", Silent)
    found = daemons.metrics(Host(str(root)), "", ["x", "--metrics-listen", address])
    assert found == {"wanted": "", "listens": address, "wants_token": False, "stranger": "TimeoutError", "scraper": "TimeoutError"}
    assert (made, ended) == ([(name, 9440)], [True])


def test_metrics_that_are_not_there_are_said_in_words(root: FakeRoot) -> None:
    host = Host(str(root))
    assert daemons.metrics(host, "", ["x"]) is None
    without = daemons.metrics(host, "127.0.0.1:9", ["x"])
    assert without is not None
    assert (without["listens"], without["scraper"]) == ("", "it was started without --metrics-listen")
    root.file("/etc/gpushare/x.token", "s3cret")
    token = ["--metrics-token-file", "/etc/gpushare/x.token"]
    assert daemons.metrics(host, "127.0.0.1:9", ["x", *token]) == {**without, "wants_token": True}
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        refused = daemons.metrics(host, address, ["x", "--metrics-listen", address])
    assert refused is not None
    assert "refused" in refused["scraper"]
