# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What is done to a host beside its packages, killed anywhere and again; and what is taken back. The host is a folder, its programs are
recorded."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.journal import Journal
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.transaction import TransactionError
from ansible_collections.gpushare.kubernetes.plugins.module_utils._driver.apply import (
    DriverError,
    WantedDriver,
    absent,
    present,
    reboot_reason,
)
from ansible_collections.gpushare.kubernetes.plugins.module_utils._driver.options import MODULES_FILE, OPTIONS_FILE
from ansible_collections.gpushare.kubernetes.plugins.module_utils._driver.plan import BLACKLIST_FILE
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts.driver import Driver
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.command import Outcome

from unit.fakes.plugins.fake_root import FakeRoot, debian

RELEASE, VERSION = "6.1.0-30-amd64", "535.261.03"
INITRAMFS = ("update-initramfs", "-u", "-k", "all")
UNIT = "nvidia-persistenced.service"


class Machine:
    """A host whose commands are recorded. answers: first words of a command to what happens."""

    def __init__(self, folder: Path) -> None:
        self.root = debian(FakeRoot(folder))
        self.root.program("/usr/sbin/update-initramfs")
        self.calls: list[str] = []
        self.answers: dict[str, Callable[[list[str]], Outcome]] = {}
        self.enabled: dict[str, bool] = {UNIT: False}
        self.active: set[str] = set()

    def run(self, argv: list[str], _timeout: float) -> Outcome:
        line = " ".join(argv)
        if argv[:2] == ["systemctl", "show"]:
            known = argv[2] in self.enabled
            state = "enabled" if self.enabled.get(argv[2]) else "disabled"
            active = "active" if argv[2] in self.active else "inactive"
            return Outcome(argv, 0, f"LoadState={'loaded' if known else 'not-found'}\nUnitFileState={state}\nActiveState={active}\n")
        self.calls.append(line)
        for start, answer in self.answers.items():
            if line.startswith(start):
                return answer(argv)
        if argv[:2] == ["systemctl", "enable"]:
            self.enabled[argv[2]] = True
        if argv[:2] == ["systemctl", "start"]:
            self.active.add(argv[2])
        if argv[:2] == ["systemctl", "disable"]:
            self.enabled[argv[-1]] = False
        return Outcome(argv, 0)

    def module(self, version: str = VERSION) -> None:
        """The packages have built it."""
        self.root.file(f"/lib/modules/{RELEASE}/modules.dep", "updates/dkms/nvidia.ko:\n")
        self.root.file(f"/lib/modules/{RELEASE}/updates/dkms/nvidia.ko", b"\0license=NVIDIA\0version=" + version.encode() + b"\0")

    def user_space(self, version: str) -> None:
        """The library and nvidia-smi."""
        self.root.file(f"/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.{version}")
        self.root.at("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1").unlink(missing_ok=True)
        self.root.link("/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", f"libnvidia-ml.so.{version}")
        self.root.program("/usr/bin/nvidia-smi")

    def loads(self, argv: list[str]) -> Outcome:
        self.root.file("/proc/driver/nvidia/version", f"NVRM version: NVIDIA UNIX x86_64 Kernel Module  {VERSION}  Wed\n")
        return Outcome(argv, 0)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    made = Machine(tmp_path)
    made.module()
    made.answers["modprobe"] = made.loads
    return made


WANTED = WantedDriver(VERSION, "proprietary", True, INITRAMFS, (), (UNIT,))


