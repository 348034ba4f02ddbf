# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pods of gpushare's image that run to their end, one on each node: the probe of verify, and what removes files at uninstall."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Set

from .._cluster.kubectl import Kubectl, KubectlError, as_list
from .._cluster.names import (
    BY_CLAIMS,
    BY_EXTENDER,
    DEVICE_PLUGINS,
    DRA_SOCKETS,
    LABEL_PROBE,
    LEFT_SOCKETS,
    MEMORY,
    PLUGINS_REGISTRY,
    SCHEDULER,
    SOCKETS,
    own_pod_name,
)
from .._scheduler.proof import RESTRICTED, scheduling_message

#: Characters of what a pod, kubelet or the API server says.
LONGEST = 300
POLL_SECONDS = 0.5
#: Of the image.
PROBE_PROGRAM = "/opt/gpushare/bin/gpushare-probe"
PYTHON = "/opt/gpushare/bin/python3"
STATE_FOLDER = "/var/lib/gpushare-device-plugin"
#: In a folder of CDI specs: of the GPUs, and with the back end dra of the pods.
CDI_FILES = ("gpushare.json", "gpushare-claims.json")
CONTAINER = "main"
#: The label's values.
PROBE, CLEANUP, VISIBLE = "in-cluster", "cleanup", "visible"
#: Of images, which tenants choose themselves.
_NOBODY = 65534
_ENDED = ("Succeeded", "Failed")
#: More than a probe prints.
_LOG_BYTES = 65536
# Root's files are root's, and no power beside that is needed.
_SWEEP = """\
import os, re, shutil, socket
def dead(name):
    probe = socket.socket(socket.AF_UNIX)
    probe.settimeout(2)
    try:
        probe.connect(f"/host/device-plugins/{name}")
    except OSError as error:
        return isinstance(error, ConnectionRefusedError)
    return False
shutil.rmtree("/host/lib/gpushare-device-plugin", ignore_errors=True)
drivers = [name for name in os.listdir("/host/registry") if re.fullmatch(%r, name)] if os.path.isdir("/host/registry") else []
there = [name for name in os.listdir("/host/device-plugins") if re.fullmatch(%r, name)]
sockets = [f"device-plugins/{name}" for name in there if re.fullmatch(%r, name) or dead(name)]
for name in [*sockets, *(f"registry/{name}" for name in drivers), *%r]:
    try:
        os.unlink("/host/" + name)
    except FileNotFoundError:
        pass
left = [name for name in os.listdir("/host/lib") if name == "gpushare-device-plugin"]
raise SystemExit(f"cannot be removed: {left}" if left else 0)
"""


@dataclass(frozen=True)
class Image:
    """The programs that the pods run, and how. runtime_class: "" for the nodes' default; scheduler: "own" or "default" of that back end."""

    reference: str
    namespace: str
    runtime_class: str = ""
    scheduler: str = "own"
    backend: str = BY_EXTENDER

    @property
    def by_claims(self) -> bool:
        return self.backend == BY_CLAIMS


@dataclass(frozen=True)
class Ended:
    """A pod that has run: the phase in which it ended ("" where it has not), what it printed, and why it did not end well."""

    node: str
    pod: Mapping[str, Any]
    phase: str
    log: str
    why: str


def probe(node: str, image: Image) -> Dict[str, Any]:
    """One unit of this node's GPUs, asked of our scheduler, or of the cluster's own by a claim, whatever taints the node has."""
    this_node = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    rights = {**RESTRICTED, "readOnlyRootFilesystem": True, "seccompProfile": {"type": "RuntimeDefault"}}
    container = {"command": [PROBE_PROGRAM], "resources": {"limits": {MEMORY: "1"}}, "securityContext": rights}
    spec = {
        **({"schedulerName": SCHEDULER} if image.scheduler == "own" and not image.by_claims else {}),
        "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [this_node]}}},
        **({"runtimeClassName": image.runtime_class} if image.runtime_class else {}),
    }
    return simple_pod("verify", node, image, PROBE, container, spec)


def looks(node: str, image: Image) -> Dict[str, Any]:
    """A tenant's pod on this node that asks for no GPU, and whose image wants all of them. kubelet starts it, no scheduler."""
    rights = {**RESTRICTED, "readOnlyRootFilesystem": True, "runAsUser": _NOBODY, "seccompProfile": {"type": "RuntimeDefault"}}
    wants = [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]
    container = {"command": [PROBE_PROGRAM], "env": wants, "securityContext": rights}
    spec = {"nodeName": node, **({"runtimeClassName": image.runtime_class} if image.runtime_class else {})}
    return simple_pod("visible", node, image, VISIBLE, container, spec)


def cleanup(node: str, image: Image, cdi_dir: str = "", kubelet_root: str = "") -> Dict[str, Any]:
    """Takes the device plugin's folder and sockets away from a node, and its CDI specs.

    cdi_dir: "" where it writes none. kubelet_root: "" where it does not register as a driver.
    """
    rights = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "readOnlyRootFilesystem": True, "runAsUser": 0}
    folders = {
        "lib": (STATE_FOLDER.rpartition("/")[0], "Directory"),
        "device-plugins": (DEVICE_PLUGINS, "Directory"),
        **({"cdi": (cdi_dir, "DirectoryOrCreate")} if cdi_dir else {}),
        **({"registry": (f"{kubelet_root}/{PLUGINS_REGISTRY}", "DirectoryOrCreate")} if kubelet_root else {}),
    }
    files = [f"cdi/{name}" for file in CDI_FILES for name in (file, f".{file}.new") if cdi_dir]
    mounts = [{"name": name, "mountPath": f"/host/{name}"} for name in folders]
    container = {
        "command": [PYTHON, "-c", _SWEEP % (DRA_SOCKETS, LEFT_SOCKETS, SOCKETS, files)],
        "volumeMounts": mounts,
        "securityContext": rights,
    }
    volumes = [{"name": name, "hostPath": {"path": path, "type": kind}} for name, (path, kind) in folders.items()]
    return simple_pod("cleanup", node, image, CLEANUP, container, {"nodeName": node, "volumes": volumes})


