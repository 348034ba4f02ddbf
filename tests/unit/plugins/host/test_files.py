# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A file is replaced as a whole or not at all, keeps what it was given, and leaves nothing beside it."""

from __future__ import annotations

import contextlib
import errno
import os
import stat
import struct
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host import files
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.files import (
    FileState,
    digest,
    read_state,
    remove,
    replace,
    state_digest,
)

from unit.fakes.plugins.host.attributes import LABEL, Attributes


def put(path: Path, content: bytes = b"new", mode: int = 0o640) -> None:
    replace(str(path), content, mode, os.getuid(), os.getgid(), None)


def staged(path: Path, pid: int) -> Path:
    """Where a process stages this file: beside its folder."""
    return path.parent.parent / f".gpushare-staged-{digest(str(path).encode())[:12]}-{pid}"


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A file with long content and the mode 0600, alone in its folder."""
    path = tmp_path / "etc/conf.d/file"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"old " * 9)
    path.chmod(0o600)
    return path


def test_what_is_read_is_the_file_with_mode_owner_and_label(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    attributes = Attributes(monkeypatch)
    attributes.give(path, 1, 2, LABEL)
    path.chmod(0o4755)
    assert read_state(str(path)) == FileState(b"old " * 9, 0o4755, 1, 2, LABEL)
    assert read_state(str(path) + "x") is None


def test_what_is_written_is_the_file_with_mode_owner_and_label(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    Attributes(monkeypatch)
    for wanted in (FileState(b"new", 0o4751, 7, 8, LABEL), FileState(b"", 0o400, 1, 2, None)):
        replace(str(path), *wanted)
        assert read_state(str(path)) == wanted
    assert os.listdir(path.parent) == ["file"]
    assert os.listdir(path.parent.parent) == ["conf.d"]


def acl(user: int) -> bytes:
    """An access list as the kernel has it: owner rw-, this user r--, group and others nothing, mask r--."""
    entries = [(0x01, 6, 0xFFFFFFFF), (0x02, 4, user), (0x04, 0, 0xFFFFFFFF), (0x10, 4, 0xFFFFFFFF), (0x20, 0, 0xFFFFFFFF)]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *entry) for entry in entries)


ACL, DEFAULT_ACL = "system.posix_acl_access", "system.posix_acl_default"


@pytest.fixture
def listed(path: Path) -> Path:
    """The file with an access list that lets one more user read it."""
    try:
        os.setxattr(path, ACL, acl(4711))
    except OSError:
        pytest.skip("a file system without access lists")
    return path


def test_access_lists_and_other_attributes_stay(listed: Path) -> None:
    with contextlib.suppress(OSError):  # which not every file system has
        os.setxattr(listed, "user.note", b"theirs")
    kept = {name: os.getxattr(listed, name) for name in os.listxattr(listed)}
    inode = listed.stat().st_ino
    replace(str(listed), b"new", 0o640, os.getuid(), os.getgid(), None)
    assert listed.stat().st_ino != inode
    assert {name: os.getxattr(listed, name) for name in os.listxattr(listed)} == kept
    assert stat.S_IMODE(listed.stat().st_mode) == 0o640
    # The mode of a file with a list is its mask.
    put(listed, mode=0o600)
    assert stat.S_IMODE(listed.stat().st_mode) == 0o600
    assert os.getxattr(listed, ACL) != kept[ACL]


def test_the_folder_where_a_file_is_staged_gives_it_no_access_list(listed: Path) -> None:
    os.removexattr(listed, ACL)
    os.setxattr(listed.parent.parent, DEFAULT_ACL, acl(4711))
    put(listed)
    assert ACL not in os.listxattr(listed)


def test_no_file_and_an_empty_one_are_told_apart() -> None:
    assert (digest(None), state_digest(None)) == ("", "")
    assert digest(b"") == state_digest(FileState(b"", 0, 0, 0, None)) == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


@pytest.mark.timeout(60)
def test_what_is_no_regular_file_is_rejected_and_not_waited_for(path: Path) -> None:
    os.mkfifo(path.parent / "pipe")
    descriptors = os.listdir("/proc/self/fd")
    for other in (path.parent, path.parent / "pipe"):
        with pytest.raises(OSError, match=f"expected a regular file, found something else: '{other}'") as error:
            read_state(str(other))
        assert error.value.errno == errno.EINVAL
    assert os.listdir("/proc/self/fd") == descriptors


@pytest.mark.parametrize("number", [errno.ENODATA, errno.EOPNOTSUPP, errno.ENOSYS, errno.EACCES])
def test_a_label_that_cannot_be_read_is_not_taken_for_none(path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def fails(_path: str, _name: str) -> bytes:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(os, "getxattr", fails)
    if number == errno.EACCES:
        with pytest.raises(PermissionError):
            read_state(str(path))
    else:
        found = read_state(str(path))
        assert found is not None
        assert found.label is None


def test_folders_are_made_and_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to("a/b/real")
    put(tmp_path / "link")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "a/b/real").read_bytes() == b"new"
    put(tmp_path / "link", b"newer")
    assert (tmp_path / "a/b/real").read_bytes() == b"newer"


def test_nobody_else_can_read_a_file_while_it_is_staged_and_it_is_on_the_disk_before_it_takes_its_place(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync, rename, fchown = os.fsync, os.rename, os.fchown
    seen: list[Any] = []

    def sync(descriptor: int) -> None:
        seen.append(("sync", os.readlink(f"/proc/self/fd/{descriptor}"), os.path.getsize(descriptor), path.read_bytes()))
        fsync(descriptor)

    def own(descriptor: int, uid: int, gid: int) -> None:
        seen.append(oct(os.fstat(descriptor).st_mode & 0o777))
        fchown(descriptor, uid, gid)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "fchown", own)
    monkeypatch.setattr(os, "rename", lambda old, new: (seen.append("rename"), rename(old, new)))
    before = path.read_bytes()
    put(path, mode=0o666)
    folder = ("sync", str(path.parent), os.path.getsize(path.parent), b"new")
    assert seen == ["0o600", ("sync", str(staged(path, os.getpid())), 3, before), "rename", folder]


def test_what_a_killed_process_has_staged_goes_and_what_a_living_one_stages_stays(path: Path) -> None:
    dead, living, of_another = staged(path, 2**22 + 1), staged(path, os.getppid()), staged(path.parent / "other", 2**22 + 1)
    for leftover in (dead, living, of_another):
        leftover.write_text("half")
    # Of a process that had our own number.
    staged(path, os.getpid()).write_text("more than the new content")
    put(path)
    assert path.read_bytes() == b"new"
    assert {one.name for one in path.parent.parent.iterdir()} == {"conf.d", living.name, of_another.name}


def test_nothing_stays_open(path: Path) -> None:
    descriptors = os.listdir("/proc/self/fd")
    put(path)
    read_state(str(path))
    remove(str(path))
    assert os.listdir("/proc/self/fd") == descriptors


def test_a_link_where_a_file_is_staged_leads_nowhere(path: Path) -> None:
    victim = path.parent.parent / "victim"
    victim.write_text("theirs")
    staged(path, os.getpid()).symlink_to(victim)
    put(path)
    assert (victim.read_text(), path.read_bytes()) == ("theirs", b"new")
    assert not staged(path, os.getpid()).is_symlink()


def test_a_file_that_somebody_has_put_where_one_is_staged_is_not_written_to(path: Path) -> None:
    """He could go on writing to it when it has taken its place."""
    staged(path, os.getpid()).write_text("theirs")
    with staged(path, os.getpid()).open("r+") as theirs:
        put(path)
        theirs.write("evil")
    assert path.read_bytes() == b"new"


def test_nothing_is_staged_where_anybody_may_write(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path.parent.parent.chmod(0o1777)
    rename = os.rename
    seen: list[str] = []
    monkeypatch.setattr(os, "rename", lambda old, new: (seen.append(os.path.dirname(old)), rename(old, new)))
    put(path)
    assert (seen, path.read_bytes()) == ([str(path.parent)], b"new")


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_rename_that_fails_is_told_and_leaves_nothing_beside_the_file(path: Path, monkeypatch: pytest.MonkeyPatch, when: str) -> None:
    rename = os.rename

    def fails(old: str, new: str) -> None:
        if when == "after":
            rename(old, new)
        raise OSError(errno.EIO, "the disk is gone")

    monkeypatch.setattr(os, "rename", fails)
    with pytest.raises(OSError, match="the disk is gone"):
        put(path)
    assert path.read_bytes() == (b"new" if when == "after" else b"old " * 9)
    assert os.listdir(path.parent.parent) == ["conf.d"]


def test_where_the_folder_is_a_filesystem_of_its_own_a_file_is_staged_in_it(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stat, rename = os.stat, os.rename
    sources: list[str] = []

    def mounted(one: Any, **options: Any) -> os.stat_result:
        found = stat(one, **options)
        return os.stat_result((*found[:2], found.st_dev + 1, *found[3:10])) if str(one) == str(path.parent) else found

    monkeypatch.setattr(os, "stat", mounted)
    monkeypatch.setattr(os, "rename", lambda old, new: (sources.append(os.path.dirname(old)), rename(old, new)))
    put(path)
    assert sources == [str(path.parent)]


def test_what_is_removed_is_gone_on_the_disk_as_well(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    monkeypatch.setattr(files, "sync_folder", synced.append)
    remove(str(path))
    remove(str(path))
    assert not path.exists()
    assert synced == [str(path.parent)]


@pytest.fixture
def selinux(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host with SELinux, and what its restorecon was told."""
    program, log = tmp_path / "restorecon", tmp_path / "log"
    program.write_text(f'#!/bin/sh\necho "$@" >> {log}\ntest ! -e {tmp_path}/broken || {{ echo no policy; exit 1; }}\n')
    program.chmod(0o755)
    log.touch()
    (tmp_path / "enforce").write_text("0")
    monkeypatch.setattr(files, "SELINUX_ON", str(tmp_path / "enforce"))
    monkeypatch.setattr(files, "RESTORECON", ("/nonexistent", str(program)))
    return log


