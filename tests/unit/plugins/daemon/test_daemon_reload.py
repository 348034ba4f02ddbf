# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Containers that would lose their GPUs at a daemon-reload, in a folder that stands for a host."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._daemon import daemon_reload
from ansible_collections.gpushare.kubernetes.plugins.module_utils._daemon.daemon_reload import containers, exposed

SCOPE = "cri-containerd-0123.scope"
SYSTEMD = f"0::/kubepods.slice/kubepods-pod1.slice/{SCOPE}\n"
STRICT = "DevicePolicy=strict\nDeviceAllow=/dev/char/1:3 rwm\nDeviceAllow=char-pts rwm\n"
KNOWN = STRICT + "DeviceAllow=/dev/char/195:0 rw\n"


class Root:
    """A host: process 1, and others with a namespace, a cgroup and GPUs of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.answers: dict[str, tuple[int, str]] = {}
        self.asked: list[str] = []
        self.process(1, "host", "0::/init.scope\n", ["nvidia0"])

    def process(self, pid: int, namespace: str, cgroup: str, gpus: list[str]) -> None:
        place = self.folder / f"proc/{pid}"
        (place / "ns").mkdir(parents=True)
        (place / "ns/mnt").symlink_to(f"mnt:[{namespace}]")
        (place / "cgroup").write_text(cgroup, errors="surrogateescape")
        (place / "root/dev").mkdir(parents=True)
        for number, name in enumerate(gpus):
            os.mknod(place / "root/dev" / name, stat.S_IFCHR | 0o600, os.makedev(195, number))

    def link(self, minor: int = 0) -> None:
        (self.folder / "dev/char").mkdir(parents=True)
        os.mknod(self.folder / f"dev/char/195:{minor}", stat.S_IFCHR | 0o600, os.makedev(195, minor))

    def run(self, argv: list[str]) -> tuple[int, str, str]:
        self.asked.append(argv[2])
        status, out = self.answers.get(argv[2], (0, STRICT))
        return status, out, ""

    def exposed(self) -> str | None:
        return exposed(self.run, str(self.folder))


@pytest.fixture
def root(tmp_path: Path) -> Root:
    if os.geteuid() != 0:
        pytest.skip("only root makes device nodes")
    return Root(tmp_path)


@pytest.mark.parametrize("answer", [STRICT, "DevicePolicy=closed\nDeviceAllow=\n", "DevicePolicy=auto\nDeviceAllow=/dev/null rw\n"])
def test_a_gpu_that_systemd_does_not_know_is_named_with_its_container(root: Root, answer: str) -> None:
    root.process(7, "a", SYSTEMD, ["nvidia0", "nvidiactl"])
    root.answers[SCOPE] = (0, answer)
    assert root.exposed() == f"That would take the GPUs from running containers: {SCOPE} (nvidia0)"


@pytest.mark.parametrize(
    ("cgroup", "gpus", "answer", "linked"),
    [
        pytest.param("0::/kubepods/pod1/0123\n", ["nvidia0"], STRICT, False, id="cgroupfs: systemd does not manage it"),
        pytest.param("5:devices:/kubepods/pod1/0123\n0::/x.scope\n", ["nvidia0"], STRICT, False, id="version 1 decides on devices"),
        pytest.param(SYSTEMD, [], STRICT, False, id="no GPU"),
        pytest.param(SYSTEMD, ["nvidia0"], "DevicePolicy=auto\nDeviceAllow=\n", False, id="systemd restricts nothing"),
        pytest.param(SYSTEMD, ["nvidia0"], KNOWN, True, id="systemd knows it by its link"),
        pytest.param(SYSTEMD, ["nvidia0"], STRICT + "DeviceAllow=char-nvidia rw\n", False, id="systemd knows all of the driver's"),
        pytest.param("0::/system.slice/gpushare-device-plugin.service\n", ["nvidia0"], STRICT, False, id="a service has its own rules"),
    ],
)
def test_who_is_not_exposed(root: Root, cgroup: str, gpus: list[str], answer: str, linked: bool) -> None:
    root.process(7, "a", cgroup, gpus)
    root.answers[SCOPE] = (0, answer)
    if linked:
        root.link()
    assert root.exposed() is None


def test_a_rule_for_a_link_that_is_not_there_or_leads_elsewhere_does_not_help(root: Root) -> None:
    root.process(7, "a", SYSTEMD, ["nvidia0"])
    root.answers[SCOPE] = (0, KNOWN)
    assert "nvidia0" in (root.exposed() or "")
    root.link(minor=1)
    (root.folder / "dev/char/195:1").rename(root.folder / "dev/char/195:0")
    assert "nvidia0" in (root.exposed() or "")


def test_a_link_without_a_rule_does_not_help(root: Root) -> None:
    root.process(7, "a", SYSTEMD, ["nvidia0"])
    root.link()
    assert "nvidia0" in (root.exposed() or "")


@pytest.mark.parametrize("answer", [(1, ""), (1, "DevicePolicy=auto\n"), (0, ""), (0, "DeviceAllow=char-nvidia rw\n")])
def test_a_unit_that_systemd_does_not_answer_about_counts_as_exposed(root: Root, answer: tuple[int, str]) -> None:
    root.process(7, "a", SYSTEMD, ["nvidia0"])
    root.answers[SCOPE] = answer
    assert SCOPE in (root.exposed() or "")


def test_each_container_is_asked_about_once_and_three_are_named(root: Root) -> None:
    for number in range(5):
        group = f"?\n1:name=systemd:/x\n5:devices,freezer:/kubepods.slice/a:b\udcff/docker-{number}.scope/inner\n"
        root.process(10 + 2 * number, f"n{number}", group, ["nvidia0", "nvidia1"])
        root.process(11 + 2 * number, f"n{number}", group, ["nvidia0", "nvidia1"])
    assert root.asked == []
    assert (root.exposed() or "").endswith(
        "docker-0.scope (nvidia0, nvidia1), docker-1.scope (nvidia0, nvidia1), docker-2.scope (nvidia0, nvidia1) and 2 more"
    )
    assert root.asked == [f"docker-{number}.scope" for number in range(5)]


def test_processes_that_end_or_hide_are_passed_over(root: Root) -> None:
    (root.folder / "proc/99").mkdir()
    (root.folder / "proc/sys").mkdir()
    root.process(7, "host", SYSTEMD, ["nvidia0"])
    root.process(8, "a", SYSTEMD, ["nvidia0"])
    (root.folder / "proc/8/ns/mnt").unlink()
    root.process(9, "a", SYSTEMD, [])
    (root.folder / "proc/9/root/dev/nvidia0").write_text("no device")
    assert containers(str(root.folder)) == []
    assert root.exposed() is None
    assert containers(str(root.folder / "nowhere")) == []


def test_a_host_is_read_up_to_its_bounds(root: Root, monkeypatch: pytest.MonkeyPatch) -> None:
    for pid in (10, 7):
        root.process(pid, f"n{pid}", SYSTEMD.replace("0123", str(pid)), ["nvidia0", "nvidia1"])
    monkeypatch.setattr(daemon_reload, "_MOST_FILES", 1)
    assert [(one.unit, len(one.devices)) for one in containers(str(root.folder))] == [
        ("cri-containerd-7.scope", 1),
        ("cri-containerd-10.scope", 1),
    ]
    monkeypatch.setattr(daemon_reload, "_MOST_PROCESSES", 2)
    assert [one.unit for one in containers(str(root.folder))] == ["cri-containerd-7.scope"]
