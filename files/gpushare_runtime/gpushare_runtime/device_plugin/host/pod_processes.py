# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Which pods, and which of their containers, still have a process on this host, whatever kubelet and the API server report.

It reads the pods' control groups, not the processes: some processes no longer name their group, but remain in its `cgroup.procs`.
These are processes with a dead leader and a live thread, and every exiting process on control groups v1. It does not query the
container runtime: a process uses a card's memory even if the runtime has lost its container.
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
# kubelet's group above all pods, maybe in one of its own: `kubepods`, `kubepods.slice`, `kubelet-kubepods.slice`.
_KUBEPODS: Final = re.compile(r"(?:^|-)kubepods(?:\.slice)?$")
# kubelet mounts a termination log into every container; the path has the pod's UID and the container's name.
_CONTAINER: Final = re.compile(rb"/pods/([0-9a-f-]{32,36})/containers/([a-z0-9.-]{1,253})/[0-9a-f]{1,16}(?://deleted)? ")
# The pods' groups are below kubelet's, which may be below others; containers may create more.
_DEEPEST: Final = 12
_LARGEST: Final = 4 * 1024 * 1024


class HostProcesses:
    """As the kernel reports them. Needs the host's control groups and process namespace."""

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
            # Each container and the pod itself have one group: all processes of a group are of one container.
            for part in [group, *_below(group)]:
                names = self._names(uid, part, deep=part != group)
                if names is None:
                    return None
                found |= names
        return found

    def identify(self, pid: int) -> tuple[int, str] | None:
        """When the process started (in the kernel's ticks) and the UID of its pod, "" without one; None if it does not exist."""
        # The name in it may have spaces and brackets. Field 22 is the start.
        stat, groups = _read(f"{self._proc}/{pid}/stat"), _read(f"{self._proc}/{pid}/cgroup").decode(errors="replace")
        fields = stat.rpartition(b")")[2].split()
        if len(fields) < 20 or not groups:
            return None
        uids = {match.group(1).replace("_", "-") for line in groups.splitlines() for match in map(_POD.search, line.split("/")) if match}
        return int(fields[19]), uids.pop() if len(uids) == 1 else ""

    def groups_of(self, uid: str) -> list[str]:
        """The folders of this pod's control groups; none if it has none, or if this process cannot see them."""
        return (self._groups({uid}) or {}).get(uid, [])

    def group_of_pods(self) -> str | None:
        """kubelet's folder above those of all pods; None if this process cannot see it."""
        for root in self._hierarchies():
            found = _kubepods(root, _DEEPEST)
            if found:
                return found
        return None

    def _names(self, uid: str, group: str, *, deep: bool) -> set[str] | None:
        """The containers of the group's processes, none for the pod's own processes; None if one cannot be attributed."""
        for pid in _members(group, deep=deep):
            mounts = self._mounts(pid)
            # It has ended, or /proc hides it (hidepid): its group decides.
            if not mounts and pid in _members(group, deep=deep):
                return None
            names = {name.decode() for of, name in _CONTAINER.findall(mounts) if of.decode() == uid}
            if names:
                return names
        return set()

    def _mounts(self, pid: str) -> bytes:
        """The mounts of the process; b"" if it cannot read them."""
        # A process with a dead leader has them at its other threads.
        for place in (f"{self._proc}/{pid}/mountinfo", *_threads(f"{self._proc}/{pid}/task")):
            text = _read(place)
            if text:
                return text
        return b""

    def _groups(self, uids: Set[str]) -> dict[str, list[str]] | None:
        """Pod UID → its control groups; None if this process cannot see any pod's groups."""
        for root in self._hierarchies():
            found: dict[str, list[str]] = {}
            if _collect(root, uids, found, _DEEPEST):
                self._blind = False
                return found
        if not self._blind:
            self._blind = True
            log.error(
                "this process sees no control groups of pods: it cannot release the units of orphaned pods. kubelet creates these "
                "groups unless it runs with --cgroups-per-qos=false; this process needs to see the host's"
            )
        return None

    def _hierarchies(self) -> Iterator[str]:
        """Mount points of control groups: version 2, or the controllers of version 1."""
        mounted: dict[str, str] = {}
        for line in _read(f"{self._proc}/self/mountinfo").decode(errors="replace").splitlines():
            left, _, right = line.partition(" - ")
            before, kind = left.split(), right.split()
            if len(before) > 4 and kind and kind[0] in ("cgroup", "cgroup2"):
                names = ["2"] if kind[0] == "cgroup2" else kind[-1].split(",")
                for name in names:
                    mounted.setdefault(name, before[4].encode().decode("unicode_escape"))
        # If both are mounted, kubelet uses version 1, whose controllers have all pods each.
        for name in ("memory", "pids", "devices", "cpu", "2"):
            if name in mounted:
                yield mounted[name]


def _collect(folder: str, uids: Set[str], found: dict[str, list[str]], deep: int) -> bool:
    """Collect the groups of these pods. Returns whether a pod's group, or kubelet's group for pods, is below this one."""
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


def _kubepods(folder: str, deep: int) -> str | None:
    """The first folder of kubelet for pods, whatever is above it."""
    entries = _entries(folder)
    for name, path in entries:
        if _KUBEPODS.search(name):
            return path
    return next(filter(None, (_kubepods(path, deep - 1) for _, path in entries)), None) if deep else None


def _members(group: str, *, deep: bool = True) -> Iterator[str]:
    """The processes in a control group; deep: and in the groups below it."""
    yield from _read(f"{group}/cgroup.procs").decode().split()
    if deep:
        for path in _below(group):
            yield from _members(path)


def _below(group: str) -> list[str]:
    return [path for _, path in _entries(group)]


def _entries(folder: str) -> list[tuple[str, str]]:
    """Name and path of each folder in it; none if it does not exist."""
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
