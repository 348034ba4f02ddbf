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
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils import _verify_look, _verify_look_node, _verify_look_plane
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host import Host
from ansible_collections.gpushare.kubernetes.plugins.module_utils._verify_seen import Places, see

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
    root.file(f"{PACKAGES}/gpushare_runtime/ledger.py", content)
    record = f"gpushare_runtime/ledger.py,sha256={digest},6\n../../../bin/gpushare-extender,sha256=abc,9\ngpushare_runtime/x.pyc,,\n"
    root.file(f"{PACKAGES}/gpushare_runtime-0.1.0.dist-info/RECORD", record)
    root.file(f"{ENVIRONMENT}/.gpushare-complete.json", json.dumps({"version": "0.1.0", "wheel_sha256": "a", "requirements_sha256": "b"}))
    root.link("/opt/gpushare/current", "0.1.0-0123456789ab")


def test_the_runtime_and_a_file_of_it_that_was_changed(root: FakeRoot) -> None:
    assert _verify_look.runtime(Host(str(root)), "/opt/gpushare")["environment"] == ""
    installed(root)
    found = _verify_look.runtime(Host(str(root)), "/opt/gpushare")
    assert found == {
        "version": "0.1.0",
        "wheel_sha256": "a",
        "requirements_sha256": "b",
        "environment": ENVIRONMENT,
        "files": 1,
        "damaged": [],
        "damaged_count": 0,
    }
    root.file(f"{PACKAGES}/gpushare_runtime/ledger.py", "x = 2\n")
    assert _verify_look.runtime(Host(str(root)), "/opt/gpushare")["damaged"] == ["gpushare_runtime/ledger.py"]


def test_a_unit_with_the_generations_of_its_file_and_of_its_process(root: FakeRoot) -> None:
    root.file(
        "/etc/systemd/system/gpushare-extender.service", "[Service]\nEnvironment=GPUSHARE_GENERATION=new\nExecStart=x --token-file y\n"
    )
    root.program(
        "/usr/bin/systemctl", "LoadState=loaded\nActiveState=active\nSubState=running\nUnitFileState=enabled\nMainPID=77\nStatusText=a=b"
    )
    root.process(77, "/opt/gpushare/current/bin/gpushare-extender", "--listen", "127.0.0.1:1")
    root.file("/proc/77/environ", b"A=1\0GPUSHARE_GENERATION=old\0")
    found = _verify_look.unit(Host(str(root)), "gpushare-extender")
    assert (found["file_generation"], found["process_generation"]) == ("new", "old")
    assert (found["active"], found["enabled"], found["pid"], found["says"], found["with_token"]) == ("active", True, 77, "a=b", True)
    assert found["arguments"][1:] == ["--listen", "127.0.0.1:1"]


def test_certificates_as_the_runtime_says_or_why_not(root: FakeRoot) -> None:
    program = "/opt/gpushare/current/bin/gpushare-pki"
    assert "there is no" in _verify_look.certificates(Host(str(root)), "/opt/gpushare", "/p")["problem"]
    root.program(program, '{"certificates": [{"path": "ca.crt"}]}')
    assert _verify_look.certificates(Host(str(root)), "/opt/gpushare", "/p") == {"problem": "", "certificates": [{"path": "ca.crt"}]}
    root.program(program, "no permission", status=1)
    assert _verify_look.certificates(Host(str(root)), "/opt/gpushare", "/p")["problem"].endswith("ended with 1: no permission")


def test_who_listens_on_a_device_plugins_socket(root: FakeRoot) -> None:
    for name in ("kubelet.sock", "a.sock", "dead.sock"):
        root.socket(f"{ROOT}/device-plugins/{name}")
    root.process(5, "/bin/other-plugin", "--x", "y", "z")

    def peer(path: str) -> int | None:
        return 5 if path.endswith("a.sock") else None

    assert _verify_look_node.sockets(Host(str(root)), ROOT, peer) == [{"name": "a.sock", "pid": 5, "process": "/bin/other-plugin --x y"}]


def test_the_listener_of_a_socket_is_found_by_the_kernels_word() -> None:
    with tempfile.TemporaryDirectory(prefix="gv") as folder, socket.socket(socket.AF_UNIX) as server:
        path = f"{folder}/s"
        assert _verify_look_node.listener(path) is None
        server.bind(path)
        assert _verify_look_node.listener(path) is None
        server.listen()
        assert _verify_look_node.listener(path) == os.getpid()