def test_a_new_host_and_a_second_run(machine: Machine) -> None:
    first = present(WANTED, machine.run, False, str(machine.root))
    assert first.changed
    assert first.files == [BLACKLIST_FILE]
    assert machine.calls == ["update-initramfs -u -k all", "modprobe nvidia", f"systemctl enable {UNIT}", f"systemctl start {UNIT}"]
    assert first.steps == [
        f"write {BLACKLIST_FILE}",
        "rebuild the initramfs (update-initramfs -u -k all)",
        "load the kernel module",
        f"enable {UNIT}",
    ]
    assert "blacklist nouveau" in machine.root.at(BLACKLIST_FILE).read_text()
    assert machine.root.at(BLACKLIST_FILE).stat().st_mode & 0o777 == 0o644
    assert first.reboot == ""
    machine.calls.clear()
    second = present(WANTED, machine.run, False, str(machine.root))
    assert (second.changed, machine.calls) == (False, [])
    # What once was written is kept as it was, also where a later plan does not ask for it.
    machine.root.at(BLACKLIST_FILE).write_text("")
    assert present(WantedDriver(VERSION, "", False, INITRAMFS), machine.run, False, str(machine.root)).files == [BLACKLIST_FILE]
    assert "blacklist nouveau" in machine.root.at(BLACKLIST_FILE).read_text()


def test_nouveau_is_blacklisted_unless_the_plan_says_otherwise(machine: Machine) -> None:
    assert present(WantedDriver(VERSION, initramfs=INITRAMFS), machine.run, True, str(machine.root)).files == [BLACKLIST_FILE]


@pytest.mark.parametrize(
    ("enabled", "active", "loaded", "steps", "calls"),
    [
        (True, True, True, [], []),
        (True, True, False, [], []),
        (False, True, True, ["enable"], ["enable"]),
        (True, False, True, ["start"], ["start"]),
        (False, False, True, ["enable"], ["enable", "start"]),
        # Without a kernel module it would fail; after the reboot systemd starts it.
        (True, False, False, [], []),
        (False, False, False, ["enable"], ["enable"]),
    ],
)
def test_a_service_is_enabled_and_started_where_it_is_not(
    machine: Machine, enabled: bool, active: bool, loaded: bool, steps: list[str], calls: list[str]
) -> None:
    machine.enabled[UNIT] = enabled
    machine.active = {UNIT} if active else set()
    if loaded:
        machine.loads([])
    else:
        # Of another version than wanted, which is not loaded.
        machine.module("525.147.05")
    wanted = WantedDriver(VERSION, blacklist=False, services=(UNIT,))
    for dry in (True, False):
        found = present(wanted, machine.run, dry, str(machine.root))
        assert (found.steps, found.changed) == ([f"{verb} {UNIT}" for verb in steps], bool(steps))
    assert machine.calls == [f"systemctl {verb} {UNIT}" for verb in calls]
    absent(machine.run, False, str(machine.root))
    assert (machine.enabled[UNIT], Journal(str(machine.root)).entries()) == (enabled, [])


def test_check_mode_says_what_the_run_then_does(machine: Machine) -> None:
    dry = present(WANTED, machine.run, True, str(machine.root))
    assert machine.calls == []
    assert not machine.root.at(BLACKLIST_FILE).exists()
    real = present(WANTED, machine.run, False, str(machine.root))
    assert dry.steps[:3] == real.steps[:3]
    assert dry.files == real.files


def test_the_initramfs_is_rebuilt_only_if_the_file_changed(machine: Machine) -> None:
    present(WantedDriver(VERSION, blacklist=False, initramfs=INITRAMFS), machine.run, False, str(machine.root))
    assert machine.calls == ["modprobe nvidia"]


def test_a_host_without_the_tool_has_no_initramfs(machine: Machine) -> None:
    machine.root.at("/usr/sbin/update-initramfs").unlink()
    present(WANTED, machine.run, False, str(machine.root))
    assert "update-initramfs -u -k all" not in machine.calls


def test_an_initramfs_that_cannot_be_rebuilt_puts_the_file_back(machine: Machine) -> None:
    machine.answers["update-initramfs"] = lambda argv: Outcome(argv, 1, err="No space left on device")
    with pytest.raises(TransactionError, match="No space left on device"):
        present(WANTED, machine.run, False, str(machine.root))
    assert not machine.root.at(BLACKLIST_FILE).exists()
    assert Journal(str(machine.root)).entries() == []


class Killed(BaseException):
    pass


