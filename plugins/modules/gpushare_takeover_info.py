#!/usr/bin/python
# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpushare_takeover_info
short_description: Find the device plugins of others, and the reasons that prevent a take-over
version_added: 0.1.0
description:
  - The role C(take_over) uses this module, on a control plane. Its options may change in any release.
  - Finds the DaemonSets of NVIDIA's device plugin, the GPU Operator, HAMi and the original gpushare, and the nodes that each serves.
  - Compares them with the facts of the GPU hosts. Returns a reason for each host or DaemonSet that prevents the take-over.
author: gpushare.kubernetes contributors (@gpushare)
extends_documentation_fragment:
  - gpushare.kubernetes.attributes
  - gpushare.kubernetes.attributes.info
  - gpushare.kubernetes.kubectl
options:
  hosts:
    description: The GPU hosts, by their names in the inventory.
    type: list
    elements: str
  facts:
    description:
      - Name of the variable of each host with its facts, a result of M(gpushare.kubernetes.gpu_node_info) or
        M(gpushare.kubernetes.gpushare_judge).
    type: str
  extender_port:
    description: Port of gpushare's extender.
    type: int
    default: 32766
  drain:
    description: Whether pods are evicted first. Pods with GPUs of another device plugin then prevent nothing.
    type: bool
    default: false
  gpu_operator:
    description: Whether this run switches the GPU Operator's device plugin off (V(patch)), or must find it so.
    type: str
    choices: [check, patch]
    default: check
  nodes:
    description: Names of the nodes. The module's own action sets this option.
    type: list
    elements: str
"""

EXAMPLES = r"""
- name: Find the device plugins of others
  gpushare.kubernetes.gpushare_takeover_info:
    hosts: [gpu1, gpu2]
    facts: __preflight_host
"""

RETURN = r"""
plugins:
  description: The DaemonSets of other device plugins.
  returned: success
  type: list
  elements: dict
  contains:
    kind: {description: The project., type: str, sample: NVIDIA device plugin}
    title: {description: The DaemonSet., type: str, sample: DaemonSet kube-system/nvidia-device-plugin-daemonset}
    owner: {description: The tool that would undo a change of the DaemonSet., type: str}
    rejection: {description: Why it cannot be moved aside. Empty if it can., type: str}
    original: {description: Whether it is that of the original gpushare., type: bool}
    nodes: {description: The nodes that it serves., type: list, elements: str}
pods:
  description: UID to namespace and name of the pods on these nodes that have not ended.
  returned: success
  type: dict
writers:
  description: User names of the original's accounts.
  returned: success
  type: list
  elements: str
node_ports:
  description: NodePorts of the original's Service.
  returned: success
  type: list
  elements: int
rejections:
  description: The reasons that prevent the take-over.
  returned: success
  type: list
  elements: str
moves:
  description: Host to the DaemonSets that leave it.
  returned: success
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster import kubectl as cluster_kubectl
from ansible_collections.gpushare.kubernetes.plugins.module_utils._takeover.cluster import OtherPlugins, active_pods
from ansible_collections.gpushare.kubernetes.plugins.module_utils._takeover.operator import CHECK, MODES
from ansible_collections.gpushare.kubernetes.plugins.module_utils._takeover.original import parts


def main() -> None:
    module = AnsibleModule(
        argument_spec=dict(
            cluster_kubectl.ARGUMENTS,
            hosts={"type": "list", "elements": "str"},
            facts={"type": "str"},
            extender_port={"type": "int", "default": 32766},
            drain={"type": "bool", "default": False},
            gpu_operator={"type": "str", "choices": list(MODES), "default": CHECK},
            nodes={"type": "list", "elements": "str"},
        ),
        supports_check_mode=True,
    )
    kubectl = cluster_kubectl.for_module(module)
    nodes = set(module.params["nodes"] or ())
    try:
        cluster = OtherPlugins(kubectl)
        original = parts(kubectl, cluster)
        plugins = [{**plugin.as_dict(), "nodes": sorted(cluster.nodes_of(plugin))} for plugin in cluster.plugins]
        pods = active_pods(kubectl, nodes)
    except cluster_kubectl.KubectlError as error:
        module.fail_json(msg=str(error))
    module.exit_json(
        changed=False,
        plugins=plugins,
        pods=pods,
        writers=original.writers,
        node_ports=original.node_ports,
    )


if __name__ == "__main__":
    main()
