# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Moves other device plugins away from nodes and gives them back, through kubectl: reads everything first, then writes.

Nothing of theirs is deleted here.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Set, Tuple

from .._cluster.dra import DraFacts
from .._cluster.kubectl import Kubectl, KubectlError
from .._cluster.names import GPUS, LABEL_NODE, LABEL_TAKEN_OVER
from .._facts.device_managers import OPERATOR
from .._formats.answers import DiffPart, ModuleAnswer
from .._formats.failure import Failure
from . import aside
from . import operator as gpu_operator
from .aside import MergePatch, TakeOverError
from .operator import OperatorFacts
from .plugins import FoundPlugin, OtherPlugin, Switch, other_plugins, place_of

_ENDED = ("Succeeded", "Failed")
# A controller has written the status of a DaemonSet within milliseconds.
_ATTEMPTS = 6
_PAUSE_SECONDS = 0.1


@dataclass(frozen=True)
class PluginPod:
    """A pod of another device plugin. terminating: it goes already."""

    node: str
    name: str
    plugin: str
    terminating: bool


@dataclass(frozen=True)
class TakeoverResult:
    """changes: made, or to be made in check mode. left: pods of theirs that are still on the nodes. kept: what others have changed.

    served: of the nodes, those that the original's device plugin serves. restarted: its pods that were deleted, so that they start again.
    """

    changes: Tuple[MergePatch, ...]
    left: Tuple[PluginPod, ...]
    kept: Tuple[str, ...] = ()
    served: Tuple[str, ...] = ()
    restarted: Tuple[PluginPod, ...] = ()


@dataclass(frozen=True)
class PluginsFound(ModuleAnswer):
    """The answer of gpushare_api about plugins. active: UID to namespace/name of pods. writers, node_ports: of the original."""

    plugins: List[FoundPlugin]
    active: Dict[str, str]
    writers: List[str]
    node_ports: List[int]


@dataclass(frozen=True)
class PluginsMoved(ModuleAnswer):
    """The answer of gpushare_api that changes something, as TakeoverResult has it. objects: titles."""

    objects: List[str]
    left: List[str]
    kept: List[str]
    served: List[str]
    diff: List[DiffPart]


@dataclass(frozen=True)
class KubeadmFacts:
    """kubeadm's ClusterConfiguration, "" and nothing where there is none, or it may not be read."""

    version: str
    feature_gates: List[str]


@dataclass(frozen=True)
class ApiFacts(ModuleAnswer):
    """The answer of gpushare_api about facts. version: of the API server. authorities: fingerprints. in_cluster: our device plugins
    there.
    """

    version: str
    nodes: List[str]
    authorities: List[str]
    may_grant: bool
    kubeadm: KubeadmFacts
    in_cluster: List[str]
    gpu_operator: OperatorFacts
    dra: DraFacts


class _ConflictError(Failure):
    """The object of this title was changed between reading and writing it."""


