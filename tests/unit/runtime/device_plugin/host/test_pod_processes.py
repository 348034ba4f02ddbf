# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Pods and containers with processes, as control groups of either driver and version show them."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpushare_runtime.device_plugin.host import pod_processes
from gpushare_runtime.device_plugin.host.pod_processes import HostProcesses, pod_of

UID, OTHER = "0f3a1b2c-4d5e-6f70-8192-a3b4c5d6e7f8", "1f3a1b2c-4d5e-6f70-8192-a3b4c5d6e7f8"
STATIC = "0123456789abcdef0123456789abcdef"
SLICE = UID.replace("-", "_")


class Host:
    """/proc and control groups of version 2, or the memory controller's of version 1.

    top: the group that is mounted; not_root: paths of which the folder, and what is below, is of another user.
    """

    def __init__(self, root: Path, version: int = 2, top: str = "/", not_root: tuple[str, ...] = ()) -> None:
        self.proc, self.groups = root / "proc", root / "sys fs" / "cgroup"
        self.groups.mkdir(parents=True)
        kind = "cgroup2 cgroup2 rw" if version == 2 else "cgroup cgroup rw,memory"
        mount = str(self.groups).replace(" ", "\\040")
        mounted = f"30 23 0:26 {top} {mount} rw,nosuid shared:4 - {kind}\n31 23 0:27 / /tmp rw - tmpfs tmpfs rw\n"
        self._line, self._not_root = ("0::" if version == 2 else "4:memory:"), not_root
        (self.proc / "self").mkdir(parents=True)
        (self.proc / "self" / "mountinfo").write_text(mounted)

    def owner(self, folder: str) -> int:
        """As whoever runs the tests cannot give folders away."""
        if not Path(folder).is_dir():
            return -1
        return 1000 if any(f"{folder}/".startswith(f"{self.groups}/{path}/") for path in self._not_root) else 0

    def reader(self) -> HostProcesses:
        return HostProcesses(self.proc, self.owner)

    def identify(self, group: str, pid: int = 7) -> str:
        """The UID of the pod of a process with this line in /proc/PID/cgroup."""
        place = self.proc / str(pid)
        place.mkdir(exist_ok=True)
        (place / "stat").write_text(f"{pid} (a ) b) S 1 7 7 0 -1 4194560 1 0 0 0 2 3 0 0 20 0 1 0 4711 1000 10 18446744073709551615")
        (place / "cgroup").write_text(f"{self._line}{group}\n")
        found = self.reader().identify(pid)
        assert found is not None
        assert found[0] == 4711
        return found[1]

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
        return set(self.reader().pods(frozenset(uids)))

    def containers(self, uid: str = UID) -> set[str] | None:
        found = self.reader().containers(uid)
        return None if found is None else set(found)


# By driver, QoS class and --cgroup-root: the pod's group, kubelet's above it, the pod's UID.
PLACES = {
    "systemd": (f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SLICE}.slice", "kubepods.slice", UID),
    "systemd, best effort": (f"kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod{SLICE}.slice", "kubepods.slice", UID),
    "systemd, guaranteed": (f"kubepods.slice/kubepods-pod{SLICE}.slice", "kubepods.slice", UID),
    "systemd, static": (f"kubepods.slice/kubepods-pod{STATIC}.slice", "kubepods.slice", STATIC),
    "systemd, --cgroup-root": (
        f"kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod{SLICE}.slice", "kubelet.slice/kubelet-kubepods.slice", UID,
    ),
    "systemd, two parts": (
        f"a.slice/a-b_c.slice/a-b_c-kubepods.slice/a-b_c-kubepods-pod{SLICE}.slice", "a.slice/a-b_c.slice/a-b_c-kubepods.slice", UID,
    ),
    "cgroupfs": (f"kubepods/burstable/pod{UID}", "kubepods", UID),
    "cgroupfs, guaranteed": (f"kubepods/pod{UID}", "kubepods", UID),
    "cgroupfs, static": (f"kubepods/besteffort/pod{STATIC}", "kubepods", STATIC),
    "cgroupfs, --cgroup-root": (f"deep/below.slice/kubepods/besteffort/pod{UID}", "deep/below.slice/kubepods", UID),
}  # fmt: skip
BELOW = ("", "/cri-containerd-ab.scope", "/0123abc", "/crio-ab.scope/sub", f"/x/pod{OTHER}", f"/kubepods/burstable/pod{OTHER}/y")
"""What a pod's containers have, or make."""


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("place", PLACES)
def test_a_pod_with_a_process_in_any_of_its_groups_lives_and_the_process_is_its_own(tmp_path: Path, place: str, version: int) -> None:
    group, above, uid = PLACES[place]
    host = Host(tmp_path, version)
    assert (host.reader().groups_of(uid), host.reader().group_of_pods()) == ([], None)
    host.group(group)
    assert host.pods(uid, OTHER) == set()
    for below in BELOW:
        host.group(f"{group}{below}", 7)
        # Also the group with another pod's name in it, which the pod has made.
        assert host.pods(uid, OTHER) == {uid}, below
        assert host.identify(f"/{group}{below}") == uid, below
        host.group(f"{group}{below}")
    assert host.pods(uid, OTHER) == set()
    assert (host.reader().groups_of(uid), host.reader().groups_of(OTHER)) == ([str(host.groups / group)], [])
    assert host.reader().group_of_pods() == str(host.groups / above)


