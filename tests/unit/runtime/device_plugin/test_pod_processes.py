# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Pods and containers with processes, as control groups of either driver and version show them."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpushare_runtime.device_plugin.host.pod_processes import HostProcesses

UID, OTHER = "0f3a1b2c-4d5e-6f70-8192-a3b4c5d6e7f8", "1f3a1b2c-4d5e-6f70-8192-a3b4c5d6e7f8"
STATIC = "0123456789abcdef0123456789abcdef"
SLICE = UID.replace("-", "_")


class Host:
    """/proc and control groups of version 2, or the memory controller's of version 1."""

    def __init__(self, root: Path, version: int = 2) -> None:
        self.proc, self.groups = root / "proc", root / "sys fs" / "cgroup"
        self.groups.mkdir(parents=True)
        kind = "cgroup2 cgroup2 rw" if version == 2 else "cgroup cgroup rw,memory"
        mount = str(self.groups).replace(" ", "\\040")
        mounted = f"30 23 0:26 / {mount} rw,nosuid shared:4 - {kind}\n31 23 0:27 / /tmp rw - tmpfs tmpfs rw\n"
        (self.proc / "self").mkdir(parents=True)
        (self.proc / "self" / "mountinfo").write_text(mounted)

    def group(self, path: str, *pids: int) -> None:
        (self.groups / path).mkdir(parents=True, exist_ok=True)
        (self.groups / path / "cgroup.procs").write_text("".join(f"{pid}\n" for pid in pids))

    def process(self, pid: int, container: str = "", pod: str = UID, *, thread: int = 0, deleted: str = "") -> None:
        """thread: the leader is dead, this one lives."""
        at = self.proc / str(pid)
        place = at / "task" / str(thread) if thread else at
        place.mkdir(parents=True, exist_ok=True)
        if thread:
            (at / "mountinfo").write_text("")
        mounts = ["600 500 0:5 / /proc rw - proc proc rw"]
        if container:
            root = f"/var/lib/kubelet/pods/{pod}/containers/{container}/0a1b2c3d{deleted}"
            mounts.append(f"601 500 8:1 {root} /dev/termination-log rw - ext4 /dev/sda1 rw")
        (place / "mountinfo").write_text("\n".join(mounts) + "\n")

    def pods(self, *uids: str) -> set[str]:
        return set(HostProcesses(self.proc).pods(frozenset(uids)))

    def containers(self, uid: str = UID) -> set[str] | None:
        found = HostProcesses(self.proc).containers(uid)
        return None if found is None else set(found)


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("group", "uid"),
    [
        (f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SLICE}.slice/cri-containerd-ab.scope", UID),
        (f"kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{SLICE}.slice/crio-ab.scope/sub", UID),
        (f"kubepods/besteffort/pod{UID}/0123abc", UID),
        (f"kubepods/pod{UID}", UID),
        (f"kubepods.slice/kubepods-pod{STATIC}.slice/cri-containerd-ab.scope", STATIC),
    ],
    ids=["systemd", "crio", "cgroupfs", "in the pod's own", "static"],
)
def test_a_pod_with_a_process_in_any_of_its_groups_lives(tmp_path: Path, group: str, uid: str, version: int) -> None:
    host = Host(tmp_path, version)
    host.group(group)
    assert host.pods(uid, OTHER) == set()
    host.group(group, 7)
    assert host.pods(uid, OTHER) == {uid}
    assert host.pods(OTHER) == set()


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    ("group", "above"),
    [
        (f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SLICE}.slice", "kubepods.slice"),
        (f"kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{SLICE}.slice", "kubelet.slice/kubelet-kubepods.slice"),
        (f"deep/below/kubepods/besteffort/pod{UID}", "deep/below/kubepods"),
    ],
    ids=["systemd", "crio", "cgroupfs"],
)
def test_where_the_limits_of_a_pod_and_of_all_pods_belong(tmp_path: Path, group: str, above: str, version: int) -> None:
    host = Host(tmp_path, version)
    groups = HostProcesses(host.proc)
    assert (groups.groups_of(UID), groups.group_of_pods()) == ([], None)
    host.group(f"{group}/cri-containerd-ab.scope", 7)
    assert (groups.groups_of(UID), groups.groups_of(OTHER)) == ([str(host.groups / group)], [])
    assert groups.group_of_pods() == str(host.groups / above)