def test_a_new_file_gets_the_label_of_its_place(selinux: Path, tmp_path: Path) -> None:
    new = tmp_path / "etc/systemd/x.service"
    files.replace(str(new), b"x", 0o644, os.getuid(), os.getgid(), None)
    files.relabel(str(tmp_path / "opt"), recursive=True)
    assert selinux.read_text() == f"{new}\n-R {tmp_path}/opt\n"


def test_labels_that_cannot_be_set_are_said(selinux: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "broken").touch()
    with pytest.raises(OSError, match="restorecon failed with exit status 1: no policy"):
        files.relabel("/etc/x")
    monkeypatch.setattr(files, "RESTORECON", ())
    with pytest.raises(OSError, match="no restorecon"):
        files.relabel("/etc/x")
    monkeypatch.setattr(files, "SELINUX_ON", str(tmp_path / "none"))
    files.relabel("/etc/x")


def test_a_folder_that_is_mounted_onto_itself_gets_its_file_all_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As kubelet does with /var/lib/kubelet: the same device, and no rename into it. Seen with kubelet 1.36 in a container."""
    place = tmp_path / "kubelet" / "config.yaml"
    place.parent.mkdir()
    place.write_bytes(b"old")
    rename = os.rename

    def rename_within_a_mount(source: str, target: str) -> None:
        if os.path.dirname(source) != os.path.dirname(target):
            raise OSError(errno.EXDEV, "Invalid cross-device link", source)
        rename(source, target)

    monkeypatch.setattr(os, "rename", rename_within_a_mount)
    replace(str(place), b"new", 0o640, os.getuid(), os.getgid(), None)
    assert (place.read_bytes(), place.stat().st_mode & 0o777) == (b"new", 0o640)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["config.yaml", "kubelet"]
    monkeypatch.setattr(os, "rename", lambda *_paths: (_ for _ in ()).throw(OSError(errno.EXDEV, "no")))
    with pytest.raises(OSError, match="no"):
        replace(str(place), b"newer", 0o640, os.getuid(), os.getgid(), None)
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["config.yaml", "kubelet"]
