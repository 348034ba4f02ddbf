# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The scheduler's configuration on a host that has not joined yet: `kubeadm join` starts a kube-scheduler that names it at once.

kubeadm writes the manifest of every control plane from the ClusterConfiguration of the cluster, and copies no file along. So the
configuration must be there before, as another control plane has it; afterwards the role scheduler keeps it.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import Dict, List, Mapping

from .._change.transaction import Transaction
from .._formats.answers import DiffPart, ModuleAnswer
from .._formats.failure import Failure
from .._host.files import read_state
from .apply import FOLDER, OWNER
from .manifest import annotation_in, config_paths

MOST_BYTES = 1 << 20
MOST_FILES = 8
#: Below it a host takes files that another host has sent, except for those that kubelet would run.
TREE, STATIC_PODS = "/etc/kubernetes/", "/etc/kubernetes/manifests/"


@dataclass(frozen=True)
class SchedulerRead(ModuleAnswer):
    """The answer of kube_scheduler_extender that has read the files of a control plane: path to text."""

    files: Dict[str, str]


@dataclass(frozen=True)
class SchedulerWritten(ModuleAnswer):
    """The answer of kube_scheduler_extender that has written files for a join. kept: those that are there and differ."""

    kept: List[str]
    diff: List[DiffPart]


class JoinError(Failure):
    """The host cannot be prepared; says what was found and what to do. Nothing was changed."""


def read(manifest: str) -> Dict[str, str]:
    """Path to text of the files that this control plane's kube-scheduler reads, for others that are to join."""
    found = read_state(manifest)
    text = None if found is None else found.content.decode()
    if text is None or annotation_in(text) is None:
        seen = "does not exist" if text is None else "does not call the extender"
        raise JoinError(
            f"{manifest} {seen}; expected a kube-scheduler that this collection has configured: run site.yml for the control planes that "
            "have joined, then prepare this host"
        )
    files: Dict[str, str] = {}
    for path in config_paths(text):
        state = read_state(path)
        if state is None:
            continue
        if len(state.content) > MOST_BYTES:
            raise JoinError(f"{path[:80]} has {len(state.content)} bytes; expected {MOST_BYTES} at most")
        files[path] = state.content.decode()
    return files


def plan(transaction: Transaction, files: Mapping[str, str]) -> "tuple[str, ...]":
    """Plan the files that this host lacks. The paths of those that are there and differ, which stay: the role scheduler merges them."""
    if len(files) > MOST_FILES:
        raise JoinError(f"{len(files)} files; expected {MOST_FILES} at most, as a kube-scheduler names them")
    kept = []
    known = {entry.path: entry for entry in transaction.journal.entries() if entry.owner == OWNER}
    for path, text in sorted(files.items()):
        outside = not path.startswith(TREE) or path.startswith(STATIC_PODS)
        if outside or os.path.normpath(path) != path or len(text.encode()) > MOST_BYTES:
            raise JoinError(
                f"{path[:80]!r} is not a configuration that can be copied; expected {MOST_BYTES} bytes at most, below {TREE} and not below "
                f"{STATIC_PODS}: copy it to this host by hand, then run again"
            )
        real = os.path.join(transaction.root, path.lstrip("/"))
        now = read_state(real)
        if now is not None and now.content != text.encode() and not (path in known and known[path].untouched(now.content)):
            kept.append(path)
            continue
        folder = os.path.dirname(path)
        if not os.path.isdir(os.path.dirname(real)):
            transaction.note(FOLDER + folder, None, b"")
        transaction.write(path, text.encode())
    return tuple(kept)
