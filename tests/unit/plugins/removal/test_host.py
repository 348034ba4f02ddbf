# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Removal from a host that is a folder, with a model of systemd: exactly ours goes, whatever state a killed run or others left."""

from __future__ import annotations

import hashlib
import os
import shutil
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.journal import FOLDER, Journal
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.transaction import Transaction
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.names import DASHBOARD
from ansible_collections.gpushare.kubernetes.plugins.module_utils._formats.answers import answer_of
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.files import FileState
from ansible_collections.gpushare.kubernetes.plugins.module_utils._removal.host import check_callers, plan_leftovers, plan_services
from ansible_collections.gpushare.kubernetes.plugins.module_utils._removal.plan import Layout, RemovalPlan, RemoveError, shown

from unit.fakes.plugins.fake_root import FakeRoot
from unit.golden import Golden

UNITS = "/etc/systemd/system"
EXTENDER = f"{UNITS}/gpushare-extender.service"
PLUGIN = f"{UNITS}/gpushare-device-plugin.service"
TIMER = f"{UNITS}/gpushare-pki.timer"
KUBECONFIG = "/etc/gpushare/extender.kubeconfig"
ENVIRONMENT = "/opt/gpushare/0.1.0-0123456789ab"
LINK = "/usr/local/bin/kubectl-inspect-gpushare"
MANIFEST = "/etc/kubernetes/manifests/kube-scheduler.yaml"
SOCKET = "/var/lib/kubelet/device-plugins/aliyungpushare-mem-0123cdef.sock"
FORMER = "/var/lib/kubelet/device-plugins/aliyungpushare.sock"


class Killed(BaseException):
    """As SIGKILL would: nothing after it is done."""


class Systemd:
    """Units by name: what systemd has loaded and what runs. Their files are those of the folder; their links were, at the last reload."""

    def __init__(self, root: FakeRoot) -> None:
        self.root = root
        self.loaded: dict[str, str] = {}
        self.cached: dict[str, str] = {}
        self.active: dict[str, str] = {}
        self.stubborn: set[str] = set()
        self.calls: list[list[str]] = []

    def start(self, name: str) -> None:
        self.loaded[name] = f"{UNITS}/{name}"
        self.active[name] = "active"
        self.root.link(f"{UNITS}/multi-user.target.wants/{name}", f"{UNITS}/{name}")

    def unit(self, name: str) -> Path:
        return self.root.folder / UNITS.lstrip("/") / name

    def link(self, name: str) -> Path:
        return self.root.folder / f"{UNITS}/multi-user.target.wants/{name}".lstrip("/")

    def __call__(self, argv: list[str]) -> tuple[int, str, str]:
        assert argv[0] == "systemctl"
        if argv[1] not in ("show", "is-enabled"):
            self.calls.append(argv[1:])
        if argv[1] == "show":
            return 0, self.show(argv[2]), ""
        if argv[1] == "is-enabled":
            return (0 if self.enabled(argv[-1]) else 1), "", ""
        if argv[1] == "daemon-reload":
            self.cached.clear()
            for name in list(self.loaded):
                if not self.unit(name).exists():
                    del self.loaded[name]
        if argv[1] == "reset-failed":
            for name in argv[2:]:
                self.active.pop(name, None)
        if argv[1] == "stop":
            if argv[2] in self.stubborn:
                return 1, "", "Job timed out."
            self.active[argv[2]] = "inactive"
        if argv[1] == "disable":
            if not self.unit(argv[-1]).exists():
                return 1, "", f"Failed to disable unit: Unit file {argv[-1]} does not exist."
            if self.link(argv[-1]).is_symlink():
                self.link(argv[-1]).unlink()
        return 0, "", ""

    def enabled(self, name: str) -> bool:
        return self.link(name).is_symlink() and self.unit(name).exists()

    def show(self, name: str) -> str:
        enabled = self.cached.setdefault(name, "enabled" if self.enabled(name) else "disabled")
        if name not in self.loaded:
            return "LoadState=not-found\nActiveState=inactive\nUnitFileState=\nFragmentPath=\nDropInPaths=\n"
        active = self.active.get(name, "inactive")
        return f"LoadState=loaded\nActiveState={active}\nUnitFileState={enabled}\nFragmentPath={self.loaded[name]}\nDropInPaths=\n"


