# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Which pods, and which of their containers, still have a process on this host, whatever kubelet and the API server say.

The pods' control groups are asked, not the processes: a process with a dead leader and a living thread, and on control groups v1
every process that is being taken down, still stands in its group's `cgroup.procs` while it no longer names the group itself. The
container runtime is not asked: it knows containers, and what holds memory of a card is a process, also one whose container the
runtime has lost.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterator, Set
from pathlib import Path
from typing import Final

log = logging.getLogger(__name__)

PROC: Final = Path("/proc")

# The pod's UID in the name of its control group: `pod<uid>` (cgroupfs), `…-pod<uid with _ for ->.slice` (systemd), a static
# pod's UID without dashes.
_POD: Final = re.compile(r"(?:^|-)pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?$")
# What kubelet mounts into every container for its last words: its own folder for the pod and the container's name.
_CONTAINER: Final = re.compile(rb"/pods/([0-9a-f-]{32,36})/containers/([a-z0-9.-]{1,253})/[0-9a-f]{1,16}(?://deleted)? ")
# Groups of pods lie below kubelet's, which may lie below others; containers may make more.
_DEEPEST: Final = 12
_LARGEST: Final = 4 * 1024 * 1024


class HostProcesses:
    """As the kernel shows them. Needs the host's control groups and the processes of the host."""

    def __init__(self, proc: Path = PROC) -> None:
        self._proc = proc
        self._blind = False

    def pods(self, uids: Set[str]) -> Set[str]:
        groups = self._groups(uids)
        if groups is None:
            return uids
        return {uid for uid, found in groups.items() if any(next(_members(group), None) is not None for group in found)}

    def containers(self, uid: str) -> Set[str] | None:
        groups = self._groups({uid})
        if groups is None:
            return None
        found: set[str] = set()
        for group in groups.get(uid, ()):
            # One group for each container and one for the pod itself: all processes of a group are of the same container.
            for part in [group, *_below(group)]:
                names = self._names(uid, part, deep=part != group)
                if names is None:
                    return None
                found |= names
        return found

    def _names(self, uid: str, group: str, *, deep: bool) -> set[str] | None:
        """The containers that the group's processes are of, none for those of the pod's own; None if a process does not say."""
        for pid in _members(group, deep=deep):
            mounts = self._mounts(pid)
            # It has ended, or /proc hides it (hidepid): its group knows.
            if not mounts and pid in _members(group, deep=deep):
                return None
            names = {name.decode() for of, name in _CONTAINER.findall(mounts) if of.decode() == uid}
            if names:
                return names
        return set()

    def _mounts(self, pid: str) -> bytes:
        """What the process sees mounted, b"" if it does not say."""
        # One whose leader is dead says it by its other threads.
        for place in (f"{self._proc}/{pid}/mountinfo", *_threads(f"{self._proc}/{pid}/task")):
            text = _read(place)
            if text:
                return text
        return b""

    def _groups(self, uids: Set[str]) -> dict[str, list[str]] | None:
        """Pod UID → its control groups; None if this process cannot see those of pods at all."""
        for root in self._hierarchies():
            found: dict[str, list[str]] = {}
            if _collect(root, uids, found, _DEEPEST):
                self._blind = False
                return found
        if not self._blind:
            self._blind = True
            log.error(
                "the control groups of pods are not to be seen on this host: whatever a pod that is gone held stays held. "
                "kubelet makes them unless it is started with --cgroups-per-qos=false; this process has to see those of the host"
            )
        return None

    def _hierarchies(self) -> Iterator[str]:
        """Where control groups are mounted: of version 2, or of each controller of version 1."""
        mounted: dict[str, str] = {}
        for line in _read(f"{self._proc}/self/mountinfo").decode(errors="replace").splitlines():
            left, _, right = line.partition(" - ")
            before, kind = left.split(), right.split()
            if len(before) > 4 and kind and kind[0] in ("cgroup", "cgroup2"):
                names = ["2"] if kind[0] == "cgroup2" else kind[-1].split(",")
                for name in names:
                    mounted.setdefault(name, before[4].encode().decode("unicode_escape"))
        # Where both are mounted kubelet uses version 1, whose every controller has all pods.
        for name in ("memory", "pids", "devices", "cpu", "2"):
            if name in mounted:
                yield mounted[name]


def _collect(folder: str, uids: Set[str], found: dict[str, list[str]], deep: int) -> bool:
    """Note the groups of these pods; whether there is a pod's group, or kubelet's for all of them, below this one."""
    seen = False
    for name, path in _entries(folder):
        match = _POD.search(name)
        if match is not None:
            seen = True
            uid = match.group(1).replace("_", "-")
            if uid in uids:
                found.setdefault(uid, []).append(path)
        elif deep:
            seen = _collect(path, uids, found, deep - 1) or seen or "kubepods" in name
    return seen


def _members(group: str, *, deep: bool = True) -> Iterator[str]:
    """The processes in a control group; deep: and in those below it."""
    yield from _read(f"{group}/cgroup.procs").decode().split()
    if deep:
        for path in _below(group):
            yield from _members(path)


def _below(group: str) -> list[str]:
    return [path for _, path in _entries(group)]


def _entries(folder: str) -> list[tuple[str, str]]:
    """Name and path of each folder in it, none if it is gone."""
    try:
        with os.scandir(folder) as entries:
            return [(entry.name, entry.path) for entry in entries if entry.is_dir(follow_symlinks=False)]
    except OSError:
        return []


def _threads(folder: str) -> Iterator[str]:
    for _, path in _entries(folder):
        yield f"{path}/mountinfo"


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(_LARGEST)
    except OSError:
        return b""