class OtherPlugins:
    """The objects that the API server has of other device plugins, read once; and again where others write at the same moment."""

    def __init__(self, kubectl: Kubectl) -> None:
        self._kubectl = kubectl
        self._read()

    def _read(self) -> None:
        self.daemon_sets = self._items("/apis/apps/v1/daemonsets")
        self.plugins = other_plugins(self.daemon_sets)
        self.nodes: Dict[str, Mapping[str, Any]] = {str(node["metadata"]["name"]): node for node in self._items("/api/v1/nodes")}
        self._operator = gpu_operator.read(self._kubectl)
        self._pods: Optional[List[PluginPod]] = None

    @property
    def pods(self) -> List[PluginPod]:
        """The pods of these plugins that have not ended."""
        if self._pods is None:
            self._pods = [pod for plugin in self.plugins for pod in self._pods_of(plugin)]
        return self._pods

    def plugins_on(self, nodes: Set[str]) -> List[OtherPlugin]:
        """The device plugins with a pod on one of these nodes, or whose label one of them has."""
        here = {pod.plugin for pod in self.pods if pod.node in nodes}
        return [plugin for plugin in self.plugins if plugin.title in here or any(self._selects(plugin, node) for node in nodes)]

    def nodes_of(self, plugin: OtherPlugin) -> Set[str]:
        """The nodes that it serves, or whose label it selects."""
        return {pod.node for pod in self.pods if pod.plugin == plugin.title} | {node for node in self.nodes if self._selects(plugin, node)}

    def move_aside(self, names: Sequence[str], dry: bool) -> TakeoverResult:
        """Move every plugin away that runs on these nodes. TakeOverError, before anything is changed, where that cannot be."""
        self._known(names)
        rejections = [plugin.rejection for plugin in self.plugins_on(set(names)) if plugin.rejection]
        if rejections:
            raise TakeOverError(" ".join(rejections) + " Nothing was changed.")
        # A plugin that has left a node already is still to get its affinity, if the attempt before was cut short.
        concerned = {plugin.title for plugin in self.plugins_on(set(names))}
        changes = self._converge(lambda: self._moves(names, concerned), dry)
        return TakeoverResult(changes, tuple(self._left(names) if not dry else [pod for pod in self.pods if pod.node in names]))

    def _moves(self, names: Sequence[str], concerned: Set[str]) -> List[MergePatch]:
        # The labels before the DaemonSets: in the other order these would make new pods on the nodes first.
        nodes = (aside.node_aside(node, self._switches(node)) for node in self._known(names))
        changes = [change for change in nodes if change is not None]
        for plugin in self.plugins:
            change = aside.daemon_set_aside(self._daemon_set(plugin)) if plugin.by_affinity and plugin.title in concerned else None
            changes += [change] if change is not None else []
        return changes

    def switch_operator_off(self, names: Sequence[str], dry: bool) -> TakeoverResult:
        """The GPU Operator's device plugin goes from all nodes, by the operator itself. left: its pods on these nodes."""
        self._known(names)
        changes = self._converge(self._switched_off, dry)
        self._pods = None
        theirs = {plugin.title for plugin in self.plugins if plugin.kind == OPERATOR}
        return TakeoverResult(changes, tuple(pod for pod in self.pods if pod.node in names and pod.plugin in theirs))

    def _switched_off(self) -> List[MergePatch]:
        found = [(gpu_operator.switched_off(policy), gpu_operator.policy_of(policy).owner) for policy in self._operator.items]
        if len(found) != 1 or (found[0][0] is not None and found[0][1]):
            seen = f"that of {found[0][1]}" if len(found) == 1 else f"{len(found)}"
            raise TakeOverError(f"found {seen}; expected one {gpu_operator.KIND} that nothing else brings to its state. Run preflight.yml")
        return [change for change, _owner in found if change is not None]

    def switch_operator_on(self, names: Sequence[str], dry: bool) -> TakeoverResult:
        """As it was, unless another node than these is ours."""
        kept: Dict[str, None] = {}
        changes = self._converge(lambda: self._switched_on(names, kept), dry)
        return TakeoverResult(changes, (), tuple(kept))

    def _switched_on(self, names: Sequence[str], kept: Dict[str, None]) -> List[MergePatch]:
        ours = {name for name, node in self.nodes.items() if (node["metadata"].get("labels") or {}).get(LABEL_NODE) == "true"}
        if ours - set(names):
            return []
        found = [gpu_operator.returned(policy) for policy in self._operator.items]
        kept.update(dict.fromkeys(words for _change, others in found for words in others))
        return [change for change, _others in found if change is not None]

    def give_back(self, names: Sequence[str], dry: bool) -> TakeoverResult:
        """The nodes as they were; and each DaemonSet as it was, once no node needs its change any more, and the GPU Operator's plugin."""
        kept: Dict[str, None] = {}
        stale = self._stale(names)
        changes = self._converge(lambda: self._returns(names, kept), dry)
        if not dry:
            for pod in stale:
                namespace, name = pod.name.split("/")
                self._kubectl.text(["--namespace", namespace, "delete", "pod", name, "--ignore-not-found", "--wait=false"])
        labels = {name: dict(node["metadata"].get("labels") or {}) for name, node in self.nodes.items()}
        for change in changes:
            if change.kind == "Node":
                labels[change.name].update(change.after["labels"])
        originals = [plugin for plugin in self.plugins if plugin.is_original]
        served = [name for name in names if any(_is_selected(plugin, labels.get(name, {})) for plugin in originals)]
        return TakeoverResult(changes, (), tuple(kept), tuple(served), tuple(stale))

    def _stale(self, names: Sequence[str]) -> List[PluginPod]:
        """Pods of the original on nodes without a number of GPUs, which its device plugin writes at its start only.

        kubelet has set it to 0 when it released ours, minutes after the original was given back.
        """
        titles = {plugin.title for plugin in self.plugins if plugin.is_original}
        capacities = {name: ((self.nodes.get(name) or {}).get("status") or {}).get("capacity") or {} for name in names}
        if not titles or not any(capacity.get(GPUS) == "0" for capacity in capacities.values()):
            return []
        found = [pod for pod in self.pods if pod.plugin in titles and not pod.terminating]
        return [pod for pod in found if capacities.get(pod.node, {}).get(GPUS) == "0"]

    def _returns(self, names: Sequence[str], kept: Dict[str, None]) -> List[MergePatch]:
        changes: List[MergePatch] = []
        for name in names:
            node = self.nodes.get(name)
            if node is None:
                continue
            change, others = aside.node_returned(node)
            changes += [change] if change is not None else []
            kept.update({f"label {label} of node {name}, which was changed since": None for label in others})
        labelled = {name for name, node in self.nodes.items() if LABEL_TAKEN_OVER in (node["metadata"].get("labels") or {})}
        if not labelled - set(names):
            back = [aside.daemon_set_returned(self._daemon_set(plugin)) for plugin in self.plugins]
            changes += [change for change in back if change is not None]
        return changes + self._switched_on(names, kept)

    def _switches(self, node: Mapping[str, Any]) -> List[Switch]:
        return [plugin.switch for plugin in self.plugins_on({str(node["metadata"]["name"])})]

    def _selects(self, plugin: OtherPlugin, node: str) -> bool:
        return _is_selected(plugin, (self.nodes.get(node) or {"metadata": {}})["metadata"].get("labels") or {})

    def _known(self, names: Sequence[str]) -> List[Mapping[str, Any]]:
        missing = [name for name in names if name not in self.nodes]
        if missing:
            raise TakeOverError(
                f"the cluster has no node {', '.join(missing[:8])[:200]}; expected the nodes of these hosts. Set gpushare_node_name. "
                "Nothing was changed."
            )
        return [self.nodes[name] for name in names]

    def _converge(self, plan: Callable[[], List[MergePatch]], dry: bool) -> Tuple[MergePatch, ...]:
        """Make what is planned; plan again where another client has changed an object since it was read. The changes made."""
        made: List[MergePatch] = []
        title = ""
        for _attempt in range(_ATTEMPTS):
            changes = plan()
            if dry:
                return tuple(changes)
            try:
                for change in changes:
                    self._write(change)
                    made.append(change)
                return tuple(made)
            except _ConflictError as error:
                title = str(error)
                time.sleep(_PAUSE_SECONDS)
                self._read()
        raise TakeOverError(
            f"{title} is changed by other clients all the time ({_ATTEMPTS} attempts); expected a moment without a change. Run again"
        )

    def _write(self, change: MergePatch) -> None:
        where = ["--namespace", change.namespace] if change.namespace else []
        patch = f"--patch={json.dumps(change.patch)}"
        try:
            self._kubectl.text([*where, "patch", change.resource, change.name, "--type=merge", patch])
        except KubectlError as error:
            if error.reason == "changed":
                raise _ConflictError(change.title) from None
            raise

    def _left(self, names: Sequence[str]) -> List[PluginPod]:
        self._pods = None
        return [pod for pod in self.pods if pod.node in names]

    def _daemon_set(self, plugin: OtherPlugin) -> Mapping[str, Any]:
        return next(item for item in self.daemon_sets if place_of(item) == (plugin.namespace, plugin.name))

    def _pods_of(self, plugin: OtherPlugin) -> List[PluginPod]:
        uid = self._daemon_set(plugin)["metadata"].get("uid")
        command = ["--namespace", plugin.namespace, "get", "pods"]
        found = self._kubectl.items([*command, *([f"--selector={plugin.selector}"] if plugin.selector else [])])
        return [
            PluginPod(
                str(pod["spec"]["nodeName"]),
                f"{plugin.namespace}/{pod['metadata']['name']}",
                plugin.title,
                bool(pod["metadata"].get("deletionTimestamp")),
            )
            for pod in found
            if pod["spec"].get("nodeName")
            and any(owner.get("uid") == uid for owner in pod["metadata"].get("ownerReferences") or ())
            and (pod.get("status") or {}).get("phase") not in _ENDED
        ]

    def _items(self, path: str) -> List[Dict[str, Any]]:
        # Raw, because kubectl prints lists of nothing in several ways.
        return list(json.loads(self._kubectl.text(["get", "--raw", path]))["items"])


def _is_selected(plugin: OtherPlugin, labels: Mapping[str, Any]) -> bool:
    return not plugin.by_affinity and labels.get(plugin.switch.label) == plugin.switch.stays


def active_pods(kubectl: Kubectl, nodes: Set[str]) -> Dict[str, str]:
    """UID to namespace/name of the pods on these nodes that have not ended."""
    columns = '{.metadata.uid}{" "}{.spec.nodeName}{" "}{.metadata.namespace}/{.metadata.name}{"\\n"}'
    selector = "--field-selector=spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
    lines = kubectl.text(["get", "pods", "--all-namespaces", selector, f"--output=jsonpath={{range .items[*]}}{columns}{{end}}"])
    words = (line.split(" ") for line in lines.splitlines())
    return {word[0]: word[2] for word in words if len(word) == 3 and word[1] in nodes}