class Host:
    """A host with everything of ours on it, and what it was before."""

    def __init__(self, folder: Path) -> None:
        self.root = FakeRoot(folder)
        self.systemd = Systemd(self.root)
        self.layout = Layout(root=str(folder))
        for path in (f"{UNITS}/other.service", "/etc/hosts", "/var/lib/kubelet/device-plugins/other.sock", "/usr/local/bin/x", "/opt/x/y"):
            self.root.file(path, "theirs\n")
        self.root.at(f"{UNITS}/multi-user.target.wants/x").parent.mkdir(parents=True, exist_ok=True)
        self.root.at("/var/lib/private/x")
        self.root.at("/var/lib/systemd/timers/x")
        self.before = self.tree()
        self.install()

    def install(self) -> None:
        for name in ("gpushare-extender", "gpushare-device-plugin"):
            transaction = Transaction(name, str(self.root))
            transaction.write(f"/etc/gpushare/{name.removeprefix('gpushare-')}.kubeconfig", b"{}\n", 0o600)
            transaction.write(f"{UNITS}/{name}.service", b"[Service]\nEnvironment=GPUSHARE_GENERATION=1\nExecStart=/x\n", 0o644)
            transaction.apply()
            self.systemd.start(f"{name}.service")
        transaction = Transaction("gpushare-extender", str(self.root))
        transaction.write(f"{UNITS}/gpushare-extender.socket", b"# Copyright: gpushare.kubernetes contributors\n[Socket]\n", 0o644)
        transaction.apply()
        self.systemd.start("gpushare-extender.socket")
        transaction = Transaction("gpushare-pki", str(self.root))
        transaction.write(f"{UNITS}/gpushare-pki.service", b"# Copyright: gpushare.kubernetes contributors\n[Service]\n", 0o644)
        transaction.write(TIMER, b"# Copyright: gpushare.kubernetes contributors\n[Timer]\nOnCalendar=daily\n", 0o644)
        transaction.apply()
        self.systemd.start("gpushare-pki.timer")
        for path in (
            "/etc/gpushare/extender.token",
            "/etc/gpushare/pki/ca.key",
            "/etc/gpushare/pki/ca.crt",
            "/etc/gpushare/pki/scheduler/tls.key",
            "/etc/gpushare/pki/.extender.key.new",
            "/etc/systemd/.gpushare-staged-0123456789ab-77",
            "/var/lib/gpushare/.gpushare-staged-0123456789ab-78",
            "/var/lib/private/gpushare-extender/token",
            "/var/lib/gpushare-device-plugin/token",
            "/var/lib/systemd/timers/stamp-gpushare-pki.timer",
            f"{ENVIRONMENT}/bin/gpushare-extender",
            "/opt/gpushare/0.0.9-ba9876543210/bin/python",
        ):
            self.root.file(path, "ours")
        self.root.link("/var/lib/gpushare-extender", "private/gpushare-extender")
        self.root.link("/opt/gpushare/current", "0.1.0-0123456789ab")
        self.root.link(LINK, "/opt/gpushare/current/bin/kubectl-inspect-gpushare")
        self.root.socket(SOCKET)  # nobody listens: left by a plugin that was killed
        self.root.socket(FORMER)  # and by one of a former release

    def tree(self) -> dict[str, str]:
        """Every path with what it is and holds."""
        found = {}
        for folder, names, files in os.walk(self.root.folder):
            for name in [*names, *files]:
                path = Path(folder, name)
                mode = f"{path.lstat().st_mode:o} "
                content = os.readlink(path) if path.is_symlink() else path.read_text() if path.is_file() else ""
                found[str(path.relative_to(self.root.folder))] = mode + content
        return found

    def services(self) -> RemovalPlan:
        return plan_services(self.layout, self.systemd)

    def leftovers(self, check: bool = False) -> RemovalPlan:
        return plan_leftovers(self.layout, check)

    def remove(self, point: Callable[[str], None] = lambda _point: None) -> list[RemovalPlan]:
        plans = []
        for make in (self.services, self.leftovers):
            plan = make()
            plan.apply(point)
            plans.append(plan)
        return plans

    def at(self, path: str) -> Path:
        return self.root.folder / path.lstrip("/")


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path / "host")


def what(plan: RemovalPlan, kind: str) -> list[str]:
    return [step.what for step in plan.steps if step.kind == kind]


def test_everything_of_ours_goes_and_nothing_else_and_the_second_run_does_nothing(host: Host) -> None:
    first = host.remove()
    assert host.tree() == host.before
    assert what(first[0], "stopped") == [
        *("gpushare-pki.timer", "gpushare-extender.socket", "gpushare-extender.service", "gpushare-device-plugin.service")
    ]
    assert not host.systemd.loaded
    assert [plan.left for plan in first] == [[], []]
    calls = list(host.systemd.calls)
    for plan in host.remove():
        assert answer_of(plan.result()) == {
            "stopped": [],
            "removed": [],
            "restored": [],
            "changed": False,
            "left": [],
            "notes": [],
            "diff": [],
        }
    assert host.systemd.calls == calls


def test_check_mode_writes_nothing_and_says_what_the_run_then_does(host: Host) -> None:
    before, calls = host.tree(), len(host.systemd.calls)
    predicted = [host.services().result(), host.leftovers(check=True).result()]
    assert (host.tree(), len(host.systemd.calls)) == (before, calls)
    assert [plan.result() for plan in host.remove()] == predicted