def test_a_killed_run_is_finished_by_one_that_asks_for_no_blacklist(machine: Machine) -> None:
    def kill(here: str) -> None:
        if here == f"noted {BLACKLIST_FILE}":
            raise Killed

    with pytest.raises(Killed):
        present(WANTED, machine.run, False, str(machine.root), kill)
    present(WantedDriver(VERSION, "", False, INITRAMFS), machine.run, False, str(machine.root))
    assert machine.calls[0] == "update-initramfs -u -k all"
    assert machine.root.at(BLACKLIST_FILE).exists()
    assert not present(WantedDriver(VERSION, "", False, INITRAMFS), machine.run, True, str(machine.root)).changed


@pytest.mark.parametrize("point", [f"before {BLACKLIST_FILE}", f"noted {BLACKLIST_FILE}", f"written {BLACKLIST_FILE}", "restarted"])
def test_killed_anywhere_the_next_run_finishes(machine: Machine, point: str) -> None:
    def kill(here: str) -> None:
        if here == point:
            raise Killed

    with pytest.raises(Killed):
        present(WANTED, machine.run, False, str(machine.root), kill)
    machine.calls.clear()
    present(WANTED, machine.run, False, str(machine.root))
    assert machine.root.at(BLACKLIST_FILE).exists()
    assert machine.calls[0] == "update-initramfs -u -k all"
    absent(machine.run, False, str(machine.root))
    assert not machine.root.at(BLACKLIST_FILE).exists()
    assert Journal(str(machine.root)).entries() == []


def test_a_module_that_does_not_load_is_an_error_with_its_words(machine: Machine) -> None:
    machine.answers["modprobe"] = lambda argv: Outcome(
        argv, 1, err="modprobe: ERROR: could not insert 'nvidia': Key was rejected by service"
    )
    with pytest.raises(DriverError, match="Key was rejected by service"):
        present(WANTED, machine.run, False, str(machine.root))


@pytest.mark.parametrize(
    ("path", "content", "why"),
    [
        ("/sys/module/nouveau/x", "", "nouveau is loaded"),
        (
            "/proc/driver/nvidia/version",
            "NVRM version: NVIDIA UNIX x86_64 Kernel Module  525.147.05  x\n",
            "525.147.05 is loaded, 535.261.03",
        ),
    ],
)
def test_when_the_host_must_reboot(machine: Machine, path: str, content: str, why: str) -> None:
    machine.root.file(path, content)
    found = present(WANTED, machine.run, False, str(machine.root))
    assert why in found.reboot
    assert "modprobe nvidia" not in machine.calls


def test_another_kind_of_module_needs_a_reboot() -> None:
    parts = Driver("580.1", "580.1", "/x", "580.1", "/y", "/z", False, kind="proprietary")
    assert "the proprietary kernel module is loaded" in reboot_reason(parts, "580.1", "open")
    assert reboot_reason(parts, "580.1", "proprietary") == reboot_reason(parts, "580.1") == ""
    # What cannot be told, and what is not loaded yet, needs none.
    assert reboot_reason(replace(parts, kind=None), "580.1", "open") == ""
    assert reboot_reason(replace(parts, loaded=None), "580.1", "open") == ""
    assert reboot_reason(replace(parts, loaded=None), "590.1") == ""


def test_a_unit_that_there_is_not_is_noted(machine: Machine) -> None:
    wanted = WantedDriver(VERSION, blacklist=False, services=("nvidia-fabricmanager.service",))
    # Before the packages are there it is no news.
    assert present(wanted, machine.run, True, str(machine.root)).notes == []
    found = present(wanted, machine.run, False, str(machine.root))
    assert found.notes == ["systemd has no unit nvidia-fabricmanager.service, so that it was not enabled"]


def test_a_service_that_was_enabled_before_stays_so(machine: Machine) -> None:
    machine.enabled[UNIT] = True
    present(WANTED, machine.run, False, str(machine.root))
    machine.calls.clear()
    absent(machine.run, False, str(machine.root))
    assert machine.calls == ["update-initramfs -u -k all"]
    assert machine.enabled[UNIT]


