# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The verification that a changed kube-scheduler works: its pod runs as written, it holds its lease, it has called the extender.

Each check takes what the API server or the extender answered and returns what is still missing, or None; nothing here waits or calls.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence

from .._cluster.names import ANNOTATION_MIRROR, ANNOTATION_SCHEDULER_CONFIG, NAMESPACE
from .._formats.failure import Failure
from .manifest import SchedulerManifest, is_scheduler

# A container that has ended this often will not come up by waiting.
HOPELESS_RESTARTS = 2
#: Of a pod without a condition of the scheduler.
NOT_TRIED = "the scheduler has not tried it"
#: Before the last Warning about a probe pod that does not run.
LAST_EVENT = "its last Event: "
#: The securityContext of a probe pod's container, which needs no right at all. The user is that of the sandbox's own image.
RESTRICTED: Mapping[str, Any] = {
    "runAsNonRoot": True,
    "runAsUser": 65535,
    "runAsGroup": 65535,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
}


class HopelessError(Failure):
    """Waiting longer will not help; says what was seen."""


@dataclass(frozen=True)
class Holder:
    """The holder of the scheduler's lease: us with a process of now, or another host (a standby scheduler is as it should be)."""

    ours: bool
    identity: str


def not_running(
    pod: Optional[Mapping[str, Any]], config_sha256: Optional[str], wanted: Optional[Mapping[str, Any]] = None
) -> Optional[str]:
    """The part that is missing until the static pod runs with this configuration (None: with none of ours) and in this shape (None:
    any)."""
    if pod is None:
        return "kubelet has not created its pod yet"
    annotation = (pod["metadata"].get("annotations") or {}).get(ANNOTATION_SCHEDULER_CONFIG)
    if annotation != config_sha256 or (wanted is not None and SchedulerManifest.parsed(pod).shape != wanted):
        return "kubelet still runs the pod of the former manifest"
    statuses = (pod.get("status") or {}).get("containerStatuses") or []
    if not statuses:
        return "its container has not been created yet"
    status = statuses[0]
    state = status.get("state") or {}
    if "running" not in state:
        detail = state.get("waiting") or state.get("terminated") or {}
        words = f"its container does not run: {detail.get('reason', 'unknown')} {detail.get('message', '')}".strip()
        end = state.get("terminated") or (status.get("lastState") or {}).get("terminated") or {}
        if end.get("exitCode"):
            words += f"; it ended with exit code {end['exitCode']} ({end.get('reason', 'Error')})"
        # One that ended without an error was stopped by kubelet, which will start the next, if only after a pause.
        stopped = end.get("exitCode") == 0
        if int(status.get("restartCount", 0)) >= HOPELESS_RESTARTS and not stopped:
            raise HopelessError(words)
        return words
    return None


def not_ready(pod: Mapping[str, Any]) -> Optional[str]:
    """The part that is missing until a running pod is ready, which for kubeadm's start-up probe takes up to half a minute."""
    return None if pod["status"]["containerStatuses"][0].get("ready") else "its container is not ready yet"


def find_static_pod(pods: Iterable[Mapping[str, Any]]) -> Optional[Mapping[str, Any]]:
    """The mirror of the kube-scheduler static pod among a node's pods in kube-system."""
    for pod in pods:
        mirrored = ANNOTATION_MIRROR in (pod["metadata"].get("annotations") or {})
        if mirrored and any(is_scheduler(container) for container in pod["spec"]["containers"]):
            return pod
    return None


def started_at(pod: Mapping[str, Any]) -> datetime:
    """When the container of a running pod was started."""
    return parse_time(pod["status"]["containerStatuses"][0]["state"]["running"]["startedAt"])


def container_id(pod: Mapping[str, Any]) -> str:
    """The id that the container runtime has given the container of a running pod."""
    return str(pod["status"]["containerStatuses"][0].get("containerID", "")).rpartition("/")[2]


def lease_of_endpoints(endpoints: Optional[Mapping[str, Any]]) -> Optional[Dict[str, Any]]:
    """The annotation by which schedulers of before Kubernetes 1.17 elect their leader, as a Lease; None without one."""
    text = (((endpoints or {}).get("metadata") or {}).get("annotations") or {}).get("control-plane.alpha.kubernetes.io/leader")
    try:
        record = json.loads(text or "")
    except ValueError:
        return None
    return {"spec": record} if isinstance(record, dict) else None


def holder(lease: Optional[Mapping[str, Any]], hostname: str, since: datetime) -> Optional[Holder]:
    """The holder that has renewed the lease after `since`, when our container started; None while none has."""
    spec = (lease or {}).get("spec") or {}
    identity, renewed = spec.get("holderIdentity"), spec.get("renewTime")
    if not identity or not renewed or parse_time(renewed) < since:
        return None
    if not identity.startswith(hostname + "_"):
        return Holder(False, identity)
    # The former process of this host may have renewed in the second in which the new one started.
    acquired = spec.get("acquireTime")
    return Holder(True, identity) if acquired and parse_time(acquired) >= since else None


def parse_time(text: str) -> datetime:
    """A time as Kubernetes writes it, with or without fractions of a second."""
    form = "%Y-%m-%dT%H:%M:%S.%fZ" if "." in text else "%Y-%m-%dT%H:%M:%SZ"
    return datetime.strptime(text, form).replace(tzinfo=timezone.utc)


def not_called(health: Optional[Mapping[str, Any]], why: str, calls_before: int) -> Optional[str]:
    """The call that is missing until the extender has been asked by the scheduler since `calls_before` was counted."""
    if health is None:
        return why
    calls = health.get("filter_calls")
    if not isinstance(calls, int):
        return f"the extender's health report must count filter_calls; it says {dict(health)}"
    # Fewer than before: the extender was restarted meanwhile and counts again from 0.
    return None if calls > calls_before or 0 < calls < calls_before else f"the extender has not been asked (filter_calls is {calls})"


def probe_pod(node_name: str, scheduler_name: str, image: str, resource: str) -> Dict[str, Any]:
    """A pod for which kube-scheduler must ask the extender, and which does no harm if it is even placed.

    It names our resource, so the scheduler asks; it asks for 0 of it, so it fits however full the GPUs are. It may only go to
    this control-plane node, whatever taints it has, and there it would print a version and end, from an image that is
    on the node.
    """
    this_node = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node_name]}]}
    container = {
        "name": "probe",
        "image": image,
        "imagePullPolicy": "Never",
        "command": ["kube-scheduler", "--version"],
        "securityContext": dict(RESTRICTED),
        "resources": {"limits": {resource: "0"}},
    }
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"gpushare-scheduler-probe-{node_name}",
            "namespace": NAMESPACE,
            "labels": {"app.kubernetes.io/part-of": "gpushare"},
        },
        "spec": {
            "schedulerName": scheduler_name,
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [this_node]}}},
            "tolerations": [{"operator": "Exists"}],
            "containers": [container],
        },
    }


def scheduling_message(pod: Optional[Mapping[str, Any]]) -> str:
    """The Events that the scheduler has written about a pod, for an error message."""
    conditions: Sequence[Mapping[str, Any]] = ((pod or {}).get("status") or {}).get("conditions") or []
    messages: List[str] = [
        str(condition.get("message")) for condition in conditions if condition.get("type") == "PodScheduled" and condition.get("message")
    ]
    return messages[0] if messages else NOT_TRIED