def test_a_diff_shows_no_secret(host: Host) -> None:
    shown = {one["before_header"]: one["before"] for one in host.services().result().diff}
    assert shown[KUBECONFIG].startswith("(content with sha256 ")
    assert shown["/etc/gpushare/pki/ca.key"].startswith("(content with sha256 ")
    assert shown["/etc/gpushare/extender.token"].startswith("(content with sha256 ")
    assert "ExecStart=/x" in shown[EXTENDER]
    assert shown["gpushare-extender.service"] == "active, enabled\n"


def test_nothing_installed_is_nothing_to_do(tmp_path: Path) -> None:
    root = FakeRoot(tmp_path)
    root.file("/etc/hosts")
    layout = Layout(root=str(tmp_path))
    assert plan_services(layout, Systemd(root)).steps == []
    assert plan_leftovers(layout, False).steps == []


def points(host: Host) -> list[str]:
    seen: list[str] = []
    host.remove(seen.append)
    return seen


def test_killed_at_any_point_the_next_run_finishes(tmp_path: Path) -> None:
    every = points(Host(tmp_path / "all"))
    assert len(every) > 40
    for number, victim in enumerate(every):
        host = Host(tmp_path / str(number))

        def die(point: str, victim: str = victim) -> None:
            if point == victim:
                raise Killed

        with pytest.raises(Killed):
            host.remove(die)
        host.remove()
        assert host.tree() == host.before, victim
        assert not host.systemd.loaded, victim
        assert all(not plan.steps for plan in host.remove()), victim


def test_killed_inside_a_journalled_file_the_next_run_finishes(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(_journal: Journal, _path: str) -> None:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "forget", die)
        with pytest.raises(Killed):
            host.remove()
    host.remove()
    assert host.tree() == host.before


def test_an_installation_killed_on_the_way_goes_as_well(host: Host) -> None:
    shutil.rmtree(host.at("/var/lib/gpushare"))  # no journal: the units say themselves whose they are
    host.at("/opt/gpushare/current").unlink()
    host.systemd.active["gpushare-device-plugin.service"] = "failed"
    for plan in host.remove():
        assert plan.left == []
    assert host.tree() == host.before


def test_a_file_that_was_there_before_and_that_others_changed_is_left_and_its_old_bytes_stay(tmp_path: Path) -> None:
    root = FakeRoot(tmp_path)
    root.file(EXTENDER, "before")
    transaction = Transaction("gpushare-extender", str(root))
    transaction.write(EXTENDER, b"[Service]\nEnvironment=GPUSHARE_GENERATION=1\n", 0o644)
    transaction.apply()
    root.file(EXTENDER, "edited")
    layout = Layout(root=str(root))
    for _again in range(2):
        plan = plan_services(layout, Systemd(root))
        assert [one["what"] for one in plan.left] == [EXTENDER]
        assert plan.steps == []
        plan_leftovers(layout, False).apply()
        assert root.at(EXTENDER).read_text() == "edited"
        entry = Journal(str(root)).entry(EXTENDER)
        assert entry is not None
        assert entry.original is not None
        assert entry.original.content == b"before"


def test_what_others_put_into_our_folders_stays_and_is_named(host: Host) -> None:
    for path in ("/etc/gpushare/notes.txt", "/opt/gpushare/mine/x", "/etc/gpushare/pki/other.crt"):
        host.root.file(path, "theirs")
    services, leftovers = host.remove()
    left = {one["what"]: one["why"] for one in [*services.left, *leftovers.left]}
    assert sorted(left) == ["/etc/gpushare", "/etc/gpushare/pki", "/opt/gpushare"]
    assert "notes.txt, pki" in left["/etc/gpushare"]
    for path in ("/etc/gpushare/notes.txt", "/opt/gpushare/mine/x", "/etc/gpushare/pki/other.crt"):
        assert host.at(path).read_text() == "theirs"
    assert not host.at(ENVIRONMENT).exists()


def test_units_of_the_same_name_that_are_not_ours_are_left_running_with_their_state(tmp_path: Path) -> None:
    root = FakeRoot(tmp_path)
    systemd = Systemd(root)
    root.file(PLUGIN, "[Service]\nExecStart=/usr/bin/original\n")
    root.file("/var/lib/gpushare-device-plugin/theirs")
    systemd.start("gpushare-device-plugin.service")
    root.link(EXTENDER, "/dev/null")
    systemd.loaded["gpushare-pki.service"] = "/usr/lib/systemd/system/gpushare-pki.service"
    root.file(TIMER, "[Timer]\nOnCalendar=hourly\n")
    for name in (os.path.basename(path) for path in (EXTENDER, TIMER)):
        root.link(f"{UNITS}/other.target.wants/{name}", f"{UNITS}/{name}")
    plan = plan_services(Layout(root=str(root)), systemd)
    assert plan.steps == []
    assert systemd.active == {"gpushare-device-plugin.service": "active"}
    left = {one["what"]: one["why"] for one in plan.left}
    assert left.pop(EXTENDER).startswith("it is not a regular file")
    stranger = "a unit of this name that this collection did not write"
    assert left == {PLUGIN: stranger, TIMER: stranger, "/usr/lib/systemd/system/gpushare-pki.service": stranger}


