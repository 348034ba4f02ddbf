# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Probe pods: one per node, placed by the real scheduler, that ask for one unit and do nothing.

They are in a namespace of users, whose pods meet webhooks, policies and quotas there that kube-system mostly does not have. All have one
label, by which a later run removes what a killed one has left behind, in whatever namespace.
"""

from __future__ import annotations

import contextlib
import json
import re
import time
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, Callable, Collection, Dict, Iterable, List, Mapping, Optional, Tuple

from .._cluster.kubectl import Kubectl, KubectlError, as_list
from .._cluster.names import LABEL_PROBE, NAMESPACE, PROBE, own_pod_name
from .._formats.answers import ABSENT, ModuleAnswer
from .._scheduler.proof import LAST_EVENT, RESTRICTED
from .cluster import ProbeEvidence
from .cluster import pod as cut_down

POLL_SECONDS = 0.5
#: A rejection by the scheduler or kubelet that lasts so long stays.
PATIENCE_SECONDS = 15.0
_LABEL = f"{LABEL_PROBE}={PROBE}"
#: Pods of one command line.
_AT_ONCE = 100
_LONGEST_EVENT = 600
#: Characters of the API server's words.
_LONGEST_WORDS = 300
#: kubectl's text before the API server's words: our own arguments, and where the objects came from.
_OF_KUBECTL = re.compile(r"^kubectl create -f - failed with exit status -?[0-9]+: |error when creating \"STDIN\": ")
#: Of a pod's spec and its containers: the fields that the API server and the scheduler themselves fill.
_FILLED = (
    ("dnsPolicy", "nodeName", "preemptionPolicy", "priority", "securityContext", "serviceAccount", "serviceAccountName"),
    ("resources", "terminationMessagePath", "terminationMessagePolicy"),
)
_MOST_CHANGES, _LONGEST_CHANGE = 5, 120
_ON_ITS_WAY = ("ContainerCreating", "PodInitializing")


@dataclass(frozen=True)
class Placed:
    """Probe pods that were waited for. pods: node to its pod, cut down, with what others have changed in it; None for one that is gone.

    rejected: the API server's words about the first of those that their namespace did not take, "" for none. moved: node to its pod that
    others have given to another scheduler there, or hold back by a gate. For both, `pods` has those that were made in kube-system instead.
    """

    pods: Dict[str, Optional[ProbeEvidence]]
    rejected: str
    moved: Dict[str, ProbeEvidence]


@dataclass(frozen=True)
class ProbesRemoved(ModuleAnswer):
    """The answer of gpushare_verify_cluster that has removed probe pods, by their names."""

    removed: List[str]


@dataclass(frozen=True)
class ProbesPlaced(ProbesRemoved):
    """The answer of gpushare_verify_cluster that has placed probe pods, with the fields of Placed where it has."""

    pods: Optional[Dict[str, Optional[ProbeEvidence]]] = field(default=None, metadata=ABSENT)
    rejected: Optional[str] = field(default=None, metadata=ABSENT)
    moved: Optional[Dict[str, ProbeEvidence]] = field(default=None, metadata=ABSENT)


def probe_pod(node: str, image: str, resource: str, scheduler_name: str, namespace: str = NAMESPACE) -> Dict[str, Any]:
    """A pod for this node and no other, whatever taints it has. The image needs no command: it is a pod sandbox's, which waits."""
    this_node = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    # The profile is in every Kubernetes that verify knows, and not in each one that has a probe of the scheduler alone.
    rights = {**RESTRICTED, "seccompProfile": {"type": "RuntimeDefault"}}
    limits = {"limits": {resource: "1"}}
    container = {"name": "probe", "image": image, "imagePullPolicy": "Never", "resources": limits, "securityContext": rights}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name(node), "namespace": namespace, "labels": {"app.kubernetes.io/part-of": "gpushare", LABEL_PROBE: PROBE}},
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
    return own_pod_name("verify", node)