USERS = "user.slice/user-1000.slice/user@1000.service"


@pytest.mark.parametrize(
    ("below", "container"),
    [
        (f"/cri-containerd-{'ab' * 32}.scope", "ab" * 32),
        (f"/crio-{'01' * 32}.scope/container", "01" * 32),
        (f"/docker-{'01' * 32}.scope", "01" * 32),
        (f"/{'0c' * 32}/init.scope", "0c" * 32),
        (f"/own/{'0c' * 32}", ""),
        (f"/{'0c' * 33}", ""),
        (f"/{'0C' * 32}", ""),
        ("", ""),
    ],
)
@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("place", PLACES)
def test_the_container_of_a_process_is_its_group_directly_below_the_pods(
    tmp_path: Path, place: str, version: int, below: str, container: str
) -> None:
    group, _, uid = PLACES[place]
    host = Host(tmp_path, version)
    host.group(f"{group}{below}", 7)
    assert host.identify(f"/{group}{below}") == uid
    assert host.reader().container_of(7) == container
    host.identify(f"/system.slice/docker-{'ab' * 32}.scope", 8)
    assert [host.reader().container_of(pid) for pid in (8, 9)] == ["", ""]


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize(
    "spoofed",
    [
        f"{USERS}/kubepods.slice/kubepods-pod{SLICE}.slice",
        f"{USERS}/app.slice/pod{UID}",
        f"home/x/kubepods/burstable/pod{UID}",
        f"home/pod{UID}",
        f"system.slice/x.slice/kubepods.slice/kubepods-pod{SLICE}.slice",
        f"machine.slice/libpod-{'ab' * 32}.scope/kubepods/pod{UID}",
        f"docker/{'ab' * 32}/kubelet/kubepods/pod{UID}",
        f"kubepods/given/pod{UID}",
        f"kubepods/one/two/pod{UID}",
        f"notkubepods/pod{UID}",
    ],
)
def test_who_makes_a_group_with_the_name_of_a_pod_is_nobody(tmp_path: Path, spoofed: str, version: int) -> None:
    """The groups of users, of a node in a container, and of whatever else is not kubelet's."""
    host = Host(tmp_path, version, not_root=(USERS, "home/x", "kubepods/given"))
    host.group(f"kubepods/burstable/pod{OTHER}", 1)
    host.group(spoofed, 7)
    assert host.identify(f"/{spoofed}") == ""
    assert host.pods(UID, OTHER) == {OTHER}
    assert (host.reader().groups_of(UID), host.reader().group_of_pods()) == ([], str(host.groups / "kubepods"))
    assert host.containers() == set()


def test_a_line_ends_where_the_kernel_ends_it(tmp_path: Path) -> None:
    """Every character but a newline may be part of a group's name."""
    host = Host(tmp_path)
    host.group(f"kubepods/pod{UID}", 1)
    for end in ("\v", "\f", "\r", "\x1c", "\u2028", "\x85"):
        assert host.identify(f"/user.slice/x{end}0::/kubepods/pod{UID}") == ""
    assert host.identify(f"/kubepods/pod{UID}/a:0::/b") == UID


