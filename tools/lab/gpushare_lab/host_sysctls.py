# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Kernel settings of the machine that kubelets in nodes change, and that the last instance to go puts back."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from .process import say

#: What every kubelet sets at its start (k8s.io/kubernetes/pkg/util/sysctl); a node shares them with the machine.
KUBELET_SETS = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1000000,
    "kernel/keys/root_maxbytes": 25000000,
}
#: What the lab raises: each node's systemd, containerd and kubelet take some dozens, all as one user.
LAB_RAISES = {"fs/inotify/max_user_instances": 2048, "fs/inotify/max_user_watches": 524288}


def changes(present: Mapping[str, int]) -> dict[str, list[int]]:
    """For each setting that a lab changes: what it is now, and what it will be."""
    target = {**KUBELET_SETS, **{key: max(value, present.get(key, 0)) for key, value in LAB_RAISES.items()}}
    return {key: [present[key], target[key]] for key in target if key in present and present[key] != target[key]}


def prepare(record: Path, proc_sys: Path = Path("/proc/sys")) -> None:
    """Write down what will be changed, once for all instances, and raise the limits that nodes need."""
    present = {key: int((proc_sys / key).read_text()) for key in (*KUBELET_SETS, *LAB_RAISES) if (proc_sys / key).exists()}
    if not record.exists():
        record.parent.mkdir(parents=True, exist_ok=True)
        partial = record.with_suffix(".partial")
        partial.write_text(json.dumps(changes(present), indent=2) + "\n")
        partial.rename(record)
    for key in LAB_RAISES:
        if (before_after := changes(present).get(key)) is not None:
            (proc_sys / key).write_text(str(before_after[1]))


def restore(record: Path, proc_sys: Path = Path("/proc/sys")) -> None:
    """Put back each setting that still is what the lab made it, and forget the record."""
    if not record.exists():
        return
    for key, (before, changed) in json.loads(record.read_text()).items():
        path = proc_sys / key
        if path.exists() and int(path.read_text()) == changed:
            path.write_text(str(before))
            say(f"kernel setting {key.replace('/', '.')}: {before} again")
    record.unlink()