class Probes:
    """The probe pods of one cluster. clock and sleep: of this process, in seconds."""

    def __init__(self, kubectl: Kubectl, clock: Callable[[], float] = time.monotonic, sleep: Callable[[float], None] = time.sleep) -> None:
        self._kubectl = kubectl
        self._clock = clock
        self._sleep = sleep

    def remove(self, timeout: int) -> List[str]:
        """Remove every probe pod of any namespace, and wait until they are gone. Their names. KubectlError when they do not go."""
        left = self._everywhere()
        deadline = self._clock() + timeout
        for namespace in sorted({namespace for namespace, _name in left}):
            names = [name for where, name in left if where == namespace]
            for first in range(0, len(names), _AT_ONCE):
                self._delete(namespace, names[first : first + _AT_ONCE], max(1, round(deadline - self._clock())))
        return sorted(name for _namespace, name in left)

    def _delete(self, namespace: str, names: List[str], seconds: int) -> None:
        how = ["--ignore-not-found", "--now", "--wait=true", f"--timeout={seconds}s"]
        try:
            self._kubectl.text(["delete", "pods", "--namespace", namespace, *names, *how])
        except KubectlError:
            # Users may write in their namespaces, and keep a pod there by a finalizer: it has ended all the same.
            stay = [pod for pod in self._found([namespace]).values() if pod["name"] in names and not pod["deleted"]]
            if namespace == NAMESPACE or stay:
                raise

    def place(self, pods: Mapping[str, Mapping[str, Any]], timeout: float) -> Placed:
        """Create them, by their nodes, and wait until each runs or will not."""
        began = self._clock()
        where, rejected = self._created(pods)
        moved = self._moved(pods, where)
        namespaces = sorted({namespace for namespace, _name in where.values()})
        wanted = _by_key(pods, where)
        while True:
            found = self._found(namespaces, wanted)
            passed = self._clock() - began
            waiting = [key for key in where.values() if not settled(found.get(key), passed > PATIENCE_SECONDS)]
            if not waiting or passed > timeout:
                return Placed({node: self._explained(found.get(key)) for node, key in where.items()}, rejected, moved)
            self._sleep(POLL_SECONDS)

    def _created(self, pods: Mapping[str, Mapping[str, Any]]) -> Tuple[Dict[str, Tuple[str, str]], str]:
        """(node to namespace and name of its pod, what the API server said where it did not take one). KubectlError where kube-system takes
        none either."""
        where = {node: (str(pod["metadata"]["namespace"]), str(pod["metadata"]["name"])) for node, pod in pods.items()}
        try:
            self._kubectl.text(["create", "-f", "-"], as_list(list(pods.values())))
            return where, ""
        except KubectlError as error:
            words = str(error)
            if not any(namespace != NAMESPACE for namespace, _name in where.values()):
                raise
        # kubectl continues after an object that is rejected: a quota may have room for some.
        found = self._found({namespace for namespace, _name in where.values()})
        there = {key for key, pod in found.items() if not pod["deleted"]}
        self._create_instead(pods, where, [node for node in pods if where[node] not in there])
        said = " ".join(_OF_KUBECTL.sub("", words).split())
        rejected = "".join(letter if letter.isprintable() else "?" for letter in said)[:_LONGEST_WORDS]
        first = next(iter(pods.values()))["metadata"]["namespace"]
        return where, "; ".join([rejected, *self._limits(first)])

    def _limits(self, namespace: str) -> List[str]:
        """The LimitRanges and quotas of a namespace, as words about them, which the API server does not always name."""
        names: List[str] = []
        with contextlib.suppress(KubectlError):
            names = self._kubectl.text(["get", "limitranges,resourcequotas", "--namespace", namespace, "-o", "name"]).split()
        return [f"the namespace has {', '.join(names[:_MOST_CHANGES])}"[:_LONGEST_WORDS]] if names else []

    def _create_instead(self, pods: Mapping[str, Mapping[str, Any]], where: Dict[str, Tuple[str, str]], nodes: List[str]) -> None:
        """Create the pods of these nodes in kube-system. KubectlError where it does not take them."""
        if nodes:
            there = [dict(pods[node], metadata=dict(pods[node]["metadata"], namespace=NAMESPACE)) for node in nodes]
            self._kubectl.text(["create", "-f", "-"], as_list(there))
            where.update((node, (NAMESPACE, where[node][1])) for node in nodes)

    def _moved(self, pods: Mapping[str, Mapping[str, Any]], where: Dict[str, Tuple[str, str]]) -> Dict[str, ProbeEvidence]:
        """Node to its pod that is another scheduler's now, or that a gate holds back. It would hide faults of the node: one in kube-system
        takes its place."""
        keys = {node: key for node, key in where.items() if key[0] != NAMESPACE}
        found = self._found({namespace for namespace, _name in keys.values()}, _by_key(pods, keys))
        moved = {
            node: found[key]
            for node, key in keys.items()
            if key in found and (found[key]["scheduler"] != pods[node]["spec"]["schedulerName"] or _gated(found[key]))
        }
        # Where that takes none either, the first ones are judged.
        with contextlib.suppress(KubectlError):
            self._create_instead(pods, where, list(moved))
        return moved

    def _explained(self, pod: Optional[ProbeEvidence]) -> Optional[ProbeEvidence]:
        """The pod, with the last Warning about it where it does not run, its Events go with it, and with who may give it resources."""
        if pod is None or pod["running"]:
            return pod
        if any(words.startswith("resources.") for words in pod["changed"]):
            pod = {**pod, "changed": [*pod["changed"], *self._limits(pod["namespace"])]}
        if not pod["node"]:
            return pod
        fields = f"involvedObject.kind=Pod,involvedObject.name={pod['name']},type=Warning"
        text = self._kubectl.text(["get", "events", "--namespace", pod["namespace"], "--field-selector", fields, "-o", "json"])
        events = json.loads(text)["items"]
        last = max(events, key=lambda event: str(event.get("lastTimestamp") or event.get("eventTime") or ""), default=None)
        if last is None:
            return pod
        words = f"{LAST_EVENT}{last.get('reason', '')}: {last.get('message', '')}"
        return {**pod, "waiting": [*pod["waiting"], words[:_LONGEST_EVENT]]}

    def _found(
        self, namespaces: Iterable[str], wanted: Mapping[Tuple[str, str], Mapping[str, Any]] = MappingProxyType({})
    ) -> Dict[Tuple[str, str], ProbeEvidence]:
        """Namespace and name to each probe pod there. wanted: their manifests."""
        found: Dict[Tuple[str, str], ProbeEvidence] = {}
        for namespace in sorted(namespaces):
            items = self._kubectl.items(["get", "pods", "--namespace", namespace, "--selector", _LABEL])
            for item in items:
                key = (namespace, str(item["metadata"]["name"]))
                found[key] = {**cut_down(item), "changed": changed(wanted[key], item) if key in wanted else []}
        return found

    def _everywhere(self) -> List[Tuple[str, str]]:
        """Namespace and name of each pod with the label and such a name."""
        items = self._kubectl.pages("/api/v1/pods", labelSelector=_LABEL)
        keys = [(str(item["metadata"]["namespace"]), str(item["metadata"]["name"])) for item in items]
        return sorted(key for key in keys if key[1].startswith(name("")))


