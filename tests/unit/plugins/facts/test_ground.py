# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What an installation stands on, as a folder that stands for a host shows it."""

from __future__ import annotations

import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from email.utils import formatdate
from pathlib import Path
from types import SimpleNamespace

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts.ground import ground, without_room
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.host import Host

from unit.fakes.plugins.fake_root import FakeRoot, control_plane

INSTALL = "/opt/gpushare"
ENTRIES = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:7FFE 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1
   1: 00000000:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 2 1
   2: 0100007F:0017 00000000:0000 01 00000000:00000000 00:00000000 00000000     0        0 3 1
   3: 0B00E70A:0018 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4 1
   broken
"""


@pytest.fixture
def root(tmp_path: Path) -> FakeRoot:
    return FakeRoot(tmp_path)


def test_ports_that_are_taken_on_the_loopback_address(root: FakeRoot) -> None:
    root.file("/proc/net/tcp", ENTRIES)
    root.file("/proc/net/tcp6", ENTRIES.replace("00000000:0016", f"{'0' * 32}:0019"))
    found = ground(Host(str(root)), INSTALL)
    assert found.listening == (0x16, 0x19, 32766)
    assert not found.extender
    root.file("/etc/systemd/system/gpushare-extender.service")
    assert ground(Host(str(root)), INSTALL).extender


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"f_flag": os.ST_RDONLY}, "read_only"),
        ({"f_flag": os.ST_NOEXEC}, "no_programs"),
        ({"f_favail": 2}, "full"),
        ({"f_favail": 0, "f_files": 0}, ""),
        ({}, ""),
    ],
)
def test_folders_that_cannot_be_written(root: FakeRoot, monkeypatch: pytest.MonkeyPatch, changes: dict[str, int], field: str) -> None:
    (root.at("/opt")).mkdir()
    disk = {"f_flag": 0, "f_files": 10**6, "f_favail": 10**6}
    asked = []

    def statvfs(path: str) -> SimpleNamespace:
        asked.append(str(path))
        return SimpleNamespace(**{**disk, **(changes if str(path).endswith("/opt") else {})})

    monkeypatch.setattr(os, "statvfs", statvfs)
    found = ground(Host(str(root)), INSTALL)
    assert {name: getattr(found, name) for name in ("read_only", "no_programs", "full")} == {
        name: ((INSTALL,) if name == field else ()) for name in ("read_only", "no_programs", "full")
    }
    assert str(root.at("/opt")) in asked, "the nearest folder above that is there"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ()),
        ({"f_bavail": 1024}, ()),
        ({"f_bavail": 1023}, ("/run (3 MiB free)",)),
        ({"f_bavail": 0, "f_favail": 0}, ("/run (0 MiB free)",)),
        ({"f_favail": 99}, ("/run (too few free inodes)",)),
        ({"f_favail": 0, "f_files": 0}, ()),
        ({"f_flag": os.ST_RDONLY, "f_favail": 0}, ("/run (mounted read-only)",)),
    ],
)
def test_folders_in_which_no_container_can_start(
    root: FakeRoot, monkeypatch: pytest.MonkeyPatch, changes: dict[str, int], said: tuple[str, ...]
) -> None:
    for folder in ("/run", "/var/lib/kubelet"):
        root.at(folder).mkdir(parents=True)
    disk = {"f_flag": 0, "f_bavail": 10**6, "f_frsize": 4096, "f_files": 10**6, "f_favail": 10**6}
    monkeypatch.setattr(os, "statvfs", lambda path: SimpleNamespace(**{**disk, **(changes if str(path).endswith("/run") else {})}))
    assert without_room(Host(str(root))) == said


def test_folders_of_runtimes_are_looked_at_where_they_are(root: FakeRoot, monkeypatch: pytest.MonkeyPatch) -> None:
    root.at("/etc/docker").mkdir(parents=True)

    def statvfs(path: str) -> SimpleNamespace:
        closed = str(path).endswith(("/etc/docker", "/etc/crio"))
        return SimpleNamespace(f_flag=os.ST_RDONLY if closed else 0, f_files=10**6, f_favail=2 if closed else 10**6)

    monkeypatch.setattr(os, "statvfs", statvfs)
    found = ground(Host(str(root)), INSTALL)
    assert (found.read_only, found.full) == (("/etc/docker",), ("/etc/docker",))


def test_the_api_server_of_kubelet_is_connected_to(root: FakeRoot) -> None:
    assert (ground(Host(str(root)), INSTALL).server, ground(Host(str(root)), INSTALL).unreached) == ("", "")
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        root.file("/etc/kubernetes/kubelet.conf", f"clusters:\n- cluster:\n    server: https://127.0.0.1:{port}\n")
        found = ground(Host(str(root)), INSTALL)
        assert (found.server, found.unreached) == (f"https://127.0.0.1:{port}", "")
    assert "refused" in ground(Host(str(root)), INSTALL).unreached
    asked = []
    root.file("/etc/kubernetes/kubelet.conf", "    server: 'https://[fd00::1]'\n")
    ground(Host(str(root)), INSTALL, lambda *address: (str(asked.append(address)), None))
    assert asked == [("fd00::1", 443, True)]


@pytest.mark.parametrize(
    ("answer", "ahead"),
    [
        ("HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nDate: {}\r\n\r\n", 120),
        ("HTTP/1.1 200 OK\r\nDate: Wed, 99 Foo 2026 00:00:00 GMT\r\n\r\n", None),
        ("HTTP/1.1 200 OK\r\n\r\n", None),
        ("", None),
    ],
)
def test_the_clock_is_compared_with_the_api_servers(root: FakeRoot, answer: str, ahead: int | None) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as pool:
        root.file("/etc/kubernetes/kubelet.conf", f"    server: http://127.0.0.1:{server.getsockname()[1]}\n")
        root.file("/etc/machine-id", "0123456789abcdef" * 2 + "\n")

        def serve() -> None:
            connection = server.accept()[0]
            connection.recv(4096)
            connection.sendall(answer.format(formatdate(time.time() - 120, usegmt=True)).encode())
            connection.close()

        serving = pool.submit(serve)
        found = ground(Host(str(root)), INSTALL)
        serving.result(10)
    assert (found.unreached, found.machine_id) == ("", "0123456789abcdef" * 2)
    assert found.ahead is None if ahead is None else found.ahead is not None and abs(found.ahead - ahead) < 10
    root.file("/etc/machine-id", "uninitialized\n")
    assert ground(Host(str(root)), INSTALL, lambda *_: ("", None)).machine_id == ""


def test_a_scheduler_runs_or_a_run_of_ours_has_it_in_hand(root: FakeRoot) -> None:
    assert not ground(Host(str(root)), INSTALL).scheduler
    root.file("/var/lib/gpushare/journal/scheduler.pending")
    assert ground(Host(str(root)), INSTALL).scheduler
    control_plane(root)
    root.at("/var/lib/gpushare/journal/scheduler.pending").unlink()
    assert ground(Host(str(root)), INSTALL).scheduler