def test_a_plugin_that_restarts_while_it_is_looked_at_is_looked_at_again(root: FakeRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    pids, owners = iter([1, 2, 2]), iter([2, 2])
    monkeypatch.setattr(_verify_look, "unit", lambda host, name: {"pid": next(pids), "arguments": []})
    monkeypatch.setattr(_verify_look_node, "sockets", lambda host, root, peer: [{"pid": next(owners)}])
    found = see(Host(str(root)), Places(gpu_node=True, control_plane=False))["gpu"]
    assert (found["plugin"]["pid"], found["sockets"][0]["pid"]) == (2, 2)
    assert list(owners) == []


def test_what_kubelet_has_registered_by_card(root: FakeRoot) -> None:
    path = f"{ROOT}/device-plugins/kubelet_internal_checkpoint"
    devices = {"aliyun.com/gpu-mem": ["GPU-1-_-0", "GPU-1-_-1", "GPU-2-_-0"], "aliyun.com/gpu-count": ["GPU-1"], "other.com/x": ["1"]}
    root.file(path, json.dumps({"Data": {"PodDeviceEntries": None, "RegisteredDevices": devices}}))
    found = _verify_look_node.registered(Host(str(root)), ROOT)
    assert found == {"aliyun.com/gpu-mem": {"GPU-1": 2, "GPU-2": 1}, "aliyun.com/gpu-count": {"GPU-1": 1}}
    root.file(path, "{")
    assert _verify_look_node.registered(Host(str(root)), ROOT) == {}


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
    found = _verify_look_node.cdi(Host(str(root)))
    assert found["mode"] == "cdi"
    (spec,) = found["specs"]
    assert (spec["path"], spec["versions"]) == (f"/etc/cdi/{name}", ["535.1.2"])
    assert "/usr/lib/libcuda.so.535.1.2" in spec["missing"]
    assert not {"/dev/nvidia0", "/in/the/container"} & set(spec["missing"])
    root.file("/usr/lib/libcuda.so.535.1.2")
    root.file("/usr/bin/nvidia-cdi-hook")
    assert _verify_look_node.cdi(Host(str(root)))["specs"][0]["missing"] == []


def field(number: int, value: bytes | int) -> bytes:
    """A field of a protobuf message, of fewer than 128 bytes."""
    return bytes([number << 3 | (0 if isinstance(value, int) else 2)]) + (
        bytes([value]) if isinstance(value, int) else bytes([len(value)]) + value
    )


def test_the_sandbox_image_among_a_nodes_images_the_pinned_first() -> None:
    app = field(1, field(2, b"docker.io/library/pauser:1") + field(8, 0))
    old = field(1, field(2, b"registry.k8s.io/pause:3.8"))
    pinned = field(1, field(2, b"registry.k8s.io/pause:3.10") + field(2, b"pause@sha256:abc") + field(8, 1))
    names = ["registry.k8s.io/pause:3.10", "pause@sha256:abc", "registry.k8s.io/pause:3.8"]
    assert _verify_look_node.pause_images(app + old + pinned) == names


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
    assert _verify_look_node.containers(Host(str(root))) == {identity: ["nvidia0"]}


def test_the_schedulers_files_and_those_beside_them(root: FakeRoot) -> None:
    control_plane(root)
    folder = "/etc/kubernetes/manifests"
    root.file(f"{folder}/kube-scheduler.yaml", "- kube-scheduler\n- --config=/etc/k/s.yaml\n")
    root.file(f"{folder}/kube-scheduler.yaml.bak", "- kube-scheduler\n")
    root.file(f"{folder}/.kube-scheduler.yaml.swp", "- kube-scheduler\n")
    root.file("/etc/k/s.yaml", "a: 1\n")
    found = _verify_look_plane.scheduler_files(Host(str(root)), f"{folder}/kube-scheduler.yaml", "/etc/default.yaml")
    assert list(found["others"]) == [f"{folder}/kube-scheduler.yaml.bak"]
    assert found["configs"] == {
        "/etc/default.yaml": None,
        "/etc/k/s.yaml": {"text": "a: 1\n", "sha256": hashlib.sha256(b"a: 1\n").hexdigest()},
    }


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
        found = _verify_look.metrics(Host(str(root)), address, arguments)
    assert found == {"wanted": address, "listens": address, "wants_token": bool(file), "stranger": stranger, "scraper": scraper}


def test_metrics_that_are_not_there_are_said_in_words(root: FakeRoot) -> None:
    host = Host(str(root))
    assert _verify_look.metrics(host, "", ["x"]) is None
    without = _verify_look.metrics(host, "127.0.0.1:9", ["x"])
    assert without is not None
    assert (without["listens"], without["scraper"]) == ("", "it was started without --metrics-listen")
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{closed.getsockname()[1]}"
        refused = _verify_look.metrics(host, address, ["x", "--metrics-listen", address])
    assert refused is not None
    assert "refused" in refused["scraper"]