def test_absent_takes_back_what_was_done_and_no_more(machine: Machine) -> None:
    machine.root.file("/etc/modprobe.d/other.conf", "options x\n")
    present(WANTED, machine.run, False, str(machine.root))
    machine.calls.clear()
    # Of somebody else, and of nobody.
    machine.root.file("/etc/other", "x")
    for other in ("/etc/other", "service:other.path"):
        Journal(str(machine.root)).record(other, "other", None, b"x")
    machine.root.program("/usr/bin/nvidia-uninstall")
    machine.root.link("/proc/77/fd/5", "/dev/nvidia-uvm")
    predicted = absent(machine.run, True, str(machine.root))
    assert predicted.changed
    assert machine.calls == []
    found = absent(machine.run, False, str(machine.root))
    assert found.steps == predicted.steps
    assert found.steps == [f"disable {UNIT}", f"remove {BLACKLIST_FILE}", "rebuild the initramfs (update-initramfs -u -k all)"]
    assert sorted(entry.path for entry in Journal(str(machine.root)).entries()) == ["/etc/other", "service:other.path"]
    assert machine.root.at("/etc/other").exists()
    assert sorted(machine.calls) == [f"systemctl disable --now {UNIT}", "update-initramfs -u -k all"]
    assert "stays loaded until then" in found.reboot
    assert not machine.root.at(BLACKLIST_FILE).exists()
    assert machine.root.at("/etc/modprobe.d/other.conf").exists()
    again = absent(machine.run, False, str(machine.root))
    assert (again.changed, again.reboot) == (False, "")


def test_a_host_without_a_loaded_driver_need_not_reboot_without_one(machine: Machine) -> None:
    machine.module("525.147.05")
    present(WANTED, machine.run, False, str(machine.root))
    found = absent(machine.run, False, str(machine.root))
    assert (found.changed, found.reboot) == (True, "")


@pytest.mark.parametrize(
    ("programs", "calls"),
    [(("dracut",), ["dracut --force --regenerate-all"]), (("dracut", "update-initramfs"), ["update-initramfs -u -k all"]), ((), [])],
)
def test_the_initramfs_is_rebuilt_with_the_tool_of_the_host(machine: Machine, programs: tuple[str, ...], calls: list[str]) -> None:
    present(WantedDriver(VERSION, initramfs=INITRAMFS), machine.run, False, str(machine.root))
    machine.root.at("/usr/sbin/update-initramfs").unlink()
    for name in programs:
        machine.root.program(f"/usr/sbin/{name}")
    machine.calls.clear()
    absent(machine.run, False, str(machine.root))
    assert machine.calls == calls


RUN_FILE = "/root/NVIDIA-Linux-x86_64-550.163.01.run"


@pytest.fixture
def installer(machine: Machine) -> Machine:
    machine.root.file(RUN_FILE, "#!/bin/sh\n")
    machine.root.at(RUN_FILE).chmod(0o600)
    return machine


def run_file(machine: Machine) -> WantedDriver:
    return WantedDriver("550.163.01", "proprietary", False, INITRAMFS, (RUN_FILE, "--silent"))


def installs(installer: Machine, status: int = 0) -> Callable[[list[str]], Outcome]:
    """What the installer does."""

    def install(argv: list[str]) -> Outcome:
        installer.module("550.163.01")
        installer.user_space("550.163.01")
        installer.root.program("/usr/bin/nvidia-uninstall")
        return Outcome(argv, status)

    return install


def test_a_run_file_is_run_once(installer: Machine) -> None:
    installer.answers["sh"] = installs(installer)
    assert present(run_file(installer), installer.run, True, str(installer.root)).steps[0] == f"run {RUN_FILE}"
    assert installer.calls == []
    assert Journal(str(installer.root)).entries() == []
    present(run_file(installer), installer.run, False, str(installer.root))
    assert installer.calls[0] == f"sh {installer.root}{RUN_FILE} --silent"
    installer.calls.clear()
    present(run_file(installer), installer.run, False, str(installer.root))
    assert installer.calls == []
    predicted = absent(installer.run, True, str(installer.root))
    assert installer.calls == []
    assert absent(installer.run, False, str(installer.root)).steps == predicted.steps == ["run /usr/bin/nvidia-uninstall --silent"]
    assert installer.calls == ["/usr/bin/nvidia-uninstall --silent"]
    assert not absent(installer.run, False, str(installer.root)).changed


