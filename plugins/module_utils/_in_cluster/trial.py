# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Before anything is installed: a pod on each GPU node that needs what the device plugin's pod needs, and ends at once.

The API server does not say where a kubelet has its folder, which images a node can run, and which runtimes it knows: kubelet says it of a
pod. Afterwards nothing of the trial is left.
"""

from __future__ import annotations

import json
import secrets
import time
from dataclasses import dataclass, replace
from typing import Any, Callable, Dict, List, Mapping, Sequence, Set, Tuple

from .._cluster.kubectl import Kubectl
from .._cluster.names import DEVICE_PLUGINS, LABEL_PROBE, PLUGIN, PREFIX, RUNTIME_CLASS, RUNTIME_HANDLER
from .pods import LONGEST, PROBE_PROGRAM, Ended, Image, Runs, is_ready, simple_pod, uid_of, warnings
from .told import setting

TRIAL = "trial"
#: kubelet tries again for ever; after so many seconds of warnings about a pod it does not run.
HOPELESS_SECONDS = 15.0
#: Volumes of the pod, which kubelet names in what it says.
_PLUGINS, _PODS = "device-plugins", "pod-resources"
_ENFORCE = {"pod-security.kubernetes.io/enforce": "privileged"}


@dataclass(frozen=True)
class DevicePluginNeeds:
    """The needs of the device plugin on a node. kubelet_root: kubelet's --root-dir."""

    image: Image
    kubelet_root: str

    @property
    def sockets(self) -> Dict[str, str]:
        """kubelet's, which the device plugin needs, by the volume of each."""
        return {_PLUGINS: f"{DEVICE_PLUGINS}/kubelet.sock", _PODS: f"{self.kubelet_root}/pod-resources/kubelet.sock"}


def trial_pod(node: str, needs: DevicePluginNeeds) -> Dict[str, Any]:
    """Runs a program of the image to its end, on a node on which kubelet has its sockets where they are expected."""
    rights = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, "readOnlyRootFilesystem": True}
    mounts = [{"name": name, "mountPath": f"/host/{name}.sock", "readOnly": True} for name in needs.sockets]
    container = {"command": [PROBE_PROGRAM, "--version"], "volumeMounts": mounts, "securityContext": rights}
    spec = {
        "nodeName": node,
        "volumes": [{"name": name, "hostPath": {"path": path, "type": "Socket"}} for name, path in needs.sockets.items()],
        **({"runtimeClassName": needs.image.runtime_class} if needs.image.runtime_class else {}),
    }
    return simple_pod(TRIAL, node, needs.image, TRIAL, container, spec)


