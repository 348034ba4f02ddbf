# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Which pods, and which of their containers, still have a process on this host, whatever kubelet and the API server report.

It reads the pods' control groups, not the processes: some processes no longer name their group, but remain in its `cgroup.procs`.
These are processes with a dead leader and a live thread, and every exiting process on control groups v1. It does not query the
container runtime: a process uses a GPU's memory even if the runtime has lost its container.

A name verifies nothing: any user of the host may create groups below his own, and a container below its own. So a pod's group is one of
root, directly in kubelet's group for all pods or in a QoS class there. Groups that a pod's containers create below it are the pod's.
"""

from __future__ import annotations

import logging
import math
import os
import re
import time
from collections.abc import Callable, Iterator, Sequence, Set
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Final

from gpushare_runtime.daemon.processes import PROC, started

log = logging.getLogger(__name__)

# The pod's UID in the name of its control group: `pod<uid>` (cgroupfs), `…-pod<uid with _ for ->.slice` (systemd), a static
# pod's UID without dashes.
_POD: Final = re.compile(r"(?:.+-)?pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?:\.slice)?", re.DOTALL)
# kubelet's group above all pods: `kubepods` in the group of its --cgroup-root (cgroupfs), or a slice of systemd.
_KUBEPODS: Final = "kubepods"
_KUBEPODS_SLICE: Final = re.compile(r"(?:(.+)-)?kubepods\.slice", re.DOTALL)
# Groups of a service, of a session or of a container: no kubelet has its --cgroup-root below, unless in a container of its own.
_OF_OTHERS: Final = re.compile(r"\.(?:scope|service)$|[0-9a-f]{64}")
# kubelet mounts a termination log into every container; the path has the pod's UID and the container's name.
_CONTAINER: Final = re.compile(rb"/pods/([0-9a-f-]{32,36})/containers/([a-z0-9.-]{1,253})/[0-9a-f]{1,16}(?://deleted)? ")
# As every container runtime names a container, and its group.
_CONTAINER_ID: Final = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
_ESCAPED: Final = re.compile(rb"\\([0-7]{3})")
# kubelet's group may be below others.
_DEEPEST: Final = 12
# More groups than anything has below it, unless a person makes them on purpose.
_MOST_GROUPS: Final = 4096
# Each container has a memory limit of its own: more than the 250 that the extender places, with those that have ended.
_MOST_CONTAINERS: Final = 512
_UNSEEN: Final = ""
"""In the place of the processes of further groups."""
_LARGEST: Final = 4 * 1024 * 1024
# kubelet's group changes only with its configuration.
_KNOWN_SECONDS: Final = 10.0
_ROOT: Final = 0


def owner_of(folder: str) -> int:
    """The user that created it; -1 if it does not exist."""
    try:
        return os.lstat(folder).st_uid
    except OSError:
        return -1


@dataclass(frozen=True)
class _Hierarchy:
    """A mount of control groups. name: a controller of version 1, "" for version 2; top: the group that is mounted at `mount`.

    own: where this process's cgroup namespace begins below the mount, "" where that is at the top or unknown. The kernel writes all
    paths from there: the group of another pod is /../../<pod>/<container>, and the host's top has a ".." for each level.
    """

    name: str
    mount: str
    top: str
    own: str = ""

    def folder(self, lines: str) -> str | None:
        """The folder of a process by its /proc/PID/cgroup; None if it is outside of the mount."""
        # Only a newline ends a line: every other character may be part of a group's name.
        for line in lines.split("\n"):
            number, _, rest = line.partition(":")
            names, _, group = rest.partition(":")
            if (self.name in names.split(",")) if self.name else (number, names) == ("0", ""):
                if self.levels:
                    return self._resolved(group)
                below = group.removeprefix(self.top.rstrip("/"))
                inside = len(below) < len(group) or self.top == "/"
                return f"{self.mount}{below}" if inside and below.startswith("/") and ".." not in below.split("/") else None
        return None

    @property
    def levels(self) -> int:
        """How many levels this process's cgroup namespace begins below the mount's top."""
        return self.top.count("/") if re.fullmatch(r"(?:/\.\.)+", self.top) else 0

    def _resolved(self, group: str) -> str | None:
        """The folder of a group that is written from this process's cgroup namespace; None if it is outside of the mount or unknown."""
        base, names = self.own.split("/")[1:] or [".."] * self.levels, group.split("/")[1:]
        while names and base and names[0] == "..":
            del names[0], base[-1]
        parts = [*base, *filter(None, names)]
        return None if ".." in parts else "/".join([self.mount, *parts])


def pod_of(folder: str, kubepods: str) -> tuple[str, str] | None:
    """The pod's own folder and its UID, for a folder below kubelet's; None for any other folder."""
    if not folder.startswith(f"{kubepods}/"):
        return None
    place = kubepods
    # In a QoS class or beside them.
    for name in folder[len(kubepods) + 1 :].split("/")[:2]:
        place = f"{place}/{name}"
        if uid := _uid(name):
            return place, uid
    return None


