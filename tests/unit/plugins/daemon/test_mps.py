# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A control daemon for each GPU, one for none that is gone, and nothing changes under pods."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change import journal
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.engine import converge
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.transaction import TransactionError
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.undo import Rejected
from ansible_collections.gpushare.kubernetes.plugins.module_utils._daemon.mps import MpsDaemons, Place, present

from unit.fakes.plugins.daemon.fake_systemd import Systemd

A, B = "GPU-aaaaaaaa-0000-0000-0000-000000000000", "GPU-bbbbbbbb-0000-0000-0000-000000000000"
UNIT = "[Unit]\nDescription=@gpu@\n\n[Service]\nExecStart=/opt/gpushare/{}/bin/gpushare-mps @gpu@\n"


class Host:
    """A host's systemd with any number of services."""

    def __init__(self, folder: Path) -> None:
        self.place = Place(str(folder), str(folder), str(folder.parent / "run"))
        self.umount: Callable[[list[str]], tuple[int, str, str]] | None = None
        self.folder, self.services, self.starts, self._pids = folder, {}, True, 0
        self.holders: list[str] = []

    def of(self, unit: str) -> Systemd:
        if unit not in self.services:
            made = Systemd(self.folder)
            made.path, made.settings = self.folder / unit, self.folder / unit.replace(".service", ".env")
            self.services[unit] = made
        self.services[unit].starts = self.starts
        return self.services[unit]

    def __call__(self, argv: list[str]) -> tuple[int, str, str]:
        if argv[0] == "umount":
            assert self.umount
            return self.umount(argv)
        units = [word for word in argv if word.endswith(".service")]
        if not units:
            for service in self.services.values():
                service(argv)
            return 0, "", ""
        status, out, err = self.of(units[0])(argv)
        # Each has a process of its own.
        return status, out.replace("MainPID=42", f"MainPID={list(self.services).index(units[0]) + 1}"), err

    def environ(self, pid: str) -> bytes:
        return list(self.services.values())[int(pid) - 1].environ("42") if pid != "0" else b""

    def converge(self, *gpus: str, release: str = "1") -> tuple[bool, Sequence[str]]:
        subject = MpsDaemons(gpus, UNIT.format(release), self.holders, self, self.environ, 0, self.place)
        done = converge(subject, False, False)
        return done.changed, tuple(os.path.basename(path) for path in done.left)

    @property
    def running(self) -> dict[str, str]:
        """GPU to the release that its service runs."""
        found = {}
        for name, service in self.services.items():
            if service.running is not None:
                found[name[13:-8]] = re.search(r"/opt/gpushare/(\w+)/", service.running)[1]  # type: ignore[index]
        return found

    def calls(self) -> list[str]:
        return [call for service in self.services.values() for call in service.calls]


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.setattr(journal, "FOLDER", str(tmp_path / "journal"))
    (tmp_path / "units").mkdir()
    return Host(tmp_path / "units")


def test_each_gpu_gets_a_daemon_and_the_next_run_changes_nothing(host: Host) -> None:
    assert host.converge(A, B) == (True, ())
    assert host.running == {A: "1", B: "1"}
    assert present(host.place) == [A, B]
    calls = len(host.calls())
    assert host.converge(A, B) == (False, ())
    assert len(host.calls()) == calls


def test_a_gpu_that_is_gone_loses_its_daemon_and_none_is_left_at_last(host: Host) -> None:
    host.converge(A, B)
    assert host.converge(A) == (True, ())
    assert host.running == {A: "1"}
    assert present(host.place) == [A]
    assert host.converge() == (True, ())
    assert (host.running, present(host.place)) == ({}, [])
    assert not any(service.enabled for service in host.services.values())


@pytest.mark.parametrize(
    ("before", "after", "found"),
    [((), (A,), "1 GPUs without MPS"), ((A,), (), "1 GPUs with MPS"), ((A,), (B,), "1 GPUs without MPS and 1 GPUs with MPS")],
)
def test_under_pods_no_gpu_gets_or_loses_mps(host: Host, before: Sequence[str], after: Sequence[str], found: str) -> None:
    host.converge(*before)
    host.holders = ["u1", "u2", "u3", "u4"]
    with pytest.raises(
        Rejected, match=rf"found {found} that gpushare_isolation changes, and 4 pods with GPUs \(UID u1, u2, u3 and 1 more\)"
    ):
        host.converge(*after)
    assert sorted(host.running) == sorted(before)


def test_one_that_does_not_start_at_boot_will_and_goes_on_meanwhile(host: Host) -> None:
    host.converge(A)
    service = host.of(f"gpushare-mps-{A}.service")
    service.enabled, calls = False, len(host.calls())
    assert host.converge(A) == (True, ())
    assert (service.enabled, host.calls()[calls:]) == (True, ["enable"])


def test_a_new_release_waits_for_pods_and_comes_without_them(host: Host) -> None:
    host.converge(A, B)
    host.holders = ["u1"]
    waiting = (f"gpushare-mps-{A}.service", f"gpushare-mps-{B}.service")
    assert host.converge(A, B, release="2") == (False, waiting)
    assert host.running == {A: "1", B: "1"}
    host.holders = []
    assert host.converge(A, B, release="2") == (True, ())
    assert host.running == {A: "2", B: "2"}


def test_one_that_does_not_run_is_started_under_pods_too(host: Host) -> None:
    host.converge(A, B)
    host.holders = ["u1"]
    host.of(f"gpushare-mps-{A}.service").running = None
    assert host.converge(A, B) == (True, ())
    assert host.running == {A: "1", B: "1"}


def test_where_one_does_not_start_everything_is_as_before(host: Host) -> None:
    host.starts = False
    with pytest.raises(TransactionError, match="it said this"):
        host.converge(A)
    assert present(host.place) == []


@pytest.mark.parametrize("gpu", ["0", "GPU-../../../etc/x", "GPU-aaaa\nExecStart=/bin/sh", ""])
def test_only_a_uuid_becomes_the_name_of_a_file(host: Host, gpu: str) -> None:
    with pytest.raises(Rejected, match="expected a UUID"):
        host.converge(gpu)


@pytest.mark.parametrize("after", [(A,), ()])
def test_the_folder_of_a_gpu_without_daemon_goes_with_its_mount(host: Host, after: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
    folders, mounted = Path(host.place.folder), set()
    monkeypatch.setattr(os.path, "ismount", lambda path: path in mounted)
    host.converge(A, B)
    for gpu in (A, B):
        (folders / gpu / "shm").mkdir(parents=True)
        mounted.add(f"{folders}/{gpu}/shm")

    def umount(argv: list[str]) -> tuple[int, str, str]:
        assert host.running.keys() == set(after), "it is still used"
        mounted.discard(argv[1])
        return 0, "", ""

    host.umount = umount
    assert host.converge(*after) == (True, ())
    assert sorted(path.name for path in folders.iterdir()) == sorted(after)
    assert mounted == {f"{folders}/{gpu}/shm" for gpu in after}
    assert host.converge(*after) == (False, ())


def test_a_mount_that_does_not_go_is_said_and_the_daemon_comes_back(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os.path, "ismount", lambda path: path.endswith("/shm"))
    host.converge(A)
    (Path(host.place.folder) / A / "shm").mkdir(parents=True)
    host.umount = lambda argv: (32, "", "target is busy.")
    with pytest.raises(TransactionError, match=r"umount .*/shm failed with exit status 32: target is busy.; unmount it, and run again"):
        host.converge()
    assert host.running == {A: "1"}
    assert (Path(host.place.folder) / A / "shm").exists()
