# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Whether a daemon that runs can do its work: what the device plugin says of the API server, and the folder for a daemon's state."""

from __future__ import annotations

import os
import posixpath
import re
from functools import partial
from typing import Final

from gpushare_runtime.doctor.findings import SITE, Findings
from gpushare_runtime.doctor.host import DaemonUnit, HostReader, shown

# As the plugin's status has its parts `API server` and `token`, degraded.
_BLIND: Final = re.compile(r"(?:^|; )((?:API server: (?:not reached|silent)|token: no token works).*)")
_WATCHES: Final = re.compile(r"(?:^|; )API server: watching")
# OpenSSL's reason, as Python has it.
_NOT_TRUSTED: Final = "CERTIFICATE_VERIFY_FAILED"
_SERVER: Final = re.compile(r"^\s*['\"]?server['\"]?:\s*['\"]?(https?://[^\s'\"]{1,200})", re.MULTILINE)
# A state file has some kB, one with thousands of ids some hundred.
_LEAST_BYTES: Final = 1024 * 1024


def judge_words(found: Findings, host: HostReader, unit: DaemonUnit) -> None:
    """Whether the device plugin, which runs, knows the pods of its node; one that was just started gets time for it."""

    def well(seen: DaemonUnit) -> bool:
        # In its first seconds it says nothing of the API server; one that is not ready says why instead.
        return _BLIND.search(seen.status) is None and (seen.active != "active" or _WATCHES.search(seen.status) is not None)

    unit = unit if well(unit) else host.wait(partial(host.unit, unit.name), well)
    if well(unit):
        return
    blind = _BLIND.search(unit.status)
    path = unit.file("kubeconfig")
    server = _SERVER.search((host.read(path) or b"").decode("utf-8", "replace"))
    cure = f"journalctl -u {unit.name} -n 50 says why; {SITE}: it writes a new kubeconfig and token"
    if blind and _NOT_TRUSTED in blind[1]:
        cure = f"{path} has another authority than its API server shows, as after a cluster was built again: {cure}"
    elif server:
        cure = f"is {server[1]} in {path} your API server, and does curl -k {server[1]}/version on this host answer? {cure}"
    found.error(
        "plugin_not_synced",
        f"a device plugin that says {shown(blind[1]) if blind else 'nothing of the API server'}",
        "one that watches the pods of its node",
        cure,
    )


def judge_state_folder(found: Findings, host: HostReader, unit: DaemonUnit) -> None:
    """Whether the daemon can write what its next process needs."""
    file = unit.option("token-file")
    folder = posixpath.dirname(file)
    try:
        disk = os.statvfs(host.at(folder)) if file else None
    except OSError:
        return  # systemd makes it at the start
    if disk is None:
        return
    read_only = bool(disk.f_flag & os.ST_RDONLY)
    free = disk.f_bavail * disk.f_frsize
    # A file system without a number of inodes has as many as it needs.
    no_inode = disk.f_files > 0 and disk.f_favail == 0
    if read_only or free < _LEAST_BYTES or no_inode:
        seen = "read-only" if read_only else f"{free // 1024} KiB free" if free < _LEAST_BYTES else "no inode free"
        room = (
            f"see dmesg, then: mount -o remount,rw $(findmnt -n -o TARGET -T {folder})"
            if read_only
            else f"free space on it: df -h {folder}; df -i {folder}"
        )
        cure = f"{room}; then: systemctl restart {unit.name}"
        words = "a folder that the daemon can write: without it the next process knows neither token nor usage"
        found.error("state_not_kept", f"{folder} with {seen}" if not read_only else f"{folder} {seen}", words, cure)