class HostProcesses:
    """As the kernel reports them. Needs the host's control groups and process namespace.

    owner: the user of a folder. clock: monotonic seconds. root: where the host's control groups are mounted, None for the first mount.
    """

    def __init__(
        self,
        proc: Path = PROC,
        owner: Callable[[str], int] = owner_of,
        clock: Callable[[], float] = time.monotonic,
        root: Path | None = None,
    ) -> None:
        self._proc = proc
        self._root = root
        self._owner = owner
        self._clock = clock
        self._blind = False
        self._known: tuple[_Hierarchy, Sequence[str]] | None = None
        self._known_at = -math.inf

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
            parts = [group, *islice(_below(group), _MOST_GROUPS)]
            for part in parts:
                names = self._names(uid, part, deep=part != group)
                if names is None or len(parts) > _MOST_GROUPS:
                    return None
                found |= names
        return found

    def identify(self, pid: int) -> tuple[int, str] | None:
        """When the process started (in the kernel's ticks) and the UID of its pod, "" without one; None if it does not exist."""
        start, groups = started(pid, self._proc), os.fsdecode(_read(f"{self._proc}/{pid}/cgroup"))
        return (start, self._pod(groups)) if start is not None and groups else None

    def is_still(self, pid: int, known: tuple[int, str]) -> bool:
        """Whether this is the process that `identify` has found. A process stays in its pod, unless root of the host moves it. A container
        runtime moves processes into pods: only of those outside the group is read again."""
        return started(pid, self._proc) == known[0] if known[1] else self.identify(pid) == known

    def container_of(self, pid: int) -> str:
        """The ID of the process's container, by the name of its group; "" where that has none, or the process is of no pod."""
        groups = os.fsdecode(_read(f"{self._proc}/{pid}/cgroup"))
        if not self._pod(groups) or self._known is None:
            return ""
        hierarchy, roots = self._known
        folder = hierarchy.folder(groups) or ""
        pod = next((found[0] for root in roots if (found := pod_of(folder, root))), folder)
        named = _CONTAINER_ID.search(folder[len(pod) + 1 :].partition("/")[0])
        return named[0] if named else ""

    def processes_of(self, uid: str, most: int) -> Sequence[tuple[int, int]]:
        """At most so many processes of this pod: number and start, in the kernel's ticks."""
        pids = (pid for group in self.groups_of(uid) for pid in _members(group) if pid.isdigit())
        known = ((int(pid), self.identify(int(pid))) for pid in islice(pids, most))
        return [(pid, found[0]) for pid, found in known if found is not None and found[1] == uid]

    def _pod(self, groups: str) -> str:
        """The UID of the pod of a process with these groups, "" without one."""
        if self._clock() - self._known_at > _KNOWN_SECONDS:
            self._find()
        if self._known is None:
            return ""
        hierarchy, roots = self._known
        folder = hierarchy.folder(groups)
        found = next(filter(None, (pod_of(folder, root) for root in roots)), None) if folder else None
        return found[1] if found and self._owner(found[0]) == _ROOT else ""

    def groups_of(self, uid: str) -> list[str]:
        """The folders of this pod's control groups; none if it has none, or if this process cannot see them."""
        return (self._groups({uid}) or {}).get(uid, [])

    def group_of_pods(self) -> str | None:
        """kubelet's folder above those of all pods; None if this process cannot see it."""
        found = self._find()
        return found[0] if found else None

    @staticmethod
    def groups_in(group: str) -> list[str]:
        """The folders directly below a pod's group: those of its containers, also of those with users of their own. At most 512."""
        return list(islice(_below(group), _MOST_CONTAINERS))

    def _names(self, uid: str, group: str, *, deep: bool) -> set[str] | None:
        """The containers of the group's processes, none for the pod's own processes; None if one cannot be attributed."""
        for pid in _members(group, deep=deep):
            mounts = self._mounts(pid)
            # It has ended, or /proc hides it (hidepid): its group decides.
            if not mounts and pid in _members(group, deep=deep):
                return None
            names = {name.decode() for pod, name in _CONTAINER.findall(mounts) if pod.decode() == uid}
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
        """Pod UID → its control groups; None if this process cannot see kubelet's group for pods."""
        roots = self._find()
        if not roots:
            if not self._blind:
                self._blind = True
                log.error(
                    "this process sees no control groups of pods: it cannot release the units of orphaned pods. kubelet creates these "
                    "groups unless it runs with --cgroups-per-qos=false; this process needs to see the host's%s",
                    f", mounted at {self._root} (--cgroup-root)" if self._root else "",
                )
            return None
        self._blind = False
        found: dict[str, list[str]] = {}
        for root in roots:
            for name, path in self._of_root(root):
                # In a QoS class or beside them.
                for inner, group in [(name, path)] if _uid(name) else self._of_root(path):
                    if (uid := _uid(inner)) in uids:
                        found.setdefault(uid, []).append(group)
        return found

    def _find(self) -> Sequence[str]:
        """kubelet's groups for all pods, the highest first. Two, where its settings have changed since the host has started."""
        found = ((hierarchy, self._kubepods(hierarchy.mount)) for hierarchy in self._hierarchies())
        known = next(((hierarchy, groups) for hierarchy, groups in found if groups), None)
        self._known = (replace(known[0], own=self._namespace(known[0])), known[1]) if known else None
        self._known_at = self._clock()
        return self._known[1] if self._known else ()

    def _kubepods(self, mount: str) -> list[str]:
        found: list[str] = []
        level = [mount]
        for _ in range(_DEEPEST):
            below: list[str] = []
            for name, path in (
                subfolder for folder in level[:_MOST_GROUPS] for subfolder in sorted(islice(self._of_root(folder), _MOST_GROUPS))
            ):
                if name == _KUBEPODS or _slice(name) == path[len(mount) :]:
                    found.append(path)
                elif not _OF_OTHERS.search(name):
                    below.append(path)
            level = below
        return found

    def _namespace(self, hierarchy: _Hierarchy) -> str:
        """Where the cgroup namespace of this process begins below the mount: no file says it, so the process finds itself."""
        if not hierarchy.levels:
            return ""
        if self._known and self._known[0].own and hierarchy == replace(self._known[0], own=""):
            return self._known[0].own
        level, own = [hierarchy.mount], str(os.getpid())
        for _ in range(hierarchy.levels):
            level = list(islice((path for folder in level for _, path in self._of_root(folder)), _MOST_GROUPS))
        return next((path[len(hierarchy.mount) :] for path in level if own in _members(path)), "")

    def _of_root(self, folder: str) -> Iterator[tuple[str, str]]:
        """Name and path of each folder in it that root has created."""
        return ((name, path) for name, path in _entries(folder) if self._owner(path) == _ROOT)

    def _hierarchies(self) -> Iterator[_Hierarchy]:
        """The mounts of control groups: version 2, or the controllers of version 1."""
        mounted: dict[str, _Hierarchy] = {}
        for line in _read(f"{self._proc}/self/mountinfo").split(b"\n"):
            left, _, right = line.partition(b" - ")
            before, kind = left.split(), right.split()
            if len(before) > 4 and kind and kind[0] in (b"cgroup", b"cgroup2"):
                top, mount = (os.fsdecode(_ESCAPED.sub(lambda code: bytes([int(code[1], 8) & 0xFF]), text)) for text in before[3:5])
                if self._root and self._root not in (Path(mount), Path(mount).parent):
                    continue
                for name in [""] if kind[0] == b"cgroup2" else os.fsdecode(kind[-1]).split(","):
                    # A container's own mount may lie below the host's that was mounted over it.
                    mounted[name] = _Hierarchy(name, mount, top) if self._root else mounted.get(name) or _Hierarchy(name, mount, top)
        # If both are mounted, kubelet uses version 1, whose controllers have all pods each.
        for name in ("memory", "pids", "devices", "cpu", ""):
            if name in mounted:
                yield mounted[name]


