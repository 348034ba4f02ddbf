# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""kubelet's cgroup driver beside that of the runtime that makes pods, by what both processes say and have done."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts import cgroup_drivers as subject
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts.cgroup_drivers import CgroupDrivers, asks, two_drivers
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts.kubernetes import Distribution, KubeletFacts, Runtime, kubelet
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.host import Host
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes.cri import CriError, RuntimeStatus

from unit.fakes.plugins.fake_root import FakeRoot

VERSIONS = {"containerd": "1.7.29", "docker": "26.1.5", "cri-o": "1.36.3"}


def facts(version: str = "v1.30.4", runtime: str = "containerd", driver: str = "systemd", **gates: bool) -> KubeletFacts:
    root = "/var/lib/kubelet"
    return KubeletFacts(True, True, version, "/usr/bin/kubelet", "n", False, root, None, "unix:///run/x.sock", runtime, gates, driver)


@pytest.fixture
def root(tmp_path: Path) -> FakeRoot:
    return FakeRoot(tmp_path)


Answers = Callable[[Any], None]


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    """The answer of each runtime: containerd's options of nvidia, docker's word, CRI-O's page. An exception is raised."""

    def answer(value: Any) -> None:
        def call(*_arguments: object) -> Any:
            if isinstance(value, Exception):
                raise value
            return value

        runtimes = {"nvidia": {"runtimeType": "io.containerd.runc.v2", "options": value}}
        status = RuntimeStatus({}, {"containerd": {"defaultRuntimeName": "nvidia", "runtimes": runtimes}})
        monkeypatch.setattr(subject.cri, "status", call if isinstance(value, Exception) else lambda *_: status)
        monkeypatch.setattr(subject.docker, "info", call)
        monkeypatch.setattr(subject.unix_http, "get", call)

    return answer


def found(root: FakeRoot, node: KubeletFacts, version: str = "") -> CgroupDrivers:
    name = node.runtime or ""
    return subject.cgroup_drivers(Host(str(root)), node, [Runtime(name, None, version or VERSIONS.get(name, "1"), None, True)])


@pytest.mark.parametrize(
    ("options", "version", "runtime"),
    [
        # nvidia-ctk on a host without a config.toml says nothing of it.
        ({"BinaryName": "/usr/bin/nvidia-container-runtime"}, "1.7.29", "cgroupfs"),
        (None, "1.7.29", "cgroupfs"),
        ({"SystemdCgroup": True}, "1.7.29", "systemd"),
        ({"systemdCgroup": True}, "1.6.20", "systemd"),
        # The two spellings that an earlier release of ours made: each generation of containerd takes another one.
        ({"SystemdCgroup": False, "systemdCgroup": True}, "1.7.29", "cgroupfs"),
        ({"SystemdCgroup": False, "systemdCgroup": True}, "2.1.4", "systemd"),
    ],
)
def test_containerd_is_asked_for_the_options_of_its_default_runtime(
    root: FakeRoot, answers: Answers, options: dict[str, Any] | None, version: str, runtime: str
) -> None:
    answers(options)
    assert found(root, facts(), version) == CgroupDrivers("systemd", runtime, "nvidia")


def test_docker_and_cri_o_have_one_driver_for_all(root: FakeRoot, answers: Answers) -> None:
    for value, driver in (({"CgroupDriver": "cgroupfs"}, "cgroupfs"), ({"CgroupDriver": "none"}, ""), ({}, "")):
        answers(value)
        assert found(root, facts(runtime="docker")) == CgroupDrivers("systemd", driver)
    for page, driver in ((b'[crio.runtime]\ncgroup_manager = "cgroupfs"\n', "cgroupfs"), (b"[crio.runtime]\n", "systemd")):
        answers(page)
        assert found(root, facts("v1.27.1", "cri-o")) == CgroupDrivers("systemd", driver)


@pytest.mark.parametrize("value", [CriError("silent"), OSError("gone"), ValueError("what is not TOML")])
@pytest.mark.parametrize("runtime", ["containerd", "docker", "cri-o"])
def test_a_runtime_that_does_not_answer_is_no_difference(root: FakeRoot, answers: Answers, runtime: str, value: Exception) -> None:
    answers(value)
    assert found(root, facts(runtime=runtime)) == CgroupDrivers()
    assert found(root, facts(runtime="unknown")) == CgroupDrivers()


