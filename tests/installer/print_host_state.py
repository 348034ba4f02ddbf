# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Runs on a node: prints as JSON every file that an installer could touch, and which units run since when. Changes nothing."""

import glob
import hashlib
import json
import os
import stat
import subprocess
from typing import Any

WATCHED = ("/etc", "/opt", "/usr/local", "/usr/lib/systemd", "/var/lib/gpushare*", "/var/lib/private/gpushare*")


def state_of(path: str) -> list[Any]:
    """Everything that a write would change."""
    found = os.lstat(path)
    content = ""
    if stat.S_ISLNK(found.st_mode):
        content = os.readlink(path)
    elif stat.S_ISREG(found.st_mode):
        with open(path, "rb") as file:
            content = hashlib.sha256(file.read()).hexdigest()
    return [oct(found.st_mode), found.st_uid, found.st_gid, found.st_ino, found.st_mtime_ns, found.st_ctime_ns, content]


def files() -> dict[str, list[Any]]:
    found: dict[str, list[Any]] = {}
    for top in (path for pattern in WATCHED for path in glob.glob(pattern)):
        found[top] = state_of(top)
        for folder, folders, names in os.walk(top):
            found.update((path, state_of(path)) for path in (os.path.join(folder, name) for name in folders + names))
    return found


def units() -> dict[str, Any]:
    """Active services by their current start, and when units were last loaded from their files."""
    command = [
        "systemctl",
        "show",
        "--type=service",
        "--state=active",
        "--property=Id,InvocationID,ActiveEnterTimestampMonotonic,MainPID",
        "*",
    ]
    found: dict[str, Any] = {}
    for block in subprocess.check_output(command, text=True).strip().split("\n\n"):
        values = dict(line.split("=", 1) for line in block.splitlines())
        # A login's own, which come and go with the connection.
        if not values.get("Id", "").startswith("user"):
            found[values["Id"]] = values
    loaded = ["systemctl", "show", "--property=UnitsLoadStartTimestampMonotonic"]
    return {**found, "systemd itself": subprocess.check_output(loaded, text=True).strip()}


print(json.dumps({"files": files(), "units": units()}))