def _uid(name: str) -> str:
    """The UID of the pod whose group has this name, "" for any other."""
    match = _POD.fullmatch(name)
    return match.group(1).replace("_", "-") if match else ""


def _slice(name: str) -> str | None:
    """Where systemd has the slice for all pods of this name, below the top: `a-b.slice` is in `a.slice`. None for any other name."""
    match = _KUBEPODS_SLICE.fullmatch(name)
    if match is None:
        return None
    parts = match.group(1).split("-") if match.group(1) else []
    above = ["-".join(parts[:count]) for count in range(1, len(parts) + 1)]
    return "".join(f"/{part}.slice" for part in above) + f"/{name}"


def _members(group: str, *, deep: bool = True) -> Iterator[str]:
    """The processes in a control group; deep: and in the groups below it, then _UNSEEN where these are too many."""
    groups, seen = [group], 0
    while groups and seen < _MOST_GROUPS:
        seen += 1
        at = groups.pop()
        yield from _read(f"{at}/cgroup.procs").decode(errors="replace").split()
        if deep:
            groups += islice(_below(at), _MOST_GROUPS - len(groups))
    if groups:
        yield _UNSEEN


def _below(group: str) -> Iterator[str]:
    return (path for _, path in _entries(group))


def _entries(folder: str) -> Iterator[tuple[str, str]]:
    """Name and path of each folder in it; none if it does not exist."""
    try:
        with os.scandir(folder) as entries:
            yield from ((entry.name, entry.path) for entry in entries if entry.is_dir(follow_symlinks=False))
    except OSError:
        return


def _threads(folder: str) -> Iterator[str]:
    for _, path in _entries(folder):
        yield f"{path}/mountinfo"


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(_LARGEST)
    except OSError:
        return b""