def test_killed_after_the_installer_it_is_not_run_again(installer: Machine) -> None:
    def kill(here: str) -> None:
        if here == "installed":
            raise Killed

    installer.answers["sh"] = installs(installer)
    with pytest.raises(Killed):
        present(run_file(installer), installer.run, False, str(installer.root), kill)
    installer.calls.clear()
    present(run_file(installer), installer.run, False, str(installer.root))
    assert installer.calls == ["modprobe nvidia"]


def test_an_installer_that_fails_is_not_believed_although_all_is_there(installer: Machine) -> None:
    installer.answers["sh"] = installs(installer, 1)
    with pytest.raises(DriverError, match=r"550\.163\.01 library and nvidia-smi on disk now"):
        present(run_file(installer), installer.run, False, str(installer.root))


def test_of_a_long_log_of_the_installer_the_end_is_shown(installer: Machine) -> None:
    installer.root.file("/var/log/gpushare-nvidia-installer.log", "".join(f"-> {number}.\n" for number in range(20)))
    with pytest.raises(DriverError, match=r"ends with: -> 8\. .*-> 19\."):
        present(run_file(installer), installer.run, False, str(installer.root))


def test_a_driver_that_somebody_else_uninstalled_is_said(installer: Machine) -> None:
    installer.answers["sh"] = installs(installer)
    present(run_file(installer), installer.run, False, str(installer.root))
    installer.root.at("/usr/bin/nvidia-uninstall").unlink()
    installer.calls.clear()
    found = absent(installer.run, False, str(installer.root))
    assert (len(found.notes), found.steps, installer.calls) == (1, [], [])
    assert Journal(str(installer.root)).entries() == []


def test_a_driver_of_a_run_file_that_computes_keeps_all_that_it_needs(installer: Machine) -> None:
    installer.answers["sh"] = installs(installer)
    present(WantedDriver("550.163.01", "", True, INITRAMFS, (RUN_FILE,)), installer.run, False, str(installer.root))
    installer.root.link("/proc/77/fd/5", "/dev/nvidia-uvm")
    with pytest.raises(DriverError, match="processes use the GPUs"):
        absent(installer.run, False, str(installer.root))
    assert installer.root.at(BLACKLIST_FILE).exists()


def test_a_run_file_is_a_file_of_root(installer: Machine) -> None:
    if os.geteuid() == 0:
        os.chown(installer.root.at(RUN_FILE), 65534, 65534)
        with pytest.raises(DriverError, match=f"others than root may write the file {RUN_FILE}"):
            present(run_file(installer), installer.run, False, str(installer.root))
    installer.root.at(RUN_FILE).unlink()
    installer.root.at(RUN_FILE).mkdir(mode=0o700)
    with pytest.raises(DriverError, match="which is not a file"):
        present(run_file(installer), installer.run, False, str(installer.root))
    assert installer.calls == []


def test_the_driver_of_a_run_file_is_not_uninstalled_while_a_process_computes(installer: Machine) -> None:
    installer.answers["sh"] = lambda argv: Outcome(argv, 1)
    with pytest.raises(DriverError):
        present(run_file(installer), installer.run, False, str(installer.root))
    installer.root.program("/usr/bin/nvidia-uninstall")
    installer.root.link("/proc/77/fd/5", "/dev/nvidia-uvm")
    installer.calls.clear()
    with pytest.raises(DriverError, match=r"processes use the GPUs \(77\); nothing was changed"):
        absent(installer.run, False, str(installer.root))
    assert installer.calls == []
    installer.root.at("/proc/77/fd/5").unlink()
    absent(installer.run, False, str(installer.root))
    assert installer.calls == ["/usr/bin/nvidia-uninstall --silent"]