@pytest.mark.parametrize(
    ("top", "group", "uid"),
    [
        ("/", f"/kubepods/pod{UID}/a", UID),
        # A node in a container, or in a pod: what its own mount shows counts.
        ("/docker/ab", f"/docker/ab/kubepods/pod{UID}/a", UID),
        (f"/kubepods/pod{OTHER}/c", f"/kubepods/pod{OTHER}/c/kubepods/pod{UID}/a", UID),
        ("/docker/ab", f"/docker/abc/kubepods/pod{UID}/a", ""),
        ("/docker/ab", f"/kubepods/pod{UID}/a", ""),
        ("/docker/ab", "/docker/ab", ""),
        # The process that reads is in a namespace of control groups below the mount, or the other one is outside of its own.
        ("/../..", f"/../../kubepods/pod{UID}/a", UID),
        ("/../..", f"/../kubepods/pod{UID}/a", ""),
        ("/", f"/../kubepods/pod{UID}/a", ""),
        ("/", f"/kubepods/../pod{UID}/a", ""),
        # It has ended, or its group has.
        ("/", f"/kubepods/pod{UID} (deleted)", ""),
        ("/", f"/kubepods/pod{UID}/a (deleted)", UID),
        ("/", f"/kubepods/pod{OTHER}/a", ""),
        ("/", "", ""),
    ],
)
@pytest.mark.parametrize("version", [1, 2])
def test_a_path_counts_from_the_mounted_group(tmp_path: Path, top: str, group: str, uid: str, version: int) -> None:
    host = Host(tmp_path, version, top)
    host.group(f"kubepods/pod{UID}", 7)
    assert host.identify(group) == uid


