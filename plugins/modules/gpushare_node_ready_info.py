#!/usr/bin/python
# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpushare_node_ready_info
short_description: Check whether a node is ready since its container runtime was restarted
version_added: 0.1.0
description:
  - The role C(container_runtime) uses this module. Its options may change in any release.
  - Reads the node's condition C(Ready) and its lease, once. The condition counts only with a later heartbeat of kubelet, by the time
    that kubelet needs to notice a restart. Use it with C(until).
author: gpushare.kubernetes contributors (@gpushare)
extends_documentation_fragment:
  - gpushare.kubernetes.attributes
  - gpushare.kubernetes.attributes.info
  - gpushare.kubernetes.kubectl
options:
  node:
    description: Name of the node.
    type: str
    required: true
  since:
    description: When the container runtime was restarted, as Unix time of the node's clock.
    type: float
    required: true
"""

EXAMPLES = r"""
- name: Wait until the node is ready
  gpushare.kubernetes.gpushare_node_ready_info:
    node: gpu1
    since: "{{ container_runtime.restarted_at }}"
  register: node
  until: node.ready
  retries: 20
  delay: 3
  delegate_to: cp1
"""

RETURN = r"""
ready:
  description: Whether it is ready.
  returned: always
  type: bool
msg:
  description: The missing condition.
  returned: when it is not ready
  type: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster import kubectl as cluster_kubectl
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.node_ready import not_ready


def main() -> None:
    module = AnsibleModule(
        argument_spec=dict(
            cluster_kubectl.ARGUMENTS,
            node={"type": "str", "required": True},
            since={"type": "float", "required": True},
        ),
        supports_check_mode=True,
    )
    kubectl, name = cluster_kubectl.for_module(module), module.params["node"]
    try:
        node = kubectl.json(["get", "--ignore-not-found", "node", name])
        lease = kubectl.json(["get", "--ignore-not-found", "--namespace", "kube-node-lease", "lease", name])
    except (cluster_kubectl.KubectlError, ValueError) as error:
        # The API server of the only control plane may have been restarted along with its containerd.
        module.exit_json(changed=False, ready=False, msg=str(error))
    why = not_ready(node, lease, module.params["since"])
    module.exit_json(changed=False, ready=why is None, **({} if why is None else {"msg": f"node {name}: {why}"}))


if __name__ == "__main__":
    main()
