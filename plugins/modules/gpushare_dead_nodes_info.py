#!/usr/bin/python
# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpushare_dead_nodes_info
short_description: Find the Kubernetes nodes of hosts that no longer run
version_added: 0.1.0
description:
  - The role C(uninstall) uses this module, on a control plane. Its options may change in any release.
  - Finds the Kubernetes node of each host by the inventory, because a dead host cannot report its node. Fails if one of these nodes is
    Ready. A node that the API server no longer has is found by its account.
author: gpushare.kubernetes contributors (@gpushare)
extends_documentation_fragment:
  - gpushare.kubernetes.attributes
  - gpushare.kubernetes.attributes.info
  - gpushare.kubernetes.kubectl
options:
  names:
    description: The dead hosts, by their names in the inventory. A name that the inventory does not have is the name of a Kubernetes node.
    type: list
    elements: str
    required: true
"""

EXAMPLES = r"""
- name: Find the node of a dead host
  gpushare.kubernetes.gpushare_dead_nodes_info:
    names: [gpu2]
"""

RETURN = r"""
nodes:
  description: Names of the nodes.
  returned: success
  type: list
  elements: str
pods:
  description: >-
    Pods with a share of a GPU that the API server still has on these nodes, as M(gpushare.kubernetes.gpushare_pods_info) lists them.
  returned: success
  type: list
  elements: dict
"""

import json

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster import kubectl as cluster_kubectl
from ansible_collections.gpushare.kubernetes.plugins.module_utils._removal.cluster import gpu_pods, node_states, plugin_accounts


def main() -> None:
    module = AnsibleModule(
        argument_spec=dict(cluster_kubectl.ARGUMENTS, names={"type": "list", "elements": "str", "required": True}),
        supports_check_mode=True,
    )
    kubectl = cluster_kubectl.for_module(module)
    paths = ("/api/v1/namespaces/kube-system/serviceaccounts", "/api/v1/nodes", "/api/v1/pods")
    try:
        # Raw, because kubectl leaves out who has made an object.
        accounts, nodes, pods = (json.loads(kubectl.text(["get", "--raw", path]))["items"] for path in paths)
    except cluster_kubectl.KubectlError as error:
        module.fail_json(msg=str(error))
    found = plugin_accounts(accounts, nodes)["accounts"]
    module.exit_json(changed=False, states=node_states(nodes), accounts=found, pods=gpu_pods(pods, None))


if __name__ == "__main__":
    main()