@pytest.mark.parametrize("status", [0, 1])
def test_a_run_file_that_fails_half_way_says_what_the_host_has_and_what_its_log_says(installer: Machine, status: int) -> None:
    installer.root.file("/var/log/gpushare-nvidia-installer.log", "-> Building\nERROR: Failed to build the kernel module: cc1 missing\n")
    installer.answers["sh"] = lambda argv: Outcome(argv, status)
    words = r"the host has 535\.261\.03 kernel module, no library and no nvidia-smi on disk now, expected 550\.163\.01.*cc1 missing"
    with pytest.raises(DriverError, match=words):
        present(run_file(installer), installer.run, False, str(installer.root))


@pytest.mark.parametrize("part", ["library", "older library", "nvidia-smi", "module"])
def test_a_run_file_that_was_killed_half_way_is_run_again(installer: Machine, part: str) -> None:
    def install(argv: list[str]) -> Outcome:
        installer.module("550.163.01")
        installer.user_space("550.163.01")
        return Outcome(argv, 0)

    install([])
    if part == "older library":
        installer.user_space("535.261.03")
    paths = {
        "library": "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1",
        "nvidia-smi": "/usr/bin/nvidia-smi",
        "module": f"/lib/modules/{RELEASE}/updates/dkms/nvidia.ko",
    }
    if part in paths:
        installer.root.at(paths[part]).unlink()
    installer.answers["sh"] = install
    assert present(run_file(installer), installer.run, False, str(installer.root)).steps[0] == f"run {RUN_FILE}"
    installer.calls.clear()
    present(run_file(installer), installer.run, False, str(installer.root))
    assert installer.calls == []


def test_a_run_file_that_hangs(installer: Machine) -> None:
    installer.answers["sh"] = lambda argv: Outcome(argv, None, timed_out=1800)
    with pytest.raises(DriverError, match="no end within 1800 s"):
        present(run_file(installer), installer.run, False, str(installer.root))


@pytest.mark.parametrize("mode", [0o620, 0o602, 0o666])
def test_a_run_file_that_others_may_write_is_not_run(installer: Machine, mode: int) -> None:
    installer.root.at(RUN_FILE).chmod(mode)
    with pytest.raises(DriverError, match=f"others than root may write the file {RUN_FILE}"):
        present(run_file(installer), installer.run, False, str(installer.root))
    assert installer.calls == []


@pytest.mark.parametrize(("mode", "runs"), [(0o777, False), (0o775, False), (0o1777, True), (0o755, True)])
def test_a_run_file_that_others_may_replace_is_not_run(installer: Machine, mode: int, runs: bool) -> None:
    installer.root.at(RUN_FILE).parent.chmod(mode)
    with pytest.raises(DriverError, match="others than root may write the folder /root" if not runs else "NVIDIA's installer"):
        present(run_file(installer), installer.run, False, str(installer.root))
    assert bool(installer.calls) is runs