def test_a_unit_that_runs_without_its_file_is_stopped_and_forgotten(host: Host) -> None:
    host.at(EXTENDER).unlink()
    plans = host.remove()
    assert "gpushare-extender.service" in what(plans[0], "stopped")
    assert host.tree() == host.before
    assert not host.systemd.loaded


def test_another_unit_in_the_journal_is_stopped_as_well(host: Host) -> None:
    transaction = Transaction("gpushare-more", str(host.root))
    transaction.write(f"{UNITS}/gpushare-more.service", b"[Service]\n", 0o644)
    transaction.apply()
    host.systemd.start("gpushare-more.service")
    assert "gpushare-more.service" in what(host.remove()[0], "stopped")
    assert host.tree() == host.before


def test_without_the_journal_everything_of_ours_goes_all_the_same(host: Host) -> None:
    for entry in host.at(FOLDER).glob("*.json"):
        entry.unlink()
    mark = "# Copyright: gpushare.kubernetes contributors\n"
    unit, settings = f"{UNITS}/gpushare-mps-GPU-0.service", "/etc/gpushare/gpushare-extender.env"
    host.root.file(unit, mark)
    host.root.file(settings, mark)
    host.systemd.start(os.path.basename(unit))
    plans = host.remove()
    assert {unit, settings, TIMER, EXTENDER} <= set(what(plans[0], "removed"))
    assert os.path.basename(unit) in what(plans[0], "stopped")
    assert host.tree() == host.before


def test_every_kubectl_plugin_goes(host: Host) -> None:
    programs = ("kubectl-gpushare", "kubectl_complete-gpushare")
    for program in programs:
        host.root.link(f"/usr/local/bin/{program}", f"/opt/gpushare/current/bin/{program}")
    host.remove()
    assert not any(host.at(f"/usr/local/bin/{program}").is_symlink() for program in programs)


def test_a_unit_of_others_that_was_enabled_for_us_is_disabled_again(host: Host) -> None:
    for name, before in (("refresh.path", b"disabled"), ("kept.path", b"enabled")):
        former = FileState(before, 0, 0, 0, None)
        Journal(str(host.root)).record(f"service:{name}", "nvidia_container_toolkit.cdi", former, b"enabled")
    plan = host.services()
    assert "refresh.path" in what(plan, "stopped")
    assert "journal entry of service:kept.path" in what(plan, "removed")
    plan.apply()
    assert ["stop", "refresh.path"] in host.systemd.calls
    assert ["--no-reload", "disable", "--quiet", "refresh.path"] in host.systemd.calls
    assert not [call for call in host.systemd.calls if "kept.path" in call]
    assert not [entry for entry in Journal(str(host.root)).entries() if entry.path.startswith("service:")]


def test_a_unit_that_the_driver_enabled_is_left_to_the_role_of_the_driver(host: Host) -> None:
    Journal(str(host.root)).record("service:nvidia-persistenced.service", "nvidia_driver", None, b"enabled")
    services, leftovers = host.remove()
    assert not [step for step in services.steps if "persistenced" in step.what]
    assert [one["what"] for one in leftovers.left] == ["service:nvidia-persistenced.service"]
    assert Journal(str(host.root)).entry("service:nvidia-persistenced.service") is not None


def test_the_state_of_the_device_plugin_stays_where_a_pod_needs_it(host: Host) -> None:
    plan_services(host.layout, host.systemd, keep_state=True).apply()
    assert host.at("/var/lib/gpushare-device-plugin/token").exists()
    assert not host.at("/var/lib/private/gpushare-extender").exists()


def test_packages_keep_the_journal_until_they_are_put_back(host: Host) -> None:
    transaction = Transaction("packages.nvidia_container_toolkit", str(host.root))
    transaction.write("/etc/apt/sources.list.d/gpushare-x.sources", b"x\n")
    transaction.apply()
    host.services().apply()
    left = host.leftovers().left
    assert [one["what"] for one in left] == ["/etc/apt/sources.list.d/gpushare-x.sources"]
    assert "uninstall.yml" in left[0]["why"]
    assert host.root.at("/etc/apt/sources.list.d/gpushare-x.sources").exists()


def test_a_kubectl_plugin_of_somebody_else_is_left(host: Host) -> None:
    host.at(LINK).unlink()
    host.root.file(LINK, "#!/bin/sh\n")
    leftovers = host.remove()[1]
    assert [one["what"] for one in leftovers.left] == [LINK]
    assert host.at(LINK).read_text() == "#!/bin/sh\n"
    host.at(LINK).unlink()
    host.root.link(LINK, "/opt/other/bin/kubectl-inspect-gpushare")
    assert ([one["what"] for one in host.leftovers().left], host.leftovers().steps) == ([LINK], [])


def test_a_unit_that_does_not_stop_is_an_error_and_keeps_its_file(host: Host, golden: Golden) -> None:
    host.systemd.stubborn.add("gpushare-extender.service")
    with golden.raised(RemoveError):
        host.remove()
    assert host.at(EXTENDER).exists()
    host.systemd.stubborn.clear()
    host.remove()
    assert host.tree() == host.before


