# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a node is ready although its container runtime was restarted a moment ago.

Pure. The Ready condition of the moment after the restart is that of before it: kubelet asks the runtime every 5 seconds, and tells the API
server within 10 more. So what counts is the condition beside a heartbeat (kubelet's lease, renewed every 10 seconds whatever happens) that
is so much younger. Before Kubernetes 1.14 there is no lease, and the condition has the heartbeat. Both times are of the node's own clock.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Mapping, Optional

from .._formats.answers import ABSENT, ModuleAnswer

#: Seconds after which kubelet has told the API server what it saw of a restarted runtime.
SETTLED = 15.0
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(\.\d{1,9})?Z")


@dataclass(frozen=True)
class NodeReady(ModuleAnswer):
    """The answer of gpushare_node about a node. msg: what it lacks."""

    ready: bool
    msg: Optional[str] = field(default=None, metadata=ABSENT)


def not_ready(node: Optional[Mapping[str, Any]], lease: Optional[Mapping[str, Any]], since: float) -> Optional[str]:
    """None if it is ready, else a message about what is missing. since: Unix time of the restart."""
    if node is None:
        return "the cluster has no such node"
    conditions = (node.get("status") or {}).get("conditions") or ()
    ready = next((condition for condition in conditions if condition.get("type") == "Ready"), None)
    if ready is None or ready.get("status") != "True":
        words = " ".join(str((ready or {}).get("message") or "kubelet has not said why").split())
        return f"its condition Ready is {(ready or {}).get('status', 'missing')}: {words[:300]}"
    said = ready.get("lastHeartbeatTime") if lease is None else (lease.get("spec") or {}).get("renewTime")
    beat = unix_time(str(said))
    if beat is None:
        return "kubelet has no heartbeat, neither in a lease in kube-node-lease nor in the condition Ready"
    if beat < since + SETTLED:
        return f"no heartbeat of kubelet since the restart, which it needs {SETTLED:.0f} s to judge"
    return None


def unix_time(text: str) -> Optional[float]:
    """Of a time as Kubernetes writes it; None if it is none."""
    match = _TIME.fullmatch(text)
    if match is None:
        return None
    try:
        whole = datetime.strptime(match.group(1), "%Y-%m-%dT%H:%M:%S").replace(tzinfo=timezone.utc).timestamp()
    except ValueError:
        return None
    return whole + float(match.group(2) or 0)
