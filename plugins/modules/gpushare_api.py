#!/usr/bin/python
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpushare_api
short_description: "Private: read facts of the cluster from the API server, move other device plugins away from nodes, and restore them"
version_added: 0.1.0
description:
  - Roles of this collection use this module on a control plane, C(in_cluster) with your kubeconfig. Its options may change in any release.
author: gpushare.kubernetes contributors (@gpushare)
extends_documentation_fragment:
  - gpushare.kubernetes.attributes
  - gpushare.kubernetes.attributes.changes
  - gpushare.kubernetes.kubectl
options:
  what:
    description:
      - V(facts) reads the facts for preflight.
      - V(nodes) lists the ServiceAccounts that this collection has made for device plugins, each of one node, and the nodes' states. Lists
        the pods that are on a node, have not ended and request C(aliyun.com/gpu-mem), C(aliyun.com/gpu-count) or
        C(aliyun.com/gpu-core.percentage), and those with a claim on a GPU of this collection's driver.
      - V(plugins) finds the DaemonSets of NVIDIA's device plugin, the GPU Operator, HAMi and the original gpushare, and the nodes that
        each serves.
      - V(aside) changes the label of the nodes that such a DaemonSet selects. If the DaemonSet has no such label, adds an expression to
        its node affinity and labels the nodes. Annotations of nodes and DaemonSet store the state before.
      - V(returned) restores the labels of the nodes. Restores the DaemonSet as soon as no other node needs its change. Labels and
        affinities that others have changed since lose only the part of this collection. Restarts the original's device plugin on nodes
        whose number of GPUs kubelet has set to 0. The original writes that number when it starts.
      - V(operator_off) sets C(spec.devicePlugin.enabled) of the GPU Operator's ClusterPolicy to V(false), by which the operator deletes its
        device plugin on every node. An annotation stores the state before. Rejects a ClusterPolicy that a chart or a tool owns.
      - V(operator_returned) restores the ClusterPolicy as soon as no other node is one of this collection, as V(returned) does, too.
      - V(retired) deletes the parts of the original gpushare, and fails while they serve a node. C(kubectl apply -f) restores them from the
        file C(/var/lib/gpushare-original/objects.json) on this host.
    type: str
    choices: [facts, nodes, plugins, aside, returned, operator_off, operator_returned, retired]
    required: true
  nodes: {description: Names of the nodes that are to change., type: list, elements: str, default: []}
  pods: {description: Whether V(nodes) lists the pods. A large cluster has many of them., type: bool, default: true}
  pods_of: {description: "Names of the nodes whose pods are listed. By default all, and with V(plugins) none.", type: list, elements: str}
"""

EXAMPLES = r"""
- name: Ask the API server
  gpushare.kubernetes.gpushare_api:
    what: facts
  register: cluster
"""

RETURN = r"""
version: {description: Version of the API server., returned: with O(what=facts), type: str, sample: v1.36.3}
nodes: {description: Names of the nodes., returned: with O(what=facts), type: list, elements: str, sample: [cp1, gpu1]}
authorities:
  description: SHA-256 of each certificate authority of the cluster, as this host has them.
  returned: with O(what=facts)
  type: list
  elements: str
in_cluster:
  description: The DaemonSets of gpushare's device plugin, if the cluster has it as pods.
  returned: with O(what=facts)
  type: list
  elements: str
  sample: [gpushare-system/gpushare-device-plugin]
gpu_operator:
  description: NVIDIA's GPU Operator, its ClusterPolicy and GPUCluster, and the nodes that it serves.
  returned: with O(what=facts)
  type: dict
dra:
  description: Drivers that publish NVIDIA's GPUs for dynamic resource allocation, and pods that have some, each with its node.
  returned: with O(what=facts)
  type: dict
may_grant: {description: Whether this kubeconfig may make roles and bind them., returned: with O(what=facts), type: bool}
kubeadm:
  description: Version and feature gates of kubeadm's ClusterConfiguration, V("") and none where there is none.
  returned: with O(what=facts)
  type: dict
  sample: {version: v1beta4, feature_gates: []}
accounts:
  description: The names of the device plugins' accounts.
  returned: with O(what=nodes)
  type: list
  elements: str
  sample: [gpushare-device-plugin-gpu1]
without_node: {description: Those of nodes that the cluster does not have., returned: with O(what=nodes), type: list, elements: str}
states:
  description: The status of each node's condition Ready, by the node's name.
  returned: with O(what=nodes)
  type: dict
  sample: {gpu1: "True"}
pods:
  description: The pods, by node.
  returned: with O(what=nodes)
  type: list
  elements: dict
  contains:
    pod: {description: Namespace and name., type: str, sample: default/train-0}
    node: {description: Its node., type: str, sample: gpu1}
    asks: {description: The resources., type: str, sample: aliyun.com/gpu-mem}
