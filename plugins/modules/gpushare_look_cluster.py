#!/usr/bin/python
# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpushare_look_cluster
short_description: Read facts of the cluster from the API server
version_added: 0.1.0
description:
  - Roles of this collection use this module on a control plane. Its options may change in any release.
author: gpushare.kubernetes contributors (@gpushare)
extends_documentation_fragment:
  - gpushare.kubernetes.attributes
  - gpushare.kubernetes.attributes.info
  - gpushare.kubernetes.kubectl
options:
  what:
    description:
      - V(api) reads the facts for preflight.
      - V(nodes) lists the ServiceAccounts that this collection has made for device plugins, each of one node, and the nodes' states. Lists
        the pods that are on a node, have not ended and request C(aliyun.com/gpu-mem), C(aliyun.com/gpu-count) or
        C(aliyun.com/gpu-core.percentage).
      - V(take_over) finds the DaemonSets of NVIDIA's device plugin, the GPU Operator, HAMi and the original gpushare, and the nodes that
        each serves.
    type: str
    choices: [api, nodes, take_over]
    required: true
  pods:
    description: Whether V(nodes) lists the pods. A large cluster has many of them.
    type: bool
    default: true
  pods_of:
    description: Names of the nodes whose pods are listed. By default all, and with V(take_over) none.
    type: list
    elements: str
"""

EXAMPLES = r"""
- name: Ask the API server
  gpushare.kubernetes.gpushare_look_cluster:
    what: api
  register: cluster

- name: List the pods that have a share of a GPU on gpu1
  gpushare.kubernetes.gpushare_look_cluster:
    what: nodes
    pods_of: [gpu1]
"""

RETURN = r"""
version:
  description: Version of the API server.
  returned: with O(what=api)
  type: str
  sample: v1.36.3
nodes:
  description: Names of the nodes.
  returned: with O(what=api)
  type: list
  elements: str
  sample: [cp1, gpu1]
authorities:
  description: SHA-256 of each certificate authority of the cluster, as this host has them.
  returned: with O(what=api)
  type: list
  elements: str
in_cluster:
  description: The DaemonSets of gpushare's device plugin, if the cluster has it as pods.
  returned: with O(what=api)
  type: list
  elements: str
  sample: [gpushare-system/gpushare-device-plugin]
gpu_operator:
  description: NVIDIA's GPU Operator, its ClusterPolicy and the nodes that it serves.
  returned: with O(what=api)
  type: dict
may_grant:
  description: Whether this kubeconfig may make roles and bind them.
  returned: with O(what=api)
  type: bool
accounts:
  description: The names of the device plugins' accounts.
  returned: with O(what=nodes)
  type: list
  elements: str
  sample: [gpushare-device-plugin-gpu1]
without_node:
  description: Those of nodes that the cluster does not have.
  returned: with O(what=nodes)
  type: list
  elements: str
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
  returned: with O(what=take_over)
  type: list
  elements: dict
  contains:
    kind: {description: The project., type: str, sample: NVIDIA device plugin}
    title: {description: The DaemonSet., type: str, sample: DaemonSet kube-system/nvidia-device-plugin-daemonset}
    owner: {description: The tool that would undo a change of the DaemonSet., type: str}
    rejection: {description: Why it cannot be moved aside. Empty if it can., type: str}
    original: {description: Whether it is that of the original gpushare., type: bool}
    nodes: {description: The nodes that it serves., type: list, elements: str}
active:
  description: UID to namespace and name of the pods on these nodes that have not ended.
  returned: with O(what=take_over)
  type: dict
writers:
  description: User names of the original's accounts.
  returned: with O(what=take_over)
  type: list
  elements: str
node_ports:
  description: NodePorts of the original's Service.
  returned: with O(what=take_over)
  type: list
  elements: int
"""

import json

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster import kubectl as cluster_kubectl
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.names import PLUGIN
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts.authority import authorities
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.host import Host
from ansible_collections.gpushare.kubernetes.plugins.module_utils._removal.cluster import gpu_pods, node_states, ours, plugin_accounts
from ansible_collections.gpushare.kubernetes.plugins.module_utils._takeover import operator as gpu_operator
from ansible_collections.gpushare.kubernetes.plugins.module_utils._takeover.cluster import OtherPlugins, active_pods
from ansible_collections.gpushare.kubernetes.plugins.module_utils._takeover.original import parts

KUBELET_CONFIG = "/var/lib/kubelet/config.yaml"
PLACED = "--field-selector=spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"


def api(kubectl: cluster_kubectl.Kubectl, params: dict) -> dict:
    """The facts for preflight."""
    # Ours alone: the original's DaemonSet may have the same name.
    named = ["--field-selector", f"metadata.name={PLUGIN}", "--show-managed-fields"]
    version = str(json.loads(kubectl.text(["get", "--raw", "/version"])).get("gitVersion"))
    nodes = [line.partition("/")[2] for line in kubectl.text(["get", "nodes", "--output=name"]).split()]
    found = ours(kubectl.items(["get", "daemonsets.apps", "--all-namespaces", *named]), "apps/v1", "DaemonSet")
    return {
        "version": version[:80],
        "nodes": nodes,
        "in_cluster": [f"{one.namespace}/{one.name}" for one in found],
        "gpu_operator": gpu_operator.facts(kubectl),
        "authorities": list(authorities(Host(), KUBELET_CONFIG)),
        "may_grant": _may_grant(kubectl),
    }


def _may_grant(kubectl: cluster_kubectl.Kubectl) -> bool:
    try:
        # It prints "no", and ends with 1, where the answer is no.
        return kubectl.text(["auth", "can-i", "create", "clusterrolebindings.rbac.authorization.k8s.io"]).strip() == "yes"
    except cluster_kubectl.KubectlError:
        return False


def of_nodes(kubectl: cluster_kubectl.Kubectl, params: dict) -> dict:
    """The device plugins' accounts, the nodes' states, and the pods that have a share of a GPU."""
    # Raw, because kubectl leaves out who has made an object.
    paths = ("/api/v1/namespaces/kube-system/serviceaccounts", "/api/v1/nodes")
    accounts, nodes = (json.loads(kubectl.text(["get", "--raw", path]))["items"] for path in paths)
    pods = kubectl.items(["get", "pods", "--all-namespaces", PLACED]) if params["pods"] else []
    holders = gpu_pods(pods, None if params["pods_of"] is None else set(params["pods_of"]))
    return {"states": node_states(nodes), "pods": holders, **plugin_accounts(accounts, nodes)}


def take_over(kubectl: cluster_kubectl.Kubectl, params: dict) -> dict:
    """The device plugins of others."""
    cluster = OtherPlugins(kubectl)
    original = parts(kubectl, cluster)
    return {
        "plugins": [{**plugin.as_dict(), "nodes": sorted(cluster.nodes_of(plugin))} for plugin in cluster.plugins],
        "active": active_pods(kubectl, set(params["pods_of"] or ())),
        "writers": original.writers,
        "node_ports": original.node_ports,
    }


def main() -> None:
    subjects = {"api": api, "nodes": of_nodes, "take_over": take_over}
    module = AnsibleModule(
        argument_spec=dict(
            cluster_kubectl.ARGUMENTS,
            what={"type": "str", "choices": list(subjects), "required": True},
            pods={"type": "bool", "default": True},
            pods_of={"type": "list", "elements": "str"},
        ),
        supports_check_mode=True,
    )
    try:
        module.exit_json(changed=False, **subjects[module.params["what"]](cluster_kubectl.for_module(module), module.params))
    except (cluster_kubectl.KubectlError, ValueError, AttributeError) as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
