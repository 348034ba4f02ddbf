#!/usr/bin/python
# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpushare_verify_cluster
short_description: Gather everything of gpushare in the API
version_added: 0.1.0
description:
  - The role C(verify) uses this module. Its options may change in any release.
  - Gathers the nodes, the pods that request or have GPUs, and the running schedulers, in one call on a control plane. Compares
    gpushare's own objects with those that its roles apply, by the server's dry run.
  - Returns evidence only. M(gpushare.kubernetes.gpushare_judge) judges it, together with that of the hosts.
author: gpushare.kubernetes contributors (@gpushare)
extends_documentation_fragment:
  - gpushare.kubernetes.attributes
  - gpushare.kubernetes.attributes.info
  - gpushare.kubernetes.kubectl
options:
  nodes:
    description: Names of the nodes whose GPUs are shared.
    type: list
    elements: str
    required: true
  schedulers:
    description: Names of the nodes whose kube-scheduler calls the extender.
    type: list
    elements: str
    default: []
  objects:
    description: Complete objects as the roles apply them.
    type: list
    elements: dict
    default: []
  settle:
    description:
      - Seconds to wait until kubelet has reported the device plugin's resources, which it does every ten seconds. Use it right after the
        start of a device plugin. With V(0) the module reads once.
    type: int
    default: 0
"""

EXAMPLES = r"""
- name: Look at the cluster
  gpushare.kubernetes.gpushare_verify_cluster:
    nodes: [gpu1, gpu2]
    schedulers: [cp1]
  register: cluster
  delegate_to: cp1
  run_once: true
"""

RETURN = r"""
seen:
  description: The evidence, for M(gpushare.kubernetes.gpushare_judge).
  returned: success
  type: dict
"""

import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster import kubectl as cluster_kubectl
from ansible_collections.gpushare.kubernetes.plugins.module_utils._evidence import cluster


def main() -> None:
    module = AnsibleModule(
        argument_spec=dict(
            cluster_kubectl.ARGUMENTS,
            nodes={"type": "list", "elements": "str", "required": True},
            schedulers={"type": "list", "elements": "str", "default": []},
            objects={"type": "list", "elements": "dict", "default": []},
            settle={"type": "int", "default": 0},
        ),
        supports_check_mode=True,
    )
    params, kubectl = module.params, cluster_kubectl.for_module(module)
    deadline = time.monotonic() + params["settle"]
    try:
        nodes = cluster.nodes(kubectl, params["nodes"])
        while not all(map(cluster.settled, nodes)) and time.monotonic() < deadline:
            time.sleep(1)
            nodes = cluster.nodes(kubectl, params["nodes"])
        seen = {
            "nodes": nodes,
            "schedulers": cluster.schedulers(kubectl, params["schedulers"]),
            "objects": cluster.objects(kubectl, params["objects"]),
            # Last: kubelet tells the API a second or two late of a container that ended right before the hosts were read.
            "pods": cluster.pods(kubectl),
        }
    except cluster_kubectl.KubectlError as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, seen=seen)


if __name__ == "__main__":
    main()
