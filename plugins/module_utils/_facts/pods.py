# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The pod of a process: its UID by the process's control group, its name by kubelet's folder of logs.

Read-only; asks neither the API server nor the container runtime.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, List, Optional, Tuple

from .._host.host import Host

_LOGS = "/var/log/pods"
# A pod's UID in the name of its control group: pod<uid>, …-pod<uid with _ for ->.slice, a static pod's without dashes.
_POD = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?![0-9a-f])")
# Neither a namespace nor a pod's name has an underscore. kubelet names the folder of a static pod by its hash.
_FOLDER = re.compile(r"([a-z0-9-]{1,63})_([a-z0-9.-]{1,253})_([0-9a-f-]{32,36})")


@dataclass(frozen=True)
class Pod:
    """uid: as in the API, or a static pod's hash; namespace, name: None where kubelet keeps no logs of it."""

    uid: str
    namespace: Optional[str] = None
    name: Optional[str] = None

    def __str__(self) -> str:
        return f"pod {self.namespace}/{self.name}" if self.name else f"pod {self.uid}"


def uids_in(control_groups: str) -> List[str]:
    """The UIDs of pods in the text of /proc/PID/cgroup."""
    return [uid.replace("_", "-") for uid in _POD.findall(control_groups)]


class Pods:
    """The pods of one host."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._names: Optional[Dict[str, Tuple[str, str]]] = None

    def of(self, pid: int) -> Optional[Pod]:
        """The pod that this process runs in, None for a process of no pod, or one that is gone."""
        uid = next(iter(uids_in(self._host.text(f"/proc/{pid}/cgroup") or "")), None)
        if uid is None:
            return None
        if self._names is None:
            folders = (_FOLDER.fullmatch(name) for name in self._host.names(_LOGS))
            self._names = {match.group(3): (match.group(1), match.group(2)) for match in folders if match is not None}
        return Pod(uid, *self._names.get(uid, (None, None)))