def _by_key(pods: Mapping[str, Mapping[str, Any]], where: Mapping[str, Tuple[str, str]]) -> Dict[Tuple[str, str], Mapping[str, Any]]:
    """Namespace and name to the manifest of each pod."""
    return {key: pods[node] for node, key in where.items()}


def changed(wanted: Mapping[str, Any], item: Mapping[str, Any]) -> List[str]:
    """The fields of a probe pod that admission of others has changed, with what they are now."""
    found = [
        *_differing(wanted["spec"], item["spec"], {"containers", *_FILLED[0]}),
        *_differing(wanted["spec"]["containers"][0], (item["spec"].get("containers") or [{}])[0], {*_FILLED[1]}),
        *_asked_besides(wanted["spec"]["containers"][0], (item["spec"].get("containers") or [{}])[0]),
    ]
    more = [str(container.get("name")) for container in (item["spec"].get("containers") or [])[1:]]
    found += [f"a further container {', '.join(more)}"] if more else []
    return ["".join(letter if letter.isprintable() else "?" for letter in words)[:_LONGEST_CHANGE] for words in found[:_MOST_CHANGES]]


def _gated(pod: ProbeEvidence) -> bool:
    return any(words.startswith("schedulingGates ") for words in pod["changed"])


def _differing(wanted: Mapping[str, Any], found: Mapping[str, Any], filled: Collection[str]) -> List[str]:
    names = sorted({*wanted, *found} - {*filled})
    return [f"{name} {json.dumps(found.get(name))}" for name in names if found.get(name) != wanted.get(name)]


def _asked_besides(wanted: Mapping[str, Any], found: Mapping[str, Any]) -> List[str]:
    """The resources that the container asks for besides: a LimitRange of the namespace gives them, too."""
    own = {*wanted["resources"]["limits"]}
    asked = {kind: (found.get("resources") or {}).get(kind) or {} for kind in ("requests", "limits")}
    more = {kind: {name: amount for name, amount in amounts.items() if name not in own} for kind, amounts in asked.items()}
    return [f"resources.{kind} {json.dumps(amounts)}" for kind, amounts in more.items() if amounts]


def settled(pod: Optional[ProbeEvidence], impatient: bool) -> bool:
    """Whether a probe runs or has ended; impatient: or is rejected, which may be for the moment only."""
    if pod is None or pod["running"] or pod["phase"] in ("Succeeded", "Failed"):
        return True
    stuck = any(not why.startswith(_ON_ITS_WAY) for why in pod["waiting"])
    return impatient and (stuck or not pod["node"])
