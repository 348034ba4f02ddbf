# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Pods with processes, as control groups of either driver and version show them."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushare_runtime.device_plugin.processes import live_pods

UID = "0f3a1b2c-4d5e-6f70-8192-a3b4c5d6e7f8"
STATIC = "0123456789abcdef0123456789abcdef"


def process(proc: Path, pid: int, cgroup: str, state: str = "S", name: str = "python") -> None:
    (proc / str(pid)).mkdir()
    (proc / str(pid) / "cgroup").write_text(cgroup)
    (proc / str(pid) / "stat").write_text(f"{pid} ({name}) {state} 1 1 1 0 -1")


@pytest.mark.parametrize(
    ("cgroup", "uid"),
    [
        (f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{UID.replace('-', '_')}.slice/cri-containerd-ab.scope\n", UID),
        (f"0::/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{UID.replace('-', '_')}.slice/crio-ab.scope/sub\n", UID),
        (f"12:devices:/kubepods/besteffort/pod{UID}/0123abc\n1:name=systemd:/kubepods/besteffort/pod{UID}/0123abc\n", UID),
        (f"0::/../../kubepods-pod{STATIC}.slice/cri-containerd-ab.scope\n", STATIC),
        (f"0::/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/cri-containerd-ab.scope (deleted)\n", UID),
    ],
    ids=["systemd", "crio", "cgroupfs v1", "static", "deleted"],
)
def test_the_pod_of_a_process(tmp_path: Path, cgroup: str, uid: str) -> None:
    process(tmp_path, 7, cgroup)
    assert live_pods(tmp_path) == {uid}


def test_others_and_zombies_are_none(tmp_path: Path) -> None:
    group = f"0::/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice/a.scope\n"
    process(tmp_path, 1, "0::/init.scope\n")
    process(tmp_path, 2, "0::/system.slice/podman-0f3a1b2c.scope\n")
    process(tmp_path, 3, group, state="Z", name="a) S (b")
    (tmp_path / "4").mkdir()
    (tmp_path / "self").mkdir()
    assert live_pods(tmp_path) == set()
    process(tmp_path, 5, group, state="D", name="a) Z (b")
    assert live_pods(tmp_path) == {UID}


def test_this_machine_can_be_looked_at() -> None:
    assert isinstance(live_pods(), set)