@pytest.mark.parametrize(
    ("folders", "version", "containerd", "kubelet_driver"),
    [
        # The group that kubelet has made wins over what its file says by now.
        (["/sys/fs/cgroup/kubepods"], "v1.30.4", "1.7.29", "cgroupfs"),
        (["/sys/fs/cgroup/systemd/kubepods.slice"], "v1.30.4", "1.7.29", "systemd"),
        (["/sys/fs/cgroup/memory/kubepods"], "v1.36.3", "2.4.2", "cgroupfs"),
        # One is left from before: its file decides, but not where it asks the runtime.
        (["/sys/fs/cgroup/kubepods", "/sys/fs/cgroup/kubepods.slice"], "v1.36.3", "1.7.29", "systemd"),
        (["/sys/fs/cgroup/kubepods", "/sys/fs/cgroup/kubepods.slice"], "v1.36.3", "2.4.2", ""),
        ([], "v1.30.4", "2.4.2", "systemd"),
        ([], "v1.31.0", "2.4.2", ""),
    ],
)
def test_kubelets_driver_is_what_the_running_one_has(
    root: FakeRoot, answers: Answers, folders: list[str], version: str, containerd: str, kubelet_driver: str
) -> None:
    answers({"SystemdCgroup": True})
    for folder in folders:
        root.at(f"{folder}/x")
    assert found(root, facts(version), containerd).kubelet == kubelet_driver


@pytest.mark.parametrize(
    ("version", "gates", "runtime", "release", "answer"),
    [
        ("v1.36.3", {}, "containerd", (2, 0), True),
        ("v1.36.3", {}, "containerd", (1, 7), False),
        ("v1.36.3", {}, "cri-o", (1, 28), True),
        ("v1.36.3", {}, "docker", (28, 5), False),
        ("v1.31.0", {subject.GATE: False}, "containerd", (2, 0), False),
        # Locked.
        ("v1.34.0", {subject.GATE: False}, "containerd", (2, 0), True),
        ("v1.30.4", {}, "containerd", (2, 0), False),
        ("v1.28.0", {subject.GATE: True}, "containerd", (2, 0), True),
        ("v1.27.0", {subject.GATE: True}, "containerd", (2, 0), False),
        (None, {}, "containerd", (2, 0), False),
    ],
)
def test_which_kubelets_ask_the_runtime(version: str, gates: dict[str, bool], runtime: str, release: tuple[int, int], answer: bool) -> None:
    assert asks(facts(version, **gates), runtime, release) is answer


def test_a_difference_is_said_with_the_setting_of_that_runtime() -> None:
    for same in (CgroupDrivers("systemd", "systemd", "runc"), CgroupDrivers("", "systemd"), CgroupDrivers("cgroupfs", "")):
        assert two_drivers(same, "containerd") is None
    seen = two_drivers(CgroupDrivers("systemd", "cgroupfs", "nvidia"), "containerd")
    assert seen is not None
    assert seen.found == "the cgroup driver systemd of kubelet, and cgroupfs of containerd's default runtime nvidia"
    assert seen.cure == (
        "set SystemdCgroup = true in the options of the runtime nvidia of containerd's configuration, and: "
        "systemctl restart containerd.service"
    )
    cures = [two_drivers(CgroupDrivers("cgroupfs", "systemd"), name) for name in ("docker", "cri-o")]
    assert [cure and cure.cure for cure in cures] == [
        'set "exec-opts": ["native.cgroupdriver=cgroupfs"] in /etc/docker/daemon.json, and: systemctl restart docker.service',
        'set cgroup_manager = "cgroupfs" in CRI-O\'s configuration, and: systemctl restart crio.service',
    ]


def test_kubelet_says_its_driver_by_flag_file_or_default(root: FakeRoot) -> None:
    host, kubeadm = Host(str(root)), Distribution("kubeadm", False, None)
    assert kubelet(host, kubeadm).cgroup_driver == "cgroupfs"
    root.file("/var/lib/kubelet/config.yaml", "kind: KubeletConfiguration\ncgroupDriver: systemd\n")
    assert kubelet(host, kubeadm).cgroup_driver == "systemd"
    root.file("/etc/default/kubelet", "KUBELET_EXTRA_ARGS=--cgroup-driver=cgroupfs\n")
    assert kubelet(host, kubeadm).cgroup_driver == "cgroupfs"
