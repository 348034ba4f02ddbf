# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Runs on a node: prints, for each container id given, what its first process has in /dev and in its environment, as JSON."""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys


def nvidia_files(root: str) -> list[str]:
    """Everything below /dev whose path names NVIDIA, relative to /dev."""
    found = []
    for folder, folders, files in os.walk(root):
        paths = [os.path.relpath(os.path.join(folder, name), root) for name in folders + files]
        found += [path for path in paths if path.startswith("nvidia")]
    return sorted(found)


def state_of(pid: str) -> dict[str, object]:
    with open(f"/proc/{pid}/environ", "rb") as file:
        words = file.read().decode(errors="replace").split("\0")
    return {"devices": nvidia_files(f"/proc/{pid}/root/dev"), "environment": dict(word.split("=", 1) for word in words if "=" in word)}


def main() -> None:
    pids = {}
    # docker's containers are in a namespace of containerd of their own.
    for namespace in ("k8s.io", "moby"):
        tasks = subprocess.run(["ctr", "-n", namespace, "tasks", "ls"], check=True, capture_output=True, text=True).stdout
        pids.update({fields[0]: fields[1] for fields in map(str.split, tasks.splitlines()[1:])})
    # CRI-O's are in none.
    for path in pathlib.Path("/run/containers/storage/overlay-containers").glob("*/userdata/pidfile"):
        pids[path.parts[-3]] = path.read_text()
    missing = [identity for identity in sys.argv[1:] if identity not in pids]
    if missing:
        sys.exit(f"no container runtime has a process of {', '.join(missing)}")
    print(json.dumps({identity: state_of(pids[identity]) for identity in sys.argv[1:]}))


main()