def test_the_processes_of_a_pod_are_those_of_its_groups_that_are_there(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.group(f"kubepods/pod{UID}")
    host.group(f"kubepods/pod{UID}/a", 7, 8, 9)
    host.group(f"kubepods/pod{OTHER}/a", 10)
    for pid, uid in ((7, UID), (8, UID), (10, OTHER)):
        host.identify(f"/kubepods/pod{uid}/a", pid)
    # Its number is another pod's process by now.
    host.identify(f"/kubepods/pod{OTHER}/a", 9)
    assert host.reader().processes_of(UID, 99) == [(7, 4711), (8, 4711)]
    assert host.reader().processes_of(UID, 1) == [(7, 4711)]
    assert host.reader().processes_of(OTHER, 99) == [(10, 4711)]
    assert Host(tmp_path / "blind").reader().processes_of(UID, 99) == []


def test_the_groups_of_two_settings_of_kubelet_count_until_the_host_starts_anew(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.group(f"kubelet/kubepods/pod{OTHER}", 8)
    host.group(f"kubepods.slice/kubepods-pod{SLICE}.slice", 7)
    assert host.pods(UID, OTHER) == {UID, OTHER}
    assert host.reader().group_of_pods() == str(host.groups / "kubepods.slice")
    assert host.identify(f"/kubelet/kubepods/pod{OTHER}/a") == OTHER


def test_kubelet_s_group_is_found_again_after_a_change(tmp_path: Path) -> None:
    host, now = Host(tmp_path), 100.0
    reader = HostProcesses(host.proc, host.owner, lambda: now)
    host.identify(f"/kubepods/pod{UID}/a")
    assert reader.identify(7) == (4711, "")
    host.group(f"kubepods/pod{UID}", 7)
    assert reader.identify(7) == (4711, "")
    now += pod_processes._KNOWN_SECONDS + 0.1
    assert reader.identify(7) == (4711, UID)


def mounted(host: Host, *lines: tuple[str, Path]) -> None:
    """top and place of each mount of control groups of version 2."""
    text = "".join(f"30 23 0:26 {top} {str(at).replace(' ', chr(92) + '040')} rw - cgroup2 cgroup2 rw\n" for top, at in lines)
    (host.proc / "self/mountinfo").write_text(text)


def test_a_container_sees_pods_through_the_named_mount_only(tmp_path: Path) -> None:
    host, own = Host(tmp_path), tmp_path / "own"
    own.mkdir()
    host.group(f"kubepods/pod{UID}/a", 7)
    # As the runtime mounts the container's own group first.
    mounted(host, ("/", own), ("/", host.groups))
    assert host.pods(UID, OTHER) == {UID, OTHER}  # blind: any may live
    assert HostProcesses(host.proc, host.owner, root=host.groups).pods({UID, OTHER}) == {UID}
    # And at the same place, below the host's.
    mounted(host, ("/kubepods/podx/y", host.groups), ("/", host.groups))
    host.identify(f"/kubepods/pod{UID}/a")
    assert HostProcesses(host.proc, host.owner, root=host.groups).identify(7) == (4711, UID)


def test_a_named_folder_without_control_groups_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    host = Host(tmp_path)
    host.group(f"kubepods/pod{UID}/a", 7)
    assert HostProcesses(host.proc, host.owner, root=tmp_path / "other").pods({OTHER}) == {OTHER}
    assert f"mounted at {tmp_path}/other (--cgroup-root)" in caplog.text


@pytest.mark.parametrize(
    ("own", "seen"),
    [
        # The kernel writes the paths of others from the container's own group: as far up as they have something in common.
        (f"kubepods/burstable/pod{OTHER}/me", {f"/../../pod{UID}/a": UID, f"/../../../pod{STATIC}/b": STATIC, "/": OTHER, "/x": OTHER}),
        (f"kubepods/pod{OTHER}/me", {f"/../../burstable/pod{UID}/a": UID, f"/../../pod{STATIC}/b": STATIC, "/../../../x.slice/c": ""}),
        ("machine.slice/me", {f"/../../kubepods/burstable/pod{UID}/a": UID, "/": "", "/../../../kubepods": ""}),
    ],
)
def test_a_process_is_known_from_within_a_cgroup_namespace(tmp_path: Path, own: str, seen: dict[str, str]) -> None:
    host = Host(tmp_path)
    for group in (f"kubepods/burstable/pod{UID}/a", f"kubepods/pod{STATIC}/b", "x.slice/c"):
        host.group(group, 7)
    host.group(own)
    host.group(f"{own}/x", os.getpid())
    mounted(host, ("/.." * len(own.split("/")), host.groups))
    reader = HostProcesses(host.proc, host.owner, root=host.groups)
    for group, uid in seen.items():
        host.identify(group)
        assert reader.identify(7) == (4711, uid), group
    assert reader.pods({UID}) == {UID}


def test_a_pod_with_more_groups_than_anything_has_lives_and_its_containers_are_not_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deep or many: a container may make them on purpose."""
    monkeypatch.setattr(pod_processes, "_MOST_GROUPS", 100)
    for name, made in (("deep", "/".join(["d"] * 120)), ("many", "")):
        host = Host(tmp_path / name)
        host.group(f"kubepods/pod{UID}/a")
        host.group(f"kubepods/pod{UID}/a/{made}")
        for number in range(0 if made else 120):
            host.group(f"kubepods/pod{UID}/a/{number}")
        assert (host.pods(UID), host.containers()) == ({UID}, None), name
    host = Host(tmp_path / "containers")
    for number in range(101):
        host.group(f"kubepods/pod{UID}/{number}")
    assert host.containers() is None


@given(st.text(max_size=300), st.text(max_size=100))
def test_any_text_of_the_kernel_gives_a_pod_below_kubelet_s_group_or_nobody(lines: str, top: str) -> None:
    for mounted_top in (top, "/../.."):
        folder = pod_processes._Hierarchy("", "/sys/fs/cgroup", mounted_top, "/a/b").folder(lines)
        assert folder is None or folder.startswith("/sys/fs/cgroup/")
    assert pod_of(lines, "/sys/fs/cgroup/kubepods") is None


NAMES = st.sampled_from(
    [
        "kubepods",
        "kubepods.slice",
        "burstable",
        "..",
        "",
        "a",
        f"pod{UID}",
        f"pod{OTHER}",
        f"kubepods-pod{SLICE}.slice",
        "pod1",
        f"xpod{UID}",
    ]
)


@given(st.lists(NAMES, max_size=7))
def test_the_first_pod_below_kubelet_s_group_counts_and_no_other(names: list[str]) -> None:
    place, root = "/".join(["", *names]), "/kubepods"
    known = {f"pod{UID}": UID, f"pod{OTHER}": OTHER, f"kubepods-pod{SLICE}.slice": UID}
    expected = ""
    if names[:1] == ["kubepods"]:
        expected = next((known[name] for name in names[1:3] if name in known), "")
    found = pod_of(place, root)
    assert (found[1] if found else "") == expected
    assert found is None or f"{place}/".startswith(f"{found[0]}/")


@pytest.fixture
def delegated(tmp_path: Path) -> Iterator[Path]:
    """A real group that user nobody may divide, as systemd gives one to every user."""
    mounts = [line.split() for line in Path("/proc/self/mounts").read_text().splitlines()]
    unified = next((Path(mount[1]) for mount in mounts if mount[2] == "cgroup2"), None)
    made = unified / f"gpushare-test-{os.getpid()}" if unified else None
    if os.geteuid() != 0 or made is None or not os.access(made.parent, os.W_OK):
        pytest.skip("only root gives groups away")
    try:
        made.mkdir()
    except OSError as error:
        pytest.skip(f"this machine has no control groups to make: {error}")
    os.chown(made, NOBODY, NOBODY)
    os.chown(made / "cgroup.procs", NOBODY, NOBODY)
    yield made
    for folder in sorted(made.rglob("*"), reverse=True):
        if folder.is_dir():
            folder.rmdir()
    made.rmdir()


NOBODY = 65534


def test_a_real_group_of_a_user_is_no_pod_s(delegated: Path, tmp_path: Path) -> None:
    """With the kernel's own groups and owners: a user makes kubelet's group and the pod's in his own, and enters it."""
    spoofed = delegated / f"kubepods/burstable/pod{UID}"
    ours = delegated.parent / f"gpushare-test-{os.getpid()}-kubelet"
    command = ["sh", "-c", f"mkdir -p {spoofed} && echo made && read end"]
    with subprocess.Popen(command, user=NOBODY, group=NOBODY, extra_groups=[], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        assert process.stdout.readline() == b"made\n"
        (spoofed / "cgroup.procs").write_text(str(process.pid))
        try:
            (ours / f"kubepods/pod{OTHER}").mkdir(parents=True)
            proc = tmp_path / "proc"
            proc.mkdir()
            (proc / str(process.pid)).symlink_to(f"/proc/{process.pid}")
            (proc / "self").mkdir()
            (proc / "self/mountinfo").write_text(f"30 23 0:26 / {delegated.parent} rw - cgroup2 cgroup2 rw\n")
            reader = HostProcesses(proc)
            assert Path(f"/proc/{process.pid}/cgroup").read_text().rstrip().endswith(f"{delegated.name}/kubepods/burstable/pod{UID}")
            found = reader.identify(process.pid)
            assert found is not None
            assert found[1] == ""
            assert reader.pods(frozenset({UID})) == set()
            assert reader.groups_of(UID) == []
            assert len(reader.groups_of(OTHER)) == 1
        finally:
            process.communicate(b"\n", timeout=60)
            for folder in (ours / f"kubepods/pod{OTHER}", ours / "kubepods", ours):
                folder.rmdir()


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
    processes = host.reader()
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
        (f"4:memory:/kubepods/pod{UID}/0123abc\n3:pids:/kubepods/pod{UID}/0123abc\n0::/init.scope\n", UID),
        ("4:memory:/system.slice/xorg.service\n", ""),
        # The hierarchy that has the pods' groups decides: of systemd's own, users have parts.
        (f"4:memory:/kubepods/pod{UID}/a\n1:name=systemd:/kubepods/pod{OTHER}/a\n0::/kubepods/pod{OTHER}\n", UID),
        (f"4:memory:/user.slice\n1:name=memory:/kubepods/pod{UID}/a\n0::/kubepods/pod{UID}\n", ""),
        (f"5:cpu,memory:/kubepods/pod{UID}/a\n", UID),
        ("garbage\n::\n4:memory\n", ""),
    ],
    ids=["pod", "no pod", "two pods", "another hierarchy", "two controllers", "garbage"],
)
def test_a_process_is_known_by_its_start_and_belongs_to_one_pod(tmp_path: Path, groups: str, uid: str) -> None:
    host, process = Host(tmp_path, version=1), tmp_path / "proc/7"
    for each in (UID, OTHER):
        host.group(f"kubepods/pod{each}", 1)
    assert host.reader().identify(7) is None
    host.identify("/")
    (process / "cgroup").write_text(groups)
    assert host.reader().identify(7) == (4711, uid)
    for broken in ("7 (a", "7 (a) " + "x " * 40, "7 (a) " + "\u00b2 " * 40, ""):
        (process / "stat").write_text(broken)
        assert host.reader().identify(7) is None