@pytest.fixture
def listening(host: Host) -> Iterator[Host]:
    """The host, where another process listens on the device plugin's socket."""
    host.at(SOCKET).unlink()
    before = os.getcwd()
    with socket.socket(socket.AF_UNIX) as sock:
        os.chdir(host.at(SOCKET).parent)
        try:
            sock.bind(host.at(SOCKET).name)
        finally:
            os.chdir(before)
        sock.listen()
        yield host


def test_a_socket_on_which_somebody_listens_is_left(listening: Host) -> None:
    listening.remove()
    assert listening.at(SOCKET).exists()
    opened = len(os.listdir("/proc/self/fd"))
    assert [one["what"] for one in listening.services().left] == [SOCKET]
    assert len(os.listdir("/proc/self/fd")) == opened


def test_the_extender_of_a_scheduler_that_needs_it_is_not_stopped(host: Host, golden: Golden) -> None:
    check_callers(host.layout)
    host.root.file(MANIFEST, "metadata:\n  annotations:\n    other: x\n")
    check_callers(host.layout)
    host.root.file(MANIFEST, f"metadata:\n  annotations:\n    gpushare.kubernetes/scheduler-config-sha256: {'0' * 64}\n")
    with golden.raised(RemoveError):
        check_callers(host.layout)
    check_callers(host.layout, [DASHBOARD])


def test_the_journal_stays_while_scheduler_or_container_runtime_are_not_undone(host: Host) -> None:
    transaction = Transaction("container_runtime", str(host.root))
    transaction.write("/etc/containerd/config.toml", b"version = 2\n")
    transaction.apply()
    _services, leftovers = host.remove()
    assert [one["what"] for one in leftovers.left] == ["/etc/containerd/config.toml"]
    assert "gpushare_container_runtime_state: absent" in leftovers.left[0]["why"]
    assert Journal(str(host.root)).entry("/etc/containerd/config.toml") is not None
    # In check mode the step before has only been predicted.
    assert "/var/lib/gpushare/journal" in what(host.leftovers(check=True), "removed")


# Parts of a plan


@pytest.fixture
def bare(tmp_path: Path) -> tuple[FakeRoot, RemovalPlan]:
    root = FakeRoot(tmp_path)
    return root, RemovalPlan(Layout(root=str(root)))


def test_a_file_a_link_and_a_folder_go_once_and_a_link_to_a_folder_alone(bare: tuple[FakeRoot, RemovalPlan]) -> None:
    root, plan = bare
    root.file("/a/file", "x")
    root.file("/a/tree/y")
    root.link("/a/link", "tree")
    root.link("/a/dangling", "nowhere")
    for _again in range(2):
        for path in ("/a/file", "/a/dangling", "/a/none"):
            plan.remove_file(path)
        for path in ("/a/link", "/a/tree", "/a/none"):
            plan.remove_tree(path)
    assert what(plan, "removed") == ["/a/file", "/a/dangling", "/a/link", "/a/tree"]
    assert [(step.before, step.after) for step in plan.steps] == [
        ("x", ""),
        ("link to nowhere\n", ""),
        ("link to tree\n", ""),
        ("folder\n", ""),
    ]
    assert plan.gone == {"/a/file", "/a/dangling", "/a/link", "/a/tree"}
    plan.apply()
    assert os.listdir(root.at("/a")) == []


def test_a_folder_goes_only_if_nothing_but_what_goes_is_in_it(bare: tuple[FakeRoot, RemovalPlan], monkeypatch: pytest.MonkeyPatch) -> None:
    root, plan = bare
    for path in ("/empty", "/used/b", "/used/a", "/going/x", "/theirs/x", "/mounted"):
        root.at(f"{path}/y")
    root.file("/file")
    root.link("/link", "empty")
    plan.remove_tree("/going/x")
    monkeypatch.setattr(os.path, "ismount", lambda path: path.endswith("/mounted"))
    for _again in range(2):
        for path in ("/empty", "/going", "/file", "/link", "/none"):
            plan.remove_folder_if_empty(path)
    plan.remove_folder_if_empty("/used")
    plan.remove_folder_if_empty("/theirs", ours=False)
    plan.remove_folder_if_empty("/mounted")
    assert what(plan, "removed") == ["/going/x", "/empty", "/going"]
    assert plan.left == [
        {"what": "/used", "why": "it holds what this collection did not put there: a, b"},
        {"what": "/mounted", "why": "it is a mount point"},
    ]
    assert [step.before for step in plan.steps] == ["folder\n"] * 3


def test_staged_files_go_and_their_like_stay(bare: tuple[FakeRoot, RemovalPlan]) -> None:
    root, plan = bare
    for path in ("/b/.gpushare-staged-1", "/a/.gpushare-staged-2", "/a/.gpushare-staged-1", "/a/gpushare-staged-3"):
        root.file(path)
    plan.remove_staged(["/b", "/a", "/a", "/none"])
    assert what(plan, "removed") == ["/a/.gpushare-staged-1", "/a/.gpushare-staged-2", "/b/.gpushare-staged-1"]