def test_a_run_file_is_run_by_the_path_that_was_checked(installer: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever owns the folder of a link changes the link between the check and the run."""
    link, evil = "/home/user/driver.run", "/home/user/evil"
    installer.root.link(link, RUN_FILE)
    record = Journal.record

    def swap(journal: Journal, *entry: Any) -> None:
        installer.root.at(link).unlink()
        installer.root.link(link, evil)
        record(journal, *entry)

    monkeypatch.setattr(Journal, "record", swap)
    said: list[list[str]] = []

    def run(argv: list[str]) -> Outcome:
        said.append(argv)
        return installs(installer)(argv)

    installer.answers["sh"] = run
    present(replace(run_file(installer), run_file=(link, "--silent")), installer.run, False, str(installer.root))
    assert said[0][:2] == ["sh", str(installer.root.at(RUN_FILE))]


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder to somebody else")
def test_a_folder_in_which_only_owners_move_files_is_its_owners(installer: Machine) -> None:
    folder = installer.root.at(RUN_FILE).parent
    folder.chmod(0o1755)
    os.chown(folder, 65534, 65534)
    with pytest.raises(DriverError, match="others than root may write the folder /root"):
        present(run_file(installer), installer.run, False, str(installer.root))
    assert installer.calls == []


def test_a_run_file_that_there_is_not(installer: Machine) -> None:
    installer.root.at(RUN_FILE).unlink()
    with pytest.raises(DriverError, match="cannot be read"):
        present(run_file(installer), installer.run, False, str(installer.root))


def test_options_and_modules_of_the_kernel_come_stay_and_go(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.module()
    machine.answers["modprobe nvidia"] = machine.loads
    root = str(machine.root)
    wanted = WantedDriver(VERSION, blacklist=False, initramfs=INITRAMFS, options=("nvidia NVreg_X=1",), modules=("ib_umad",))
    dry = present(wanted, machine.run, True, root)
    done = present(wanted, machine.run, False, root)
    assert dry.files == done.files == [OPTIONS_FILE, MODULES_FILE]
    assert "load the kernel module ib_umad" in dry.steps
    assert machine.root.at(OPTIONS_FILE).read_text().splitlines()[1:] == ["options nvidia NVreg_X=1"]
    assert machine.root.at(MODULES_FILE).read_text().splitlines()[1:] == ["ib_umad"]
    # The options are there when the driver is loaded, and in the initramfs.
    assert machine.calls == [" ".join(INITRAMFS), "modprobe ib_umad", "modprobe nvidia"]
    machine.root.file("/sys/module/ib_umad/x")
    assert not present(wanted, machine.run, False, root).changed
    # Without NVLink 5 the file of modules goes, and no initramfs is rebuilt.
    machine.calls.clear()
    less = replace(wanted, modules=())
    assert present(less, machine.run, False, root).steps == [f"remove {MODULES_FILE}"]
    assert (machine.calls, machine.root.at(MODULES_FILE).exists()) == ([], False)
    assert not present(less, machine.run, False, root).changed
    assert absent(machine.run, False, root).files == [OPTIONS_FILE]
    assert not machine.root.at(OPTIONS_FILE).exists()


def test_a_file_of_before_us_that_is_no_longer_wanted_comes_back_or_stays(machine: Machine) -> None:
    root, less = str(machine.root), WantedDriver(VERSION, blacklist=False, initramfs=INITRAMFS)
    machine.root.file(OPTIONS_FILE, "options nvidia NVreg_Y=1\n")
    present(replace(less, options=("nvidia NVreg_X=1",)), machine.run, False, root)
    done = present(less, machine.run, False, root)
    assert done.steps[0] == f"change {OPTIONS_FILE}"
    assert machine.root.at(OPTIONS_FILE).read_text() == "options nvidia NVreg_Y=1\n"
    assert Journal(root).entry(OPTIONS_FILE) is None
    # One that others have changed is theirs, with what the journal has of it.
    present(replace(less, options=("nvidia NVreg_X=1",)), machine.run, False, root)
    machine.root.file(OPTIONS_FILE, "options nvidia NVreg_Z=1\n")
    done = present(less, machine.run, False, root)
    assert (done.changed, [note.split(":")[0] for note in done.notes]) == (False, [f"{OPTIONS_FILE} stays"])
    assert Journal(root).entry(OPTIONS_FILE) is not None
    # One that is gone is noted once.
    machine.root.at(OPTIONS_FILE).unlink()
    assert [len(present(less, machine.run, False, root).notes) for _again in range(2)] == [1, 0]


def test_an_option_that_the_loaded_module_lacks_needs_a_reboot() -> None:
    parts = Driver("580.1", "580.1", "/x", "580.1", "/y", "/z", False, options={"X": "0"})
    assert reboot_reason(parts, "580.1", "", ("nvidia NVreg_X=1",)) == "the loaded kernel module has X='0', '1' is configured"
    assert reboot_reason(parts, "580.1", "", ("nvidia NVreg_X=0",)) == ""
    assert reboot_reason(replace(parts, loaded=None), "580.1", "", ("nvidia NVreg_X=1",)) == ""