def test_other_groups_and_pods_that_nobody_asked_about_say_nothing(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.group("init.scope", 1)
    host.group(f"system.slice/podman-{UID}.scope", 2)
    host.group(f"kubepods/pod{OTHER}/a", 3)
    host.group(f"kubepods/pod{UID}", *())
    assert host.pods(UID) == set()


def test_a_host_whose_pods_have_no_groups_to_be_seen_frees_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    host = Host(tmp_path)
    host.group("system.slice/docker-ab.scope", 7)
    processes = HostProcesses(host.proc)
    for _ in range(2):
        assert processes.pods(frozenset({UID})) == {UID}
        assert processes.containers(UID) is None
    assert caplog.text.count("--cgroups-per-qos=false") == 1
    # kubelet's own group is there although no pod is.
    host.group("kubepods.slice/kubepods-besteffort.slice")
    assert processes.pods(frozenset({UID})) == set()
    (host.proc / "self" / "mountinfo").unlink()
    assert processes.pods(frozenset({UID})) == {UID}
    assert caplog.text.count("--cgroups-per-qos=false") == 2


def test_the_containers_that_live_are_told_by_what_kubelet_mounts_into_them(tmp_path: Path) -> None:
    host = Host(tmp_path)
    pod = f"kubepods.slice/kubepods-pod{SLICE}.slice"
    host.group(f"{pod}/cri-containerd-pause.scope", 10)
    host.process(10)
    assert host.containers() == set()
    host.group(f"{pod}/cri-containerd-a.scope", 20, 21)
    host.process(20, "main")
    host.process(21, "main")
    # One in a group of its own below, with other mounts.
    host.group(f"{pod}/cri-containerd-a.scope/nested", 22)
    host.process(22)
    host.group(f"{pod}/cri-containerd-b.scope", 30)
    host.process(30, "side.car-1", deleted="//deleted")
    # Of another pod, whatever it is doing there.
    host.group(f"{pod}/cri-containerd-c.scope", 40)
    host.process(40, "other", pod=OTHER)
    assert host.containers() == {"main", "side.car-1"}
    assert host.containers(OTHER) == set()


def test_a_process_with_a_dead_leader_speaks_by_its_threads_or_leaves_it_open(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.group(f"kubepods/pod{UID}/a", 20)
    host.process(20, "main", thread=23)
    assert host.containers() == {"main"}
    for thread in (host.proc / "20" / "task" / "23").iterdir():
        thread.write_text("")
    assert host.containers() is None
    assert host.pods(UID) == {UID}


def test_a_process_that_ends_meanwhile_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host(tmp_path)
    host.group(f"kubepods/pod{UID}/a", 20)

    def ends(_: HostProcesses, pid: str) -> bytes:
        host.group(f"kubepods/pod{UID}/a")
        return b""

    monkeypatch.setattr(HostProcesses, "_mounts", ends)
    assert host.containers() == set()


def test_a_process_that_proc_hides_lives(tmp_path: Path) -> None:
    """As of another user, where /proc is mounted with hidepid."""
    host = Host(tmp_path)
    host.group(f"kubepods/pod{UID}/a", 20)
    assert host.containers() is None
    assert host.pods(UID) == {UID}


def test_this_machine_can_be_looked_at() -> None:
    assert HostProcesses().pods(frozenset({UID})) <= {UID}


@pytest.mark.parametrize(
    ("groups", "uid"),
    [
        (f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SLICE}.slice/cri-containerd-ab.scope\n", UID),
        (f"4:memory:/kubepods/pod{UID}/0123abc\n3:pids:/kubepods/pod{UID}/0123abc\n0::/init.scope\n", UID),
        ("0::/system.slice/xorg.service\n", ""),
        (f"4:memory:/kubepods/pod{UID}/a\n3:pids:/kubepods/pod{OTHER}/a\n", ""),
    ],
    ids=["version 2", "version 1", "no pod", "two pods"],
)
def test_a_process_is_known_by_its_start_and_belongs_to_one_pod(tmp_path: Path, groups: str, uid: str) -> None:
    host, process = Host(tmp_path), tmp_path / "proc/7"
    assert HostProcesses(host.proc).identify(7) is None
    process.mkdir()
    (process / "cgroup").write_text(groups)
    (process / "stat").write_text("7 (a ) b) S 1 7 7 0 -1 4194560 1 0 0 0 2 3 0 0 20 0 1 0 4711 1000 10 18446744073709551615")
    assert HostProcesses(host.proc).identify(7) == (4711, uid)
    (process / "stat").write_text("7 (a")
    assert HostProcesses(host.proc).identify(7) is None