def test_the_result_names_every_step_with_its_difference(bare: tuple[FakeRoot, RemovalPlan]) -> None:
    _root, plan = bare
    assert answer_of(plan.result()) == {"stopped": [], "removed": [], "restored": [], "changed": False, "left": [], "notes": [], "diff": []}
    plan.add("stopped", "a", lambda: None, "1", "2")
    plan.add("removed", "b", lambda: None)
    plan.add("restored", "c", lambda: None)
    plan.leave("d", "why")
    plan.notes.append("n")
    empty = {"before": "", "after": ""}
    assert answer_of(plan.result()) == {
        "stopped": ["a"],
        "removed": ["b"],
        "restored": ["c"],
        "changed": True,
        "left": [{"what": "d", "why": "why"}],
        "notes": ["n"],
        "diff": [
            {"before_header": "a", "after_header": "a", "before": "1", "after": "2"},
            {"before_header": "b", "after_header": "b", **empty},
            {"before_header": "c", "after_header": "c", **empty},
        ],
    }
    seen: list[str] = []
    plan.apply(seen.append)
    assert seen == ["before stopped a", "stopped a", "before removed b", "removed b", "before restored c", "restored c"]


@pytest.mark.parametrize(
    ("name", "content", "hidden"),
    [
        ("a.txt", b"words", False),
        ("a.key", b"words", True),
        ("a.token", b"words", True),
        ("a.kubeconfig", b"words", True),
        ("token", b"words", True),
        ("tokens", b"words", False),
        ("a.txt", b"\xff", True),
    ],
)
def test_secrets_and_what_is_no_text_are_shown_by_their_hash(
    tmp_path: Path, name: str, content: bytes, hidden: bool, golden: Golden
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    digest = hashlib.sha256(content).hexdigest()[:16]
    assert shown(f"/etc/{name}", str(path)) == (f"(content with sha256 {digest})\n" if hidden else content.decode())
    path.unlink()
    assert shown(f"/etc/{name}", str(path)) == ""
    path.mkdir()
    golden(shown(f"/etc/{name}", str(path)))


# Files of the journal that others have touched


OWNED = "/etc/default/x"


def journalled(root: FakeRoot, before: str | None, path: str = OWNED) -> Layout:
    if before is not None:
        root.file(path, before)
        root.at(path).chmod(0o600)
    transaction = Transaction("gpushare-extender", str(root))
    transaction.write(path, b"ours")
    transaction.apply()
    return Layout(root=str(root))


def steps(plan: RemovalPlan) -> list[tuple[str, str]]:
    return [(step.kind, step.what) for step in plan.steps]


def test_a_file_of_ours_in_whose_place_is_a_folder_is_left(tmp_path: Path) -> None:
    root = FakeRoot(tmp_path)
    layout = journalled(root, None)
    root.at(OWNED).unlink()
    root.file(f"{OWNED}/theirs")
    plan = plan_services(layout, Systemd(root))
    assert steps(plan) == []
    assert [(one["what"], one["why"].startswith("it is not a regular file (")) for one in plan.left] == [(OWNED, True)]


@pytest.mark.parametrize(
    ("before", "now", "expected", "note", "after"),
    [
        (None, "ours", ("removed", OWNED), "", None),
        (None, "theirs", ("removed", OWNED), "is removed although others have changed it", None),
        (None, None, ("removed", f"journal entry of {OWNED}"), "", None),
        ("before", "ours", ("restored", OWNED), "", "before"),
        ("before", "before", ("removed", f"journal entry of {OWNED}"), "", "before"),
        ("before", None, ("removed", f"journal entry of {OWNED}"), "was there before this collection and is gone now", None),
    ],
)
def test_what_becomes_of_a_file_by_what_it_was_and_is(
    tmp_path: Path, before: str | None, now: str | None, expected: tuple[str, str], note: str, after: str | None
) -> None:
    root = FakeRoot(tmp_path)
    layout = journalled(root, before)
    root.at(OWNED).unlink()
    if now is not None:
        root.file(OWNED, now)
    plan = plan_services(layout, Systemd(root))
    assert (steps(plan), plan.left) == ([expected], [])
    assert [note in one for one in plan.notes] == ([True] if note else [])
    if expected[0] == "restored":
        assert (plan.steps[0].before, plan.steps[0].after) == ("ours", "before")
    inode = root.at(OWNED).stat().st_ino if now is not None else None
    plan.apply()
    found = root.at(OWNED)
    assert (found.read_text() if found.exists() else None) == after
    if expected[0] == "restored":
        assert found.stat().st_mode & 0o777 == 0o600
    if before == now == "before":
        assert found.stat().st_ino == inode, "a file that is as it was is not written"
    assert Journal(str(root)).entries() == []


# Units


class Told(Systemd):
    """With settings of somebody else, or a systemd that rejects something."""

    drop_ins = ""
    rejects = ""

    def __call__(self, argv: list[str]) -> tuple[int, str, str]:
        status, out, err = super().__call__(argv)
        if argv[1] == self.rejects:
            return 1, "", " not today\n"
        ours = argv[2:] and "extender.service" in argv[2]
        return status, out.replace("DropInPaths=", f"DropInPaths={self.drop_ins}") if ours else out, err


def test_settings_of_others_for_a_unit_of_ours_are_named(host: Host) -> None:
    told = Told(host.root)
    told.loaded, told.active = host.systemd.loaded, host.systemd.active
    told.drop_ins = f"{EXTENDER}.d/a.conf /usr/lib/systemd/system/service.d/b.conf /etc/systemd/system/service.d/c.conf"
    plan = plan_services(host.layout, told)
    assert plan.left == [
        {
            "what": f"{EXTENDER}.d/a.conf, /etc/systemd/system/service.d/c.conf",
            "why": "settings of others for a unit of ours; they have no effect any more",
        }
    ]


def test_a_systemd_that_does_not_forget_is_an_error_but_not_that_nothing_had_failed(host: Host, golden: Golden) -> None:
    told = Told(host.root)
    told.loaded, told.active = host.systemd.loaded, host.systemd.active
    told.rejects = "daemon-reload"
    with golden.raised(RemoveError):
        plan_services(host.layout, told).apply()
    host.root.file(EXTENDER, "# Copyright: gpushare.kubernetes contributors\n")
    told.rejects = "reset-failed"
    plan_services(host.layout, told).apply()
    assert ["reset-failed", "gpushare-extender.service"] in told.calls


def test_a_file_elsewhere_with_the_name_of_a_unit_is_no_unit(tmp_path: Path) -> None:
    root = FakeRoot(tmp_path)
    layout = journalled(root, None, "/etc/elsewhere/other.service")
    asked: list[str] = []
    systemd = Systemd(root)

    def run(argv: list[str]) -> tuple[int, str, str]:
        asked.append(argv[2])
        return systemd(argv)

    plan_services(layout, run)
    units = [
        *("gpushare-pki.timer", "gpushare-pki.service", "gpushare-extender.socket", "gpushare-extender-metrics.socket"),
        *("gpushare-extender.service", *DASHBOARD_UNITS, "gpushare-device-plugin-metrics.socket", "gpushare-device-plugin.service"),
        *("gpushare-cdi-refresh.path", "gpushare-cdi-refresh.service"),
    ]
    assert asked == units
    transaction = Transaction("gpushare-more", str(root))
    for name in ("gpushare-more.timer", "gpushare-extender.service", "gpushare-more.conf"):
        transaction.write(f"{UNITS}/{name}", b"[Service]\n", 0o644)
    transaction.apply()
    asked.clear()
    plan_services(layout, run)
    assert asked == [*units, "gpushare-more.timer"]


def test_a_file_that_is_no_unit_comes_back_without_a_word(tmp_path: Path) -> None:
    root = FakeRoot(tmp_path)
    assert plan_services(journalled(root, "before"), Systemd(root)).notes == []
    other = FakeRoot(tmp_path / "other")
    notes = plan_services(journalled(other, "before", f"{UNITS}/x.timer"), Systemd(other)).notes
    assert notes == [f"{UNITS}/x.timer is again as it was before this collection; it is neither enabled nor started"]


def test_only_the_stop_of_the_device_plugin_takes_its_socket(host: Host) -> None:
    plan = host.services()
    assert SOCKET not in what(plan, "removed")
    for step in plan.steps:
        step.do()
        if step.what == "gpushare-extender.service":
            assert host.at(SOCKET).is_socket()
        if step.what == "gpushare-device-plugin.service":
            assert not host.at(SOCKET).exists()
            assert not host.at(FORMER).exists()
            break


def test_the_shared_memory_of_a_gpu_is_unmounted_before_its_folder_goes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root, gpu = FakeRoot(tmp_path), "/run/gpushare-mps/GPU-a"
    root.file(f"{gpu}/shm/x", "")
    root.file("/run/gpushare-mps/GPU-b/state.json", "")
    mounted, systemd = {str(root.at(f"{gpu}/shm"))}, Systemd(root)
    monkeypatch.setattr(os.path, "ismount", lambda path: path in mounted)

    def run(argv: list[str]) -> tuple[int, str, str]:
        if argv[0] != "umount":
            return systemd(argv)
        mounted.remove(argv[1])
        return 0, "", ""

    plan = plan_services(Layout(root=str(root)), run)
    assert what(plan, "removed") == [f"the mount of {gpu}/shm", "/run/gpushare-mps"]
    plan.apply()
    assert (mounted, root.at("/run/gpushare-mps").exists()) == (set(), False)
    assert plan_services(Layout(root=str(root)), run).steps == []

    root.file(f"{gpu}/shm/x", "")
    mounted.add(str(root.at(f"{gpu}/shm")))
    with pytest.raises(RemoveError, match="failed with exit status 32: target is busy; unmount it, and run again"):
        plan_services(Layout(root=str(root)), lambda argv: (32, "", "target is busy") if argv[0] == "umount" else systemd(argv)).apply()


def test_what_belongs_to_others_in_the_journal_does_not_keep_it_in_check_mode(host: Host) -> None:
    """The roles of the scheduler and of the container runtime look at their files themselves."""
    host.root.file("/etc/containerd/config.toml", "before")
    transaction = Transaction("container_runtime", str(host.root))
    transaction.write("/etc/containerd/config.toml", b"version = 2\n")
    transaction.apply()
    host.root.file("/etc/containerd/config.toml", "theirs")
    assert "/var/lib/gpushare/journal" in what(host.leftovers(check=True), "removed")


def with_dashboard(folder: Path) -> Host:
    """The same host after the role dashboard."""
    host = Host(folder)
    transaction = Transaction("gpushare-dashboard", str(host.root))
    for path in (
        "dashboard.kubeconfig",
        "dashboard.token",
        "dashboard-viewer.token",
        "gpushare-dashboard.env",
        "gpushare-dashboard-pki.env",
    ):
        transaction.write(f"/etc/gpushare/{path}", b"x\n", 0o600)
    for name in DASHBOARD_UNITS:
        transaction.write(f"{UNITS}/{name}", b"# Copyright: gpushare.kubernetes contributors\n[Service]\n", 0o644)
    transaction.apply()
    for name in DASHBOARD_UNITS:
        if not name.endswith("pki.service"):
            host.systemd.start(name)
    for path in ("dashboard-pki/ca.crt", "dashboard-pki/ca.key", "dashboard-pki/dashboard.crt", "dashboard-pki/.dashboard.key.new"):
        host.root.file(f"/etc/gpushare/{path}", "ours")
    host.root.file("/var/lib/private/gpushare-dashboard/token", "ours")
    host.root.link("/var/lib/gpushare-dashboard", "private/gpushare-dashboard")
    host.root.file("/var/lib/systemd/timers/stamp-gpushare-dashboard-pki.timer", "")
    return host


DASHBOARD_UNITS = (
    "gpushare-dashboard-pki.timer",
    "gpushare-dashboard-pki.service",
    "gpushare-dashboard.socket",
    "gpushare-dashboard.service",
)


def test_the_dashboard_goes_alone(tmp_path: Path) -> None:
    without = Host(tmp_path / "a").tree()
    host = with_dashboard(tmp_path / "b")
    plan = plan_services(host.layout, host.systemd, [DASHBOARD])
    plan.apply()
    assert host.tree() == without
    assert plan.left == []
    assert plan.result().stopped == ["gpushare-dashboard-pki.timer", "gpushare-dashboard.socket", "gpushare-dashboard.service"]
    assert {name for name, state in host.systemd.active.items() if state == "active"} == {
        "gpushare-pki.timer",
        "gpushare-extender.socket",
        "gpushare-extender.service",
        "gpushare-device-plugin.service",
    }
    assert not plan_services(host.layout, host.systemd, [DASHBOARD]).result().changed


def test_the_control_daemons_of_mps_go_alone(host: Host) -> None:
    before, units = host.tree(), [f"gpushare-mps-GPU-{number}.service" for number in range(2)]
    transaction = Transaction("mps", str(host.root))
    for unit in units:
        transaction.write(f"{UNITS}/{unit}", b"# Copyright: gpushare.kubernetes contributors\n[Service]\n", 0o644)
    transaction.write("/etc/gpushare/gpushare-mps-GPU-0.env", b"x\n")
    transaction.apply()
    for unit in units:
        host.systemd.start(unit)
    # The journal does not have the second one any more.
    Journal(str(host.root)).forget(f"{UNITS}/{units[1]}")
    host.root.file("/run/gpushare-mps/GPU-0/state.json", "")
    host.root.file("/var/lib/gpushare-mps/log", "")
    plan = plan_services(host.layout, host.systemd, ["gpushare-mps"])
    plan.apply()
    assert what(plan, "stopped") == units
    host.at("/run").rmdir()
    assert host.tree() == before


def test_uninstall_takes_the_dashboard_too(tmp_path: Path) -> None:
    host = with_dashboard(tmp_path)
    plan_services(host.layout, host.systemd).apply()
    plan_leftovers(host.layout, False).apply()
    assert host.tree() == host.before


def test_a_dashboard_of_somebody_else_stays(tmp_path: Path) -> None:
    host = Host(tmp_path)
    host.root.file(f"{UNITS}/gpushare-dashboard.service", "[Service]\nExecStart=/theirs\n")
    host.root.file("/var/lib/gpushare-dashboard/x", "theirs")
    host.systemd.start("gpushare-dashboard.service")
    before = host.tree()
    plan = plan_services(host.layout, host.systemd, [DASHBOARD])
    plan.apply()
    assert host.tree() == before
    assert [one["what"] for one in plan.left] == [f"{UNITS}/gpushare-dashboard.service"]