plugins:
  description: The DaemonSets of other device plugins.
  returned: with O(what=plugins)
  type: list
  elements: dict
  contains:
    kind: {description: The project., type: str, sample: NVIDIA device plugin}
    title: {description: The DaemonSet., type: str, sample: DaemonSet kube-system/nvidia-device-plugin-daemonset}
    owner: {description: The tool that would undo a change of the DaemonSet., type: str}
    rejection: {description: Why it cannot be moved aside. Empty if it can., type: str}
    original: {description: Whether it is that of the original gpushare., type: bool}
    nodes: {description: The nodes that it serves., type: list, elements: str}
active: {description: UID to namespace and name of the pods on these nodes that have not ended., returned: with O(what=plugins), type: dict}
writers: {description: "User names of the original's accounts.", returned: with O(what=plugins), type: list, elements: str}
node_ports: {description: "NodePorts of the original's Service.", returned: with O(what=plugins), type: list, elements: int}
objects:
  description: The changed objects (in check mode, the objects to change).
  returned: for changes
  type: list
  elements: str
  sample: [Node gpu1]
left: {description: Pods of other device plugins that are still on the nodes., returned: for changes, type: list, elements: str}
kept: {description: "Labels that others have changed, and that therefore stay.", returned: for changes, type: list, elements: str}
served:
  description: The nodes that the device plugin of the original gpushare serves, with O(what=returned).
  returned: for changes
  type: list
  elements: str
"""

import json
import os

from ansible.module_utils.basic import AnsibleModule

from ..module_utils._cluster import dra
from ..module_utils._cluster import kubectl as cluster_kubectl
from ..module_utils._cluster.names import ANNOTATION_GPUS, PLUGIN
from ..module_utils._cluster.objects import diff_of, key, title
from ..module_utils._facts.authority import authorities
from ..module_utils._formats.answers import answer_of
from ..module_utils._host.answering import answering
from ..module_utils._host.host import Host
from ..module_utils._in_cluster import claims
from ..module_utils._removal.cluster import NodesOfCluster, gpu_pods, node_states, ours, plugin_accounts
from ..module_utils._scheduler import kubeadm
from ..module_utils._takeover import operator as gpu_operator
from ..module_utils._takeover import original
from ..module_utils._takeover.cluster import ApiFacts, KubeadmFacts, OtherPlugins, PluginsFound, PluginsMoved, active_pods

CHANGES = ("aside", "returned", "operator_off", "operator_returned", "retired")
SAVED = "/var/lib/gpushare-original/objects.json"
KUBELET_CONFIG = "/var/lib/kubelet/config.yaml"
PLACED = "--field-selector=spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"


def facts(kubectl: cluster_kubectl.Kubectl, params: dict, _dry: bool) -> ApiFacts:
    """The facts for preflight."""
    # Ours alone: the original's DaemonSet may have the same name.
    named = ["--field-selector", f"metadata.name={PLUGIN}", "--show-managed-fields"]
    version = str(json.loads(kubectl.text(["get", "--raw", "/version"])).get("gitVersion"))
    nodes = [line.partition("/")[2] for line in kubectl.text(["get", "nodes", "--output=name"]).split()]
    found = ours(kubectl.items(["get", "daemonsets.apps", "--all-namespaces", *named]), "apps/v1", "DaemonSet")
    return ApiFacts(
        changed=False,
        version=version[:80],
        nodes=nodes,
        in_cluster=[f"{plugin.namespace}/{plugin.name}" for plugin in found],
        gpu_operator=gpu_operator.gathered(kubectl),
        dra=dra.gathered(kubectl),
        authorities=list(authorities(Host(), KUBELET_CONFIG)),
        may_grant=_may_grant(kubectl),
        kubeadm=_kubeadm(kubectl),
    )


def _may_grant(kubectl: cluster_kubectl.Kubectl) -> bool:
    try:
        # It prints "no", and ends with 1, where the answer is no.
        return kubectl.text(["auth", "can-i", "create", "clusterrolebindings.rbac.authorization.k8s.io"]).strip() == "yes"
    except cluster_kubectl.KubectlError:
        return False


def _kubeadm(kubectl: cluster_kubectl.Kubectl) -> KubeadmFacts:
    """The version and the feature gates of kubeadm's ClusterConfiguration, "" where there is none, or it may not be read."""
    try:
        found = kubectl.json(["get", "configmap", "--namespace", "kube-system", kubeadm.NAME, "--ignore-not-found"])
    except cluster_kubectl.KubectlError:
        found = None
    version, gates = kubeadm.version_and_gates(((found or {}).get("data") or {}).get(kubeadm.KEY) or "")
    return KubeadmFacts(version, gates)


