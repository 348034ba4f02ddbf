# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which running containers would lose their GPUs at a `systemctl daemon-reload`.

systemd then writes the device rules of every unit again, from what it knows. A container is exposed if systemd manages its cgroup
(the systemd cgroup driver), restricts devices there, and does not know one of the GPUs that the container has: NVIDIA's runtime
gave it in legacy mode, or there was no link in /dev/char. So each container's own cgroup, devices and unit are asked, no configuration.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass
from typing import Dict, List, Optional, Tuple

from .._formats.finding import few
from .._host.command import Run
from .._host.systemd import show_command

_GPU = re.compile(r"nvidia\d+")
# A host with more processes or GPUs than that is not read any further.
_MOST_PROCESSES = 100_000
_MOST_FILES = 4096


@dataclass(frozen=True)
class Container:
    """GPUs that processes with one mount namespace see. unit: of systemd, "" for none; devices: name to (major, minor)."""

    unit: str
    devices: Dict[str, Tuple[int, int]]


def exposed(run: Run, root: str = "/") -> Optional[str]:
    """Why a daemon-reload would hurt, None if it would not."""
    hurt = [f"{container.unit} ({', '.join(names)})" for container in containers(root) for names in [_lost(container, run, root)] if names]
    return f"That would take the GPUs from running containers: {few(sorted(hurt), 3)}" if hurt else None


def containers(root: str = "/") -> List[Container]:
    """The containers that have GPUs and that systemd manages, each once."""
    proc = os.path.join(root, "proc")
    own, seen, found = _link(os.path.join(proc, "1/ns/mnt")), set(), []
    names = os.listdir(proc) if os.path.isdir(proc) else []
    for pid in sorted((name for name in names if name.isdigit()), key=int)[:_MOST_PROCESSES]:
        unit = _unit_of(os.path.join(proc, pid, "cgroup"))
        namespace = _link(os.path.join(proc, pid, "ns/mnt"))
        if not unit or namespace in ("", own) or (namespace, unit) in seen:
            continue
        seen.add((namespace, unit))
        devices = _gpus(os.path.join(proc, pid, "root/dev"))
        if devices:
            found.append(Container(unit, devices))
    return found


def _lost(container: Container, run: Run, root: str) -> List[str]:
    """Its GPUs that systemd does not know."""
    status, out, _err = run(show_command(container.unit, "DevicePolicy", "DeviceAllow"))
    lines = out.splitlines()
    if status != 0 or not any(line.startswith("DevicePolicy=") for line in lines):
        # A container whose unit cannot be asked may be hurt.
        return sorted(container.devices)
    allowed = {line.partition("=")[2].split(" ")[0] for line in lines if line.startswith("DeviceAllow=") and line.partition("=")[2]}
    if "DevicePolicy=auto" in lines and not allowed:
        return []
    return sorted(name for name, number in container.devices.items() if not _known(name, number, allowed, root))


def _known(name: str, number: Tuple[int, int], allowed: "set[str]", root: str) -> bool:
    """Whether one of systemd's rules is about this device, and systemd will find it again."""
    if {"char-*", "char-nvidia", "char-nvidia-frontend"} & allowed:
        return True
    return any(
        path in allowed and _number(os.path.join(root, path.lstrip("/"))) == number
        for path in (f"/dev/char/{number[0]}:{number[1]}", f"/dev/{name}")
    )


def _gpus(folder: str) -> Dict[str, Tuple[int, int]]:
    try:
        names = [name for name in os.listdir(folder)[:_MOST_FILES] if _GPU.fullmatch(name)]
    except OSError:
        return {}
    numbers = {name: _number(os.path.join(folder, name)) for name in names}
    return {name: number for name, number in numbers.items() if number is not None}


def _number(path: str) -> Optional[Tuple[int, int]]:
    """The numbers of a character device, None for anything else."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return (os.major(found.st_rdev), os.minor(found.st_rdev)) if stat.S_ISCHR(found.st_mode) else None


def _unit_of(path: str) -> str:
    """The scope of systemd whose device rules a process has; "" for none: its cgroup is not systemd's, or it is a service's own."""
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            lines = [line.rstrip("\n").split(":", 2) for line in stream.read(65536).splitlines()]
    except OSError:
        return ""
    groups = {controller: line[2] for line in lines if len(line) == 3 for controller in line[1].split(",")}
    # With both versions mounted, devices belong to the first.
    parts = groups.get("devices", groups.get("", "")).split("/")
    return next((part for part in reversed(parts) if part.endswith(".scope")), "")


def _link(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
