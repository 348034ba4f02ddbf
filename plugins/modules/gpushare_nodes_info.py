#!/usr/bin/python
# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpushare_nodes_info
short_description: List the device plugins' accounts, the nodes' states and the pods that have a share of a GPU
version_added: 0.1.0
description:
  - The roles C(admission) and C(uninstall) use this module. Its options may change in any release.
  - Lists the ServiceAccounts that this collection has made for device plugins, each of one node.
  - Lists the pods that are on a node, have not ended and request C(aliyun.com/gpu-mem), C(aliyun.com/gpu-count) or
    C(aliyun.com/gpu-core.percentage).
  - With O(dead_hosts), finds the Kubernetes node of each of them by the inventory, because a dead host cannot report its node. Fails if
    one of these nodes is Ready. A node that the API server no longer has is found by its account.
author: gpushare.kubernetes contributors (@gpushare)
extends_documentation_fragment:
  - gpushare.kubernetes.attributes
  - gpushare.kubernetes.attributes.info
  - gpushare.kubernetes.kubectl
options:
  dead_hosts:
    description: The dead hosts, by their names in the inventory. A name that the inventory does not have is the name of a Kubernetes node.
    type: list
    elements: str
  pods:
    description: Whether to list the pods. A large cluster has many of them.
    type: bool
    default: true
  pods_of:
    description: Names of the nodes whose pods are listed. By default all, and with O(dead_hosts) those that it has found.
    type: list
    elements: str
"""

EXAMPLES = r"""
- name: List the pods that have a share of a GPU on gpu1
  gpushare.kubernetes.gpushare_nodes_info:
    pods_of: [gpu1]

- name: Find the node of a dead host
  gpushare.kubernetes.gpushare_nodes_info:
    dead_hosts: [gpu2]
"""

RETURN = r"""
accounts:
  description: The names of the device plugins' accounts.
  returned: success
  type: list
  elements: str
  sample: [gpushare-device-plugin-gpu1]
without_node:
  description: Those of nodes that the cluster does not have.
  returned: success
  type: list
  elements: str
states:
  description: The status of each node's condition Ready, by the node's name.
  returned: success
  type: dict
  sample: {gpu1: "True"}
pods:
  description: The pods, by node.
  returned: success
  type: list
  elements: dict
  contains:
    pod: {description: Namespace and name., type: str, sample: default/train-0}
    node: {description: Its node., type: str, sample: gpu1}
    asks: {description: The resources., type: str, sample: aliyun.com/gpu-mem}
dead:
  description: Names of the dead hosts' nodes.
  returned: with O(dead_hosts)
  type: list
  elements: str
"""

import json

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster import kubectl as cluster_kubectl
from ansible_collections.gpushare.kubernetes.plugins.module_utils._removal.cluster import gpu_pods, node_states, plugin_accounts

PLACED = "--field-selector=spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"


def main() -> None:
    names = {"type": "list", "elements": "str"}
    module = AnsibleModule(
        argument_spec=dict(cluster_kubectl.ARGUMENTS, dead_hosts=names, pods={"type": "bool", "default": True}, pods_of=names),
        supports_check_mode=True,
    )
    kubectl, nodes_of_pods = cluster_kubectl.for_module(module), module.params["pods_of"]
    try:
        # Raw, because kubectl leaves out who has made an object.
        paths = ("/api/v1/namespaces/kube-system/serviceaccounts", "/api/v1/nodes")
        accounts, nodes = (json.loads(kubectl.text(["get", "--raw", path]))["items"] for path in paths)
        pods = kubectl.items(["get", "pods", "--all-namespaces", PLACED]) if module.params["pods"] else []
    except cluster_kubectl.KubectlError as error:
        module.fail_json(msg=str(error))
    holders = gpu_pods(pods, None if nodes_of_pods is None else set(nodes_of_pods))
    module.exit_json(changed=False, states=node_states(nodes), pods=holders, **plugin_accounts(accounts, nodes))


if __name__ == "__main__":
    main()