def of_nodes(kubectl: cluster_kubectl.Kubectl, params: dict, _dry: bool) -> NodesOfCluster:
    """The device plugins' accounts, the nodes' states, and the pods that have a share of a GPU."""
    # Raw, because kubectl leaves out who has made an object.
    paths = ("/api/v1/namespaces/kube-system/serviceaccounts", "/api/v1/nodes")
    accounts, nodes = (json.loads(kubectl.text(["get", "--raw", path]))["items"] for path in paths)
    holders = _holders(kubectl, None if params["pods_of"] is None else set(params["pods_of"])) if params["pods"] else []
    return NodesOfCluster(False, *plugin_accounts(accounts, nodes), states=node_states(nodes), pods=holders)


def _holders(kubectl: cluster_kubectl.Kubectl, nodes: "set | None") -> list:
    """Pods with a share on these nodes (None: on any), by a limit or by a claim. A pod whose limit became a claim has no limit."""
    found = gpu_pods(kubectl.items(["get", "pods", "--all-namespaces", PLACED]), nodes)
    known = {holder["pod"] for holder in found}
    by_claim = [holder for holder in claims.holding(dra.facts(kubectl), nodes) if holder["pod"] not in known]
    return sorted(found + by_claim, key=lambda holder: (holder["node"], holder["pod"]))


def plugins(kubectl: cluster_kubectl.Kubectl, params: dict, _dry: bool) -> PluginsFound:
    """The device plugins of others."""
    cluster = OtherPlugins(kubectl)
    found = original.parts(kubectl, cluster)
    others = [plugin.found(cluster.nodes_of(plugin)) for plugin in cluster.plugins]
    return PluginsFound(False, others, active_pods(kubectl, set(params["pods_of"] or ())), found.writers, found.node_ports)


def change(kubectl: cluster_kubectl.Kubectl, params: dict, dry: bool) -> PluginsMoved:
    """Move the device plugins of others aside, or restore them."""
    cluster = OtherPlugins(kubectl)
    if params["what"] == "retired":
        return _retire(kubectl, cluster, dry)
    calls = {
        "aside": cluster.move_aside,
        "returned": cluster.give_back,
        "operator_off": cluster.switch_operator_off,
        "operator_returned": cluster.switch_operator_on,
    }
    found = calls[params["what"]](params["nodes"], dry)
    return PluginsMoved(
        changed=bool(found.changes or found.restarted),
        objects=[object_change.title for object_change in found.changes] + [f"Pod {pod.name}" for pod in found.restarted],
        left=sorted(pod.name for pod in found.left),
        kept=list(found.kept),
        served=list(found.served),
        diff=[object_change.diff() for object_change in found.changes],
    )


def _retire(kubectl: cluster_kubectl.Kubectl, cluster: OtherPlugins, dry: bool) -> PluginsMoved:
    found = original.parts(kubectl, cluster)
    titles = [title(key(part)) for part in found.all]
    if titles:
        serving = [name for name, node in cluster.nodes.items() if ANNOTATION_GPUS in (node["metadata"].get("annotations") or {})]
        original.check_unused(found, cluster, serving)
        if not dry:
            _save(original.for_file(found))
            original.retire(kubectl, found)
    return PluginsMoved(bool(titles), titles, [], [], [], diff_of(titles))


def _save(text: str) -> None:
    """Beside what an earlier run has saved: it may have been interrupted between two deletions."""
    os.makedirs(os.path.dirname(SAVED), mode=0o700, exist_ok=True)
    items = json.loads(text)["items"]
    names = {key(item) for item in items}
    items += [item for item in _saved() if key(item) not in names]
    descriptor = os.open(SAVED + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=1, sort_keys=True) + "\n")
    os.replace(SAVED + ".new", SAVED)


def _saved() -> list:
    try:
        with open(SAVED) as file:
            return list(json.load(file)["items"])
    except (OSError, ValueError, KeyError, TypeError):
        return []


OPERATIONS = {"facts": facts, "nodes": of_nodes, "plugins": plugins, **dict.fromkeys(CHANGES, change)}


def main() -> None:
    module = AnsibleModule(
        argument_spec=dict(
            cluster_kubectl.ARGUMENTS,
            what={"type": "str", "choices": list(OPERATIONS), "required": True},
            nodes={"type": "list", "elements": "str", "default": []},
            pods={"type": "bool", "default": True},
            pods_of={"type": "list", "elements": "str"},
        ),
        supports_check_mode=True,
    )
    kubectl, params = cluster_kubectl.for_module(module), module.params
    with answering(module):
        try:
            result = OPERATIONS[params["what"]](kubectl, params, module.check_mode)
        except (ValueError, AttributeError) as error:
            # Objects of others, in another shape.
            raise cluster_kubectl.KubectlError(str(error)) from error
    module.exit_json(**answer_of(result))


if __name__ == "__main__":
    main()