def simple_pod(what: str, node: str, image: Image, label: str, container: Mapping[str, Any], spec: Mapping[str, Any]) -> Dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": own_pod_name(what, node),
            "namespace": image.namespace,
            "labels": {"app.kubernetes.io/part-of": "gpushare-tools", LABEL_PROBE: label},
        },
        "spec": {
            "restartPolicy": "Never",
            "terminationGracePeriodSeconds": 1,
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "tolerations": [{"operator": "Exists"}],
            **spec,
            "containers": [{"name": CONTAINER, "image": image.reference, "imagePullPolicy": "IfNotPresent", **container}],
        },
    }


class Runs:
    """Runs pods of one label in one namespace. clock and sleep: of this process, in seconds."""

    def __init__(
        self,
        kubectl: Kubectl,
        namespace: str,
        label: str,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._kubectl = kubectl
        self._place = ["--namespace", namespace]
        self._select = [*self._place, "--selector", f"{LABEL_PROBE}={label}"]
        self._clock = clock
        self._sleep = sleep

    def remove(self, seconds: int) -> None:
        """Also what a run that was killed has left behind."""
        self._kubectl.text(["delete", "pods", *self._select, "--ignore-not-found", "--now", "--wait=true", f"--timeout={seconds}s"])

    def run(
        self, pods: Mapping[str, Mapping[str, Any]], seconds: float, hopeless: Callable[[Set[str]], Set[str]] = lambda uids: set()
    ) -> List[Ended]:
        """pods: by their nodes. Those that have not ended within the time, or until they are hopeless, have no phase.

        hopeless: which of the live pods with these UIDs will not end.
        """
        if not pods:
            return []
        self._kubectl.text(["create", "-f", "-"], as_list(list(pods.values())))
        deadline = self._clock() + seconds
        while True:
            live = {str(item["metadata"]["name"]): item for item in self._kubectl.items(["get", "pods", *self._select])}
            found = {node: live.get(pod["metadata"]["name"]) for node, pod in pods.items()}
            left = {uid_of(pod) for pod in found.values() if pod is not None and _phase(pod) not in _ENDED}
            if not left or self._clock() > deadline or left <= hopeless(left):
                return [self._ended(node, pod) for node, pod in found.items()]
            self._sleep(POLL_SECONDS)

    def _ended(self, node: str, pod: Optional[Mapping[str, Any]]) -> Ended:
        if pod is None:
            return Ended(node, {}, "", "", "it was deleted")
        phase = _phase(pod)
        log = ""
        if phase in _ENDED:
            try:
                log = self._kubectl.text(["logs", *self._place, str(pod["metadata"]["name"]), f"--limit-bytes={_LOG_BYTES}"])
            except KubectlError as error:
                log = str(error)[:LONGEST]
        return Ended(node, pod, phase if phase in _ENDED else "", log, "" if phase == "Succeeded" else _why(pod, log))


def is_ready(item: Mapping[str, Any]) -> bool:
    """Whether a pod, or a node, has the condition Ready."""
    conditions = (item.get("status") or {}).get("conditions") or []
    return any(condition.get("type") == "Ready" and condition.get("status") == "True" for condition in conditions)


def warnings(kubectl: Kubectl, namespace: str) -> Dict[str, str]:
    """The last warning about each object of the namespace, by the object's UID: one before it may have had its name."""
    found = {}
    for event in kubectl.items(["get", "events", "--namespace", namespace, "--field-selector", "type=Warning"]):
        uid = str((event.get("involvedObject") or {}).get("uid", ""))
        found[uid] = " ".join(f"{event.get('reason', '')}: {event.get('message', '')}".split())[:LONGEST]
    return found


def uid_of(pod: Mapping[str, Any]) -> str:
    return str((pod.get("metadata") or {}).get("uid", ""))


def until(holds: Callable[[], bool], seconds: float, clock: Callable[[], float], sleep: Callable[[float], None]) -> bool:
    """Whether it holds within so many seconds. It is asked once at least."""
    deadline = clock() + seconds
    while not holds():
        if clock() > deadline:
            return False
        sleep(POLL_SECONDS)
    return True


def _phase(pod: Mapping[str, Any]) -> str:
    return str((pod.get("status") or {}).get("phase", ""))


def _why(pod: Mapping[str, Any], log: str) -> str:
    """Why a pod has not run well, in the words of the component that says it."""
    status = pod.get("status") or {}
    states = [container.get("state") or {} for container in status.get("containerStatuses") or []]
    waiting = [f"{state['waiting'].get('reason', '')} {state['waiting'].get('message', '')}" for state in states if "waiting" in state]
    words = [scheduling_message(pod), str(status.get("message", "")), *waiting, log[-300:]]
    return "; ".join(" ".join(text.split())[:LONGEST] for text in words if text.strip()) or f"it is {_phase(pod) or 'of no phase'}"
