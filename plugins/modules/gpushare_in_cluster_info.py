#!/usr/bin/python
# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpushare_in_cluster_info
short_description: Read what an installation in the cluster depends on from the API server
version_added: 0.1.0
description:
  - The role C(in_cluster) uses this module. Its options may change in any release.
author: gpushare.kubernetes contributors (@gpushare)
extends_documentation_fragment:
  - gpushare.kubernetes.attributes
  - gpushare.kubernetes.attributes.info
  - gpushare.kubernetes.kubectl
options:
  namespace:
    description: The namespace of gpushare's pods.
    type: str
    required: true
  nodes:
    description: Names of the GPU nodes. Without them, the nodes with the label C(gpushare.kubernetes/node=true).
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Ask the API server
  gpushare.kubernetes.gpushare_in_cluster_info:
    namespace: gpushare-system
    kubeconfig: "{{ lookup('env', 'KUBECONFIG') }}"
"""

RETURN = r"""
version:
  description: Version of the API server.
  returned: success
  type: str
admission:
  description: Kinds of admission policies that the API server has.
  returned: success
  type: list
  elements: str
openshift:
  description: Whether the API server has SecurityContextConstraints.
  returned: success
  type: bool
nodes:
  description: The GPU nodes, with their architecture and images.
  returned: success
  type: list
  elements: dict
number:
  description: Number of all nodes.
  returned: success
  type: int
missing:
  description: Names of nodes that the cluster does not have.
  returned: success
  type: list
  elements: str
runtime_classes:
  description: Names of the RuntimeClasses.
  returned: success
  type: list
  elements: str
enforces:
  description: The standard for pods that the namespace enforces.
  returned: success
  type: str
on_hosts:
  description: Accounts of daemons that are services of hosts.
  returned: success
  type: list
  elements: str
others:
  description: DaemonSets of other device plugins that serve GPU nodes of this collection.
  returned: success
  type: list
  elements: dict
holders:
  description: Pods on these nodes with GPUs of NVIDIA's device plugin.
  returned: success
  type: list
  elements: str
gpu_operator:
  description: NVIDIA's GPU Operator, its ClusterPolicy and the nodes that it serves.
  returned: success
  type: dict
unit:
  description: Memory unit of the installed device plugin.
  returned: success
  type: str
pods:
  description: Pods with a share of a GPU.
  returned: success
  type: list
  elements: str
may_bind:
  description: "The API server's reason against a binding of system:kube-scheduler, or nothing."
  returned: success
  type: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster import kubectl as cluster_kubectl
from ansible_collections.gpushare.kubernetes.plugins.module_utils._in_cluster.facts import gather


def main() -> None:
    module = AnsibleModule(
        argument_spec=dict(
            cluster_kubectl.ARGUMENTS,
            namespace={"type": "str", "required": True},
            nodes={"type": "list", "elements": "str", "default": []},
        ),
        supports_check_mode=True,
    )
    try:
        facts = gather(cluster_kubectl.for_module(module), module.params["namespace"], module.params["nodes"])
    except (cluster_kubectl.KubectlError, ValueError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, **facts)


if __name__ == "__main__":
    main()
