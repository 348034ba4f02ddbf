# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Runs on a node until standard input ends: one JSON line for each grant in kubelet's record, container start and process end.

Times are seconds of CLOCK_BOOTTIME, which all nodes of a lab share. A container is its PID 1: when that has ended, no process
of its PID namespace is left. The end is the kernel's word (pidfd), the start is the kernel's (/proc/PID/stat).
"""

from __future__ import annotations

import json
import os
import re
import select
import sys
import time

CHECKPOINT = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
RESOURCE = "aliyun.com/gpu-mem"
VARIABLES = ("ALIYUN_COM_GPU_MEM_IDX", "ALIYUN_COM_GPU_MEM_POD", "ALIYUN_COM_GPU_MEM_CONTAINER", "ALIYUN_COM_GPU_MEM_DEV")
# Where our pods say which container this is.
NAME = "CHURN_CONTAINER"

# kubelet writes its record within a few milliseconds of an Allocate, and a moment later the next one.
RECORD_SECONDS = 0.005
SCAN_SECONDS = 0.05
# A process becomes a container's when runc has prepared it; until then it is looked at again.
UNDECIDED_SECONDS = 20.0

CGROUP = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}).*?([0-9a-f]{64})")
TICKS = os.sysconf("SC_CLK_TCK")


def now() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def say(event: str, at: float, **what: object) -> None:
    sys.stdout.write(json.dumps({"event": event, "t": round(at, 4), **what}) + "\n")
    sys.stdout.flush()


class Record:
    """What is new in kubelet's record since the last look; nothing at the first one."""

    def __init__(self) -> None:
        self._identity: object = None
        self._known: dict[tuple[str, str], list[str]] | None = None

    def look(self) -> None:
        try:
            with open(CHECKPOINT, "rb") as file:
                stat = os.fstat(file.fileno())
                if (stat.st_ino, stat.st_mtime_ns) == self._identity:
                    return
                entries = json.load(file)["Data"]["PodDeviceEntries"] or []
        except FileNotFoundError:
            self._known = self._known or {}
            return
        self._identity = (stat.st_ino, stat.st_mtime_ns)
        found = {}
        for entry in entries:
            if entry["ResourceName"] == RESOURCE:
                found[entry["PodUID"], entry["ContainerName"]] = sorted(i for ids in entry["DeviceIDs"].values() for i in ids)
        for (uid, container), ids in found.items():
            if self._known is not None and self._known.get((uid, container)) != ids:
                say("given", stat.st_mtime_ns / 1e9 + OFFSET, uid=uid, container=container, ids=ids)
        self._known = found


# A file's times are of the other clock.
OFFSET = now() - time.time()


class Processes:
    """First processes of containers with units, from their start to their end."""

    def __init__(self, poll: select.poll) -> None:
        self._poll = poll
        self._settled: set[str] = set()
        self._first_seen: dict[str, float] = {}
        self._containers: dict[int, str] = {}

    def scan(self) -> None:
        at = now()
        pids = {name for name in os.listdir("/proc") if name.isdigit()}
        self._settled &= pids
        self._first_seen = {pid: self._first_seen.get(pid, at) for pid in pids - self._settled}
        for pid, since in self._first_seen.items():
            if self._look(pid) or at - since > UNDECIDED_SECONDS:
                self._settled.add(pid)

    def _look(self, pid: str) -> bool:
        """Whether it is now a container's first process, and said to be so."""
        try:
            with open(f"/proc/{pid}/environ", "rb") as file:
                data = file.read()
            if VARIABLES[0].encode() not in data:
                return False
            watch = os.pidfd_open(int(pid))
        except OSError:
            return False
        try:
            status, stat, cgroup = (_text(f"/proc/{pid}/{name}") for name in ("status", "stat", "cgroup"))
            devices = sorted(name for name in os.listdir(f"/proc/{pid}/root/dev") if re.fullmatch(r"nvidia\d+", name))
        except OSError:
            os.close(watch)
            return False
        namespaces = re.search(r"^NSpid:\s+(.*)$", status, re.M)
        where = CGROUP.search(cgroup)
        if not where or not namespaces or namespaces[1].split()[-1] != "1":
            # A child of one.
            os.close(watch)
            return True
        words = dict(word.split("=", 1) for word in data.decode(errors="replace").split("\0") if "=" in word)
        started = int(stat.rpartition(") ")[2].split()[19]) / TICKS
        self._containers[watch] = where[2]
        self._poll.register(watch, select.POLLIN)
        say(
            "start", started, uid=where[1].replace("_", "-"), id=where[2], container=words.get(NAME, ""), devices=devices,
            environment={name: words[name] for name in VARIABLES if name in words},
        )  # fmt: skip
        return True

    def ended(self, watch: int) -> None:
        self._poll.unregister(watch)
        os.close(watch)
        say("end", now(), id=self._containers.pop(watch))


def _text(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def main() -> None:
    # A start is only seen while the process lives: what keeps the node busy must not keep this from looking.
    os.nice(-20)
    poll = select.poll()
    poll.register(0, select.POLLIN | select.POLLHUP)
    record, processes, scanned = Record(), Processes(poll), 0.0
    record.look()
    say("ready", now())
    while True:
        for watch, _ in poll.poll(RECORD_SECONDS * 1000):
            if watch == 0:
                if not os.read(0, 4096):
                    return
            else:
                processes.ended(watch)
        record.look()
        if now() - scanned >= SCAN_SECONDS:
            scanned = now()
            processes.scan()


main()
