# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Files of a host, read whole and replaced atomically."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import subprocess
from typing import NamedTuple, Optional

SELINUX = "security.selinux"
SELINUX_ON = "/sys/fs/selinux/enforce"
_OF_THE_KERNEL = "security."
RESTORECON = ("/usr/sbin/restorecon", "/sbin/restorecon")


class FileState(NamedTuple):
    """A regular file as it is on the host. label: its SELinux context, None where there is none."""

    content: bytes
    mode: int
    uid: int
    gid: int
    label: Optional[bytes]


def digest(content: Optional[bytes]) -> str:
    """SHA-256 in hex; the empty string stands for "no such file"."""
    return "" if content is None else hashlib.sha256(content).hexdigest()


def state_digest(state: Optional[FileState]) -> str:
    """The same of a file that was read."""
    return digest(None if state is None else state.content)


def read_state(path: str) -> Optional[FileState]:
    """The file, None if there is none. OSError if it is there and is not a regular file, or cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        return None
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "expected a regular file, found something else", path)
    with os.fdopen(descriptor, "rb") as stream:
        return FileState(stream.read(), stat.S_IMODE(status.st_mode), status.st_uid, status.st_gid, _label(path))


def replace(path: str, content: bytes, mode: int, uid: int, gid: int, label: Optional[bytes]) -> None:
    """Put a whole new file in place of `path`, or nothing: a crash leaves the old one or the new one."""
    Staged(path, FileState(content, mode, uid, gid, label)).take_place()


class Staged:
    """A whole new file, on the disk, that waits for its place. Writes that can fail for want of room have not failed.

    It waits outside the file's folder where that is on the same filesystem, because some folders are read by others as a whole
    (/etc/kubernetes/manifests, *.d).
    """

    def __init__(self, path: str, state: FileState) -> None:
        self._path, self._state = path, state
        self._folder = os.path.dirname(os.path.realpath(path))
        self._real = os.path.join(self._folder, os.path.basename(os.path.realpath(path)))
        self._in = _staging(self._folder)
        self._staged = self._write()

    def take_place(self) -> None:
        """Be the file. An error leaves the old one."""
        try:
            # Not before: the caller that notes which folders are new has done so now.
            os.makedirs(self._folder, exist_ok=True)
            try:
                os.rename(self._staged, self._real)
            except OSError as error:
                # kubelet mounts its folder onto itself: the same filesystem, and yet nothing can be renamed into it.
                if error.errno != errno.EXDEV or self._in == self._folder:
                    raise
                self.discard()
                self._in = self._folder
                self._staged = self._write()
                os.rename(self._staged, self._real)
        except BaseException:
            self.discard()
            raise
        if self._state.label is None:
            # It has the type of the folder where it was staged.
            relabel(self._real)
        sync_folder(self._folder)

    def discard(self) -> None:
        """Leave nothing, unless it has taken its place."""
        if os.path.exists(self._staged):
            os.unlink(self._staged)

    def _write(self) -> str:
        _discard_leftovers(self._path, self._in)
        staged = os.path.join(self._in, f".gpushare-staged-{digest(self._path.encode())[:12]}-{os.getpid()}")
        descriptor = os.open(staged, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(self._state.content)
                stream.flush()
                os.fchown(stream.fileno(), self._state.uid, self._state.gid)
                _copy_attributes(self._real, stream.fileno())
                # After an access list, whose mask it is.
                os.fchmod(stream.fileno(), self._state.mode)
                if self._state.label is not None:
                    os.setxattr(stream.fileno(), SELINUX, self._state.label)
                os.fsync(stream.fileno())
        except BaseException:
            os.unlink(staged)
            raise
        return staged


def _copy_attributes(source: str, descriptor: int) -> None:
    """Access lists and other attributes, as the file has them that is replaced. Those of the kernel's security modules are its own."""
    try:
        names = os.listxattr(source)
        own = os.listxattr(descriptor)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.EOPNOTSUPP, errno.ENOSYS):
            return
        raise
    # The attributes that the folder where it was staged gives to every file.
    for name in set(own) - set(names):
        if not name.startswith(_OF_THE_KERNEL):
            os.removexattr(descriptor, name)
    for name in names:
        if not name.startswith(_OF_THE_KERNEL):
            os.setxattr(descriptor, name, os.getxattr(source, name))


def relabel(path: str, recursive: bool = False) -> None:
    """Give what is new the SELinux label that the host's policy has for its place, where SELinux is on. OSError if that does not work."""
    if not os.path.exists(SELINUX_ON):
        return
    program = next((candidate for candidate in RESTORECON if os.access(candidate, os.X_OK)), None)
    if program is None:
        raise OSError(errno.ENOENT, "SELinux is on, and there is no restorecon (package policycoreutils) to label new files with", path)
    argv = [program, *(["-R"] if recursive else []), path]
    done = subprocess.run(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    if done.returncode != 0:
        words = " ".join(done.stdout.decode("utf-8", "replace").split())[:300]
        raise OSError(errno.EIO, f"restorecon failed with exit status {done.returncode}: {words}", path)


def remove(path: str) -> None:
    """Take the file away, if it is there."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return
    sync_folder(os.path.dirname(path))


def sync_folder(folder: str) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _staging(folder: str) -> str:
    """Where a file for this folder waits; makes the folder only where it must wait in it."""
    parent = os.path.dirname(folder)
    while not os.path.isdir(parent):
        parent = os.path.dirname(parent)
    status = os.stat(parent)
    same = not os.path.isdir(folder) or status.st_dev == os.stat(folder).st_dev
    # Where others may write, they could put another file in its place before it takes its own.
    if same and not status.st_mode & stat.S_IWOTH:
        return parent
    os.makedirs(folder, exist_ok=True)
    return folder


def _discard_leftovers(path: str, folder: str) -> None:
    """Remove what processes that were killed while they staged this file have left, also one of our own number."""
    prefix = f".gpushare-staged-{digest(path.encode())[:12]}-"
    for name in os.listdir(folder):
        number = name[len(prefix) :]
        if name.startswith(prefix) and (number == str(os.getpid()) or not os.path.exists("/proc/" + number)):
            remove(os.path.join(folder, name))


def _label(path: str) -> Optional[bytes]:
    try:
        return os.getxattr(path, SELINUX)
    except OSError as error:
        if error.errno in (errno.ENODATA, errno.EOPNOTSUPP, errno.ENOSYS):
            return None
        raise
