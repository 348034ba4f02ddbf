# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Probe pods: one per node, placed by the real scheduler, that ask for one unit and do nothing.

All have one label, by which a later run removes what a killed one has left behind.
"""

from __future__ import annotations

import json
import time
from typing import Any, Callable, Dict, List, Mapping, Optional

from .._cluster.kubectl import Kubectl, as_list
from .._cluster.names import LABEL_PROBE, NAMESPACE, PROBE, pod_name
from .._scheduler.proof import RESTRICTED
from .cluster import pod as cut_down

POLL_SECONDS = 0.5
#: A rejection by the scheduler or kubelet that lasts so long stays.
PATIENCE_SECONDS = 15.0
_SELECT = ["--namespace", NAMESPACE, "--selector", f"{LABEL_PROBE}={PROBE}"]
_LONGEST_EVENT = 600
_ON_ITS_WAY = ("ContainerCreating", "PodInitializing")


def probe_pod(node: str, image: str, resource: str, scheduler_name: str) -> Dict[str, Any]:
    """A pod for this node and no other, whatever taints it has. The image needs no command: it is a pod sandbox's, which waits."""
    this_node = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    # The profile is in every Kubernetes that verify knows, and not in each one that has a probe of the scheduler alone.
    rights = {**RESTRICTED, "seccompProfile": {"type": "RuntimeDefault"}}
    limits = {"limits": {resource: "1"}}
    container = {"name": "probe", "image": image, "imagePullPolicy": "Never", "resources": limits, "securityContext": rights}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name(node), "namespace": NAMESPACE, "labels": {"app.kubernetes.io/part-of": "gpushare", LABEL_PROBE: PROBE}},
        "spec": {
            "schedulerName": scheduler_name,
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [this_node]}}},
            "tolerations": [{"operator": "Exists"}],
            "containers": [container],
        },
    }


def name(node: str) -> str:
    return pod_name("verify", node)


class Probes:
    """The probe pods of one cluster. clock and sleep: of this process, in seconds."""

    def __init__(self, kubectl: Kubectl, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep) -> None:
        self._kubectl = kubectl
        self._clock = clock
        self._sleep = sleep

    def remove(self, timeout: int) -> List[str]:
        """Remove every probe pod, and wait until they are gone. Their names. KubectlError when they do not go."""
        found = sorted(self._found())
        if found:
            self._kubectl.text(["delete", "pods", *_SELECT, "--ignore-not-found", "--now", "--wait=true", f"--timeout={timeout}s"])
        return found

    def place(self, pods: List[Dict[str, Any]], timeout: float) -> Dict[str, Optional[Dict[str, Any]]]:
        """Create them, and wait until each runs or will not. Pod name to the pod, cut down; None for one that is gone."""
        self._kubectl.text(["create", "-f", "-"], as_list(pods))
        names = [pod["metadata"]["name"] for pod in pods]
        began = self._clock()
        while True:
            found = self._found()
            passed = self._clock() - began
            waiting = [pod for pod in names if not settled(found.get(pod), passed > PATIENCE_SECONDS)]
            if not waiting or passed > timeout:
                return {pod: self._explained(found.get(pod)) for pod in names}
            self._sleep(POLL_SECONDS)

    def _explained(self, pod: Optional[Dict[str, Any]]) -> Optional[Dict[str, Any]]:
        """The pod, with the last Warning about it where it does not run: its Events go with it."""
        if pod is None or pod["running"] or not pod["node"]:
            return pod
        fields = f"involvedObject.kind=Pod,involvedObject.name={pod['name']},type=Warning"
        text = self._kubectl.text(["get", "events", "--namespace", pod["namespace"], "--field-selector", fields, "-o", "json"])
        events = json.loads(text)["items"]
        last = max(events, key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or ""), default=None)
        if last is None:
            return pod
        words = f"its last Event: {last.get('reason', '')}: {last.get('message', '')}"
        return dict(pod, waiting=[*pod["waiting"], words[:_LONGEST_EVENT]])

    def _found(self) -> Dict[str, Dict[str, Any]]:
        text = self._kubectl.text(["get", "pods", *_SELECT, "-o", "json"])
        return {item["metadata"]["name"]: cut_down(item) for item in json.loads(text)["items"]}


def settled(pod: Optional[Mapping[str, Any]], impatient: bool) -> bool:
    """Whether a probe runs or has ended; impatient: or is rejected, which may be for the moment only."""
    if pod is None or pod["running"] or pod["phase"] in ("Succeeded", "Failed"):
        return True
    stuck = any(not why.startswith(_ON_ITS_WAY) for why in pod["waiting"])
    return impatient and (stuck or not pod["node"])