class Trial:
    """clock and sleep: of this process, in seconds."""

    def __init__(
        self,
        kubectl: Kubectl,
        needs: DevicePluginNeeds,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._kubectl = kubectl
        self._needs = needs
        self._space = needs.image.namespace
        self._clock = clock
        self._runs = Runs(kubectl, self._space, TRIAL, clock, sleep)

    def run(self, nodes: Sequence[str], seconds: float) -> Tuple[List[str], List[str]]:
        """(nodes that were tried, what is wrong with them). Nodes whose device plugin runs with the same needs are not tried."""
        proven = self._proven()
        tried = [node for node in nodes if node not in proven]
        if not tried:
            return [], []
        made = self._kubectl.raw(f"/api/v1/namespaces/{self._space}") is None
        if made:
            space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self._space, "labels": _ENFORCE}}
            self._kubectl.text(["create", "-f", "-"], json.dumps(space))
        try:
            self._runs.remove(60)
            needs = self._with_a_class()
            ended = self._runs.run({node: trial_pod(node, needs) for node in tried}, seconds, self._hopeless())
            said = warnings(self._kubectl, self._space)
        finally:
            self._runs.remove(60)
            self._remove_class()
            if made:
                self._kubectl.text(["delete", "namespace", self._space, "--ignore-not-found", "--wait=true", "--timeout=60s"])
        return tried, [self._words(pod, said) for pod in ended if pod.phase != "Succeeded"]

    def _with_a_class(self) -> DevicePluginNeeds:
        """Ours may not be there yet, nor the policy that keeps pods of others off it: a class with a random name does for the trial."""
        if self._needs.image.runtime_class != RUNTIME_CLASS:
            return self._needs
        self._remove_class()
        name = f"{PREFIX}{TRIAL}-{secrets.token_hex(16)}"
        metadata = {"name": name, "labels": {LABEL_PROBE: TRIAL}}
        made = {"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": metadata, "handler": RUNTIME_HANDLER}
        self._kubectl.text(["create", "-f", "-"], json.dumps(made))
        return replace(self._needs, image=replace(self._needs.image, runtime_class=name))

    def _remove_class(self) -> None:
        if self._needs.image.runtime_class == RUNTIME_CLASS:
            self._kubectl.text(["delete", "runtimeclasses.node.k8s.io", "--selector", f"{LABEL_PROBE}={TRIAL}", "--ignore-not-found"])

    def _proven(self) -> List[str]:
        """The nodes on which the device plugin serves that is to be installed."""
        place = ["--namespace", self._space]
        pods = self._kubectl.items(["get", "pods", *place, "--selector", f"app.kubernetes.io/name={PLUGIN}", "--ignore-not-found"])
        wanted = (self._needs.image.reference, self._needs.image.runtime_class, self._needs.kubelet_root)
        found = []
        for pod in pods:
            spec = pod.get("spec") or {}
            (container,) = (spec.get("containers") or [{}])[:1]
            root = setting(pod, "kubeletRoot", "--kubelet-root")
            if is_ready(pod) and (container.get("image"), spec.get("runtimeClassName", ""), root) == wanted:
                found.append(str(spec.get("nodeName", "")))
        return found

    def _hopeless(self) -> Callable[[Set[str]], Set[str]]:
        """The pods about which there have been warnings for so long that no more is to be waited for."""
        first: Dict[str, float] = {}

        def hopeless(uids: Set[str]) -> Set[str]:
            now = self._clock()
            for uid in uids & warnings(self._kubectl, self._space).keys():
                first.setdefault(uid, now)
            return {uid for uid in uids if now - first.get(uid, now) > HOPELESS_SECONDS}

        return hopeless

    def _words(self, ended: Ended, warned: Mapping[str, str]) -> str:
        said = "; ".join(words for words in (ended.why, warned.get(uid_of(ended.pod), "")) if words)
        image = self._needs.image
        if f'volume "{_PODS}"' in said:
            seen = f"no socket {self._needs.sockets[_PODS]}"
            cure = "set gpushare_kubelet_root to the --root-dir of the kubelets on GPU nodes"
        elif f'volume "{_PLUGINS}"' in said:
            # No option of kubelet moves it.
            seen, cure = f"no socket {self._needs.sockets[_PLUGINS]}", "see in kubelet's log on the node why it serves no device plugins"
        elif "exec format error" in said:
            seen, cure = (
                f"that {image.reference} is of another architecture",
                "import the image of the node's one: make image ARCH=arm64 or amd64",
            )
        elif "ImagePull" in said or "ErrImage" in said or "Failed to pull image" in said:
            seen, cure = f"no image {image.reference}", "import it there, or name an image of a registry in gpushare_image"
        elif "no runtime for" in said or "RuntimeHandler" in said or "runtime handler" in said:
            seen = f"no runtime for the RuntimeClass {image.runtime_class}"
            cure = f"add NVIDIA's runtime to the container runtime as {RUNTIME_HANDLER}, or correct gpushare_runtime_class"
        else:
            seen, cure = "that a pod of gpushare's image does not run", "see the reason"
        return f"node {ended.node}: found {seen} ({said[:LONGEST]}); expected a node that can run the device plugin; {cure}"
