# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""A host to be read only: its files, processes and programs, below `/` or a folder that stands for it.

A file that is missing or unreadable is None or empty, never an error: these are facts about any host.
"""

from __future__ import annotations

import itertools
import os
import posixpath
import re
import stat
from dataclasses import dataclass
from typing import Dict, List, Optional, Sequence, Tuple

from .._formats.yaml_scalars import scalars
from .command import Outcome, RunWithin
from .command import run as run_command

#: Where the programs of a node are, in the order of a root shell; k3s and RKE2 keep theirs in the last ones.
PROGRAM_FOLDERS = (
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
    "/opt/bin",
    "/var/lib/rancher/rke2/bin",
    "/var/lib/rancher/k3s/data/current/bin",
)
_LIMIT = 4 * 1024 * 1024
_PIECE = 64 * 1024
_LINKS = 40
_SHOWN = 80
# Arguments with which a program answers a question and ends: of kubelet, containerd, CRI-O, docker and k3s.
_ASKED = re.compile(r"--?(?:version|help)(?:=.*)?")
_ASKS = ("version", "help", "config", "status", "completion")
# The text that Linux adds to the path of a program that is no longer there.
_REPLACED = " (deleted)"
_OF_ROOT = re.compile(r"^Uid:\t0\t0\t0\t0$", re.MULTILINE)


@dataclass(frozen=True)
class RunningProcess:
    """A process of the host.

    argv: what it says of itself, and anybody may start a process that says he is kubelet. program: the file that it really runs, ""
    if that cannot be read. own: whether the host's root runs it, outside of every container.
    """

    pid: int
    argv: Tuple[str, ...]
    program: str
    own: bool

    @property
    def name(self) -> str:
        """The name that it calls itself, to be shown only."""
        return "".join(letter if letter.isprintable() else "?" for letter in posixpath.basename(self.argv[0])[:_SHOWN])

    @property
    def path(self) -> str:
        """Where its program is, or was before a package replaced it."""
        return self.program[: -len(_REPLACED)] if self.program.endswith(_REPLACED) else self.program

    def flag(self, name: str) -> Optional[str]:
        """The value of its last `--name value` or `--name=value`; "true" for a flag without one."""
        return flag(self.argv, name)


def flag(argv: Sequence[str], name: str) -> Optional[str]:
    """The value of the last `--name value` or `--name=value` in these arguments; "true" for a flag without one."""
    return flags(argv).get(name)


def flags(argv: Sequence[str]) -> Dict[str, str]:
    """The name of every flag in these arguments to its value, as `flag` has it."""
    found = {}
    for place, word in enumerate(argv):
        key, equals, rest = word.partition("=")
        if key.startswith("-"):
            following = next(iter(argv[place + 1 : place + 2]), "-")
            found[key[2 if key.startswith("--") else 1 :]] = rest if equals else "true" if following.startswith("-") else following
    return found


class Host:
    """One host. root: "/" or the folder that stands for it; every path given or returned is as the host sees it."""

    def __init__(self, root: str = "/", timeout: float = 20.0, run: RunWithin = run_command) -> None:
        self.root = root
        self._timeout = timeout
        self._run = run
        self._processes: Optional[List[RunningProcess]] = None
        self._programs: Dict[str, Optional[str]] = {}

    @property
    def hostname(self) -> str:
        return (os.uname().nodename if self.root == "/" else self.line("/etc/hostname")) or ""

    @property
    def release(self) -> str:
        """Of the running kernel, such as "6.1.0-30-amd64"."""
        return (os.uname().release if self.root == "/" else self.line("/proc/sys/kernel/osrelease")) or ""

    @property
    def machine(self) -> str:
        """Its architecture, such as "x86_64"."""
        return (os.uname().machine if self.root == "/" else self.line("/proc/sys/kernel/arch")) or ""

    def real(self, path: str) -> str:
        """The path with every link followed, as the host would: an absolute link starts at the host's own root."""
        done, left, links = "/", [part for part in path.split("/") if part], 0
        while left:
            part = left.pop(0)
            if part in (".", ".."):
                done = posixpath.dirname(done) if part == ".." else done
                continue
            done = posixpath.join(done, part)
            target = self._readlink(done)
            if target is not None and links < _LINKS:
                links += 1
                done = "/" if target.startswith("/") else posixpath.dirname(done)
                left = [piece for piece in target.split("/") if piece] + left
        return done

    def outside(self, path: str) -> str:
        """The path by which this process reaches it."""
        return self._outside(self.real(path))

    def data(self, path: str, limit: int = _LIMIT) -> Optional[bytes]:
        """The file's first `limit` bytes, None if there is no readable regular file."""
        try:
            # With any target of the path, opening it must not wait: it could be a pipe.
            with open(os.open(self.outside(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    return None
                # In pieces: the kernel does not answer a single read of some MiB below /proc/sys.
                pieces = iter(lambda: file.read(_PIECE), b"")
                return b"".join(itertools.islice(pieces, 1 + limit // _PIECE))[:limit]
        except (OSError, ValueError):
            return None

    def tail(self, path: str, limit: int) -> bytes:
        """The last bytes of a file, b"" where there is none."""
        try:
            with open(os.open(self.outside(path), os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
                file.seek(max(0, os.fstat(file.fileno()).st_size - limit))
                return file.read(limit)
        except (OSError, ValueError):
            return b""

    def text(self, path: str) -> Optional[str]:
        found = self.data(path)
        return None if found is None else found.decode("utf-8", "replace")

    def line(self, path: str) -> Optional[str]:
        """The file's content without white space around it, None if that is nothing."""
        return (self.text(path) or "").strip() or None

    def yaml_scalars(self, folder: str, endings: Tuple[str, ...]) -> Dict[str, str]:
        """The plain values in the folder's files with these endings, as of one file: of the last one by name that has it."""
        found: Dict[str, str] = {}
        for name in self.names(folder) if folder else ():
            if name.endswith(endings):
                found.update(scalars(self.text(f"{folder}/{name}") or ""))
        return found

    def names(self, path: str) -> List[str]:
        """The names in the folder, sorted."""
        try:
            return sorted(os.listdir(self.outside(path)))
        except (OSError, ValueError):
            return []

    def exists(self, path: str) -> bool:
        return self._mode(path) is not None

    def changed_at(self, path: str) -> Optional[float]:
        """The Unix time of the last change of its content; None if there is none."""
        try:
            return os.stat(self.outside(path)).st_mtime
        except (OSError, ValueError):
            return None

    def is_folder(self, path: str) -> bool:
        mode = self._mode(path)
        return mode is not None and stat.S_ISDIR(mode)

    def is_socket(self, path: str) -> bool:
        mode = self._mode(path)
        return mode is not None and stat.S_ISSOCK(mode)

    def device_mode(self, path: str) -> int:
        """The users who may read and write the character device, as bits; -1 if there is none."""
        mode = self._mode(path)
        return stat.S_IMODE(mode) if mode is not None and stat.S_ISCHR(mode) else -1

    def link(self, path: str) -> Optional[str]:
        """The text of the link itself, None if it is none."""
        return self._readlink(posixpath.join(self.real(posixpath.dirname(path)), posixpath.basename(path)))

    def existing(self, paths: Sequence[str]) -> Tuple[str, ...]:
        return tuple(path for path in paths if self.exists(path))

    def program(self, name: str) -> Optional[str]:
        """The program's path, None if the host does not have it."""
        if name not in self._programs:
            folders = ("",) if name.startswith("/") else PROGRAM_FOLDERS
            paths = [posixpath.join(folder, name) for folder in folders]
            self._programs[name] = next(
                (path for path in paths if os.access(self.outside(path), os.X_OK) and not self.is_folder(path)), None
            )
        return self._programs[name]

    def ask(self, program: Optional[str], arguments: Sequence[str], timeout: Optional[float] = None) -> Optional[Outcome]:
        """The answer of the program at this path; None if there is none."""
        if program is None:
            return None
        # By the name given, not by what it links to: a program may be several ones and read its name.
        path = program if self.root == "/" else self.outside(program)
        return self._run([path, *arguments], self._timeout if timeout is None else timeout)

    def printed(self, program: Optional[str], arguments: Sequence[str]) -> str:
        """The program's standard output, "" if there is no program, or it fails."""
        outcome = self.ask(program, arguments)
        return outcome.out if outcome is not None and outcome.ok else ""

    def answer(self, program: Optional[str], arguments: Sequence[str], pattern: "re.Pattern[str]") -> Optional[str]:
        """The first group of the pattern in what the program prints; None if it fails or says something else."""
        outcome = self.ask(program, arguments)
        match = pattern.search(outcome.out) if outcome is not None and outcome.ok else None
        return match.group(1) if match else None

    @property
    def processes(self) -> List[RunningProcess]:
        """Every process with arguments, by PID."""
        if self._processes is None:
            pids = sorted(int(name) for name in self.names("/proc") if name.isdigit())
            found = ((pid, self.data(f"/proc/{pid}/cmdline")) for pid in pids)
            self._processes = [
                RunningProcess(
                    pid,
                    tuple(os.fsdecode(word) for word in line.rstrip(b"\0").split(b"\0")),
                    self.link(f"/proc/{pid}/exe") or "",
                    self._is_own(pid),
                )
                for pid, line in found
                if line and line.strip(b"\0")
            ]
        return self._processes

    def process(self, *names: str) -> Optional[RunningProcess]:
        """The first process of the host's root that runs a program of one of these names. One that is asked for its version, or for its
        configuration, does not run: the next moment it is gone."""
        running = (process for process in self.processes if any(self.runs(process, name) for name in names))
        return next((process for process in running if not _only_answers(process.argv[1:])), None)

    def runs(self, process: RunningProcess, name: str) -> bool:
        """Whether the host's root runs the program of this name there, also one that is several programs by several names."""
        if not process.own:
            return False
        linked = self.program(name) if posixpath.basename(process.argv[0]) == name else None
        return posixpath.basename(process.path) == name or (linked is not None and self.real(linked) == process.path)

    def program_of(self, process: Optional[RunningProcess], name: str) -> Optional[str]:
        """The path of the program that runs; without it, or where it was replaced since, of the one that the host would start."""
        if process is not None and posixpath.basename(process.program) == name:
            return process.program
        return self.program(name)

    def free_mib(self, path: str) -> Optional[int]:
        """MiB that root can still write where the path is, or will be."""
        status = self._file_system(path)
        return None if status is None else status.f_bavail * status.f_frsize // (1024 * 1024)

    def _file_system(self, path: str) -> "Optional[os.statvfs_result]":
        """Of the path, or of the nearest folder above that there is."""
        while not self.exists(path) and path != "/":
            path = posixpath.dirname(path)
        try:
            return os.statvfs(self.outside(path))
        except (OSError, ValueError):
            return None

    def no_programs(self, path: str) -> bool:
        """Whether nothing can be executed where the path is, or will be."""
        status = self._file_system(path)
        return status is not None and bool(status.f_flag & os.ST_NOEXEC)

    def is_read_only(self, path: str) -> bool:
        """Whether nothing can be written where the path is, or will be."""
        status = self._file_system(path)
        return status is not None and bool(status.f_flag & os.ST_RDONLY)

    def inodes(self, path: str) -> float:
        """How many files can be made where the path is, or will be; infinite where the file system does not count them."""
        status = self._file_system(path)
        return float("inf") if status is None or not status.f_files else status.f_favail

    def _is_own(self, pid: int) -> bool:
        """Whether the host's root runs it, outside of every container: of a pod with hostPID, root is another user."""
        own = self.link("/proc/self/ns/pid")
        if own is None or self.link(f"/proc/{pid}/ns/pid") != own or not _OF_ROOT.search(self.text(f"/proc/{pid}/status") or ""):
            return False
        try:
            # The target of the link, which is not what it says: in a container that is "/" as well.
            return os.path.samestat(os.stat(self._outside(f"/proc/{pid}/root")), os.stat(self._outside("/")))
        except (OSError, ValueError):
            return False

    def _outside(self, path: str) -> str:
        return path if self.root == "/" else posixpath.join(self.root, path.lstrip("/"))

    def _readlink(self, path: str) -> Optional[str]:
        try:
            return os.readlink(self._outside(path))
        except (OSError, ValueError):
            return None

    def _mode(self, path: str) -> Optional[int]:
        try:
            return os.stat(self.outside(path)).st_mode
        except (OSError, ValueError):
            return None


def _only_answers(arguments: Sequence[str]) -> bool:
    return any(_ASKED.fullmatch(word) for word in arguments) or next(iter(arguments), "") in _ASKS
