#!/usr/bin/python
# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpushare_in_cluster_remove
short_description: Remove gpushare's pods, and what they have left on nodes
version_added: 0.1.0
description:
  - The role C(in_cluster) uses this module. Its options may change in any release.
  - Stops before the first change, if pods with a share of a GPU run. Deletes the workloads, removes the state folder and the sockets of
    the device plugin on each GPU node by a pod, and deletes the namespace.
author: gpushare.kubernetes contributors (@gpushare)
extends_documentation_fragment:
  - gpushare.kubernetes.attributes
  - gpushare.kubernetes.attributes.changes
  - gpushare.kubernetes.kubectl
options:
  namespace:
    description: The namespace of gpushare's pods.
    type: str
    required: true
  force:
    description: Whether to go on although pods with a share of a GPU run.
    type: bool
    default: false
  timeout:
    description: Seconds for pods to go, and for pods to run.
    type: int
    required: true
"""

EXAMPLES = r"""
- name: Remove the pods
  gpushare.kubernetes.gpushare_in_cluster_remove:
    namespace: gpushare-system
    timeout: 120
"""

RETURN = r"""
removed:
  description: The removed objects and files (in check mode, those to remove).
  returned: success
  type: list
  elements: str
nodes:
  description: The nodes that the device plugin has served.
  returned: success
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster import kubectl as cluster_kubectl
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.objects import diff_of
from ansible_collections.gpushare.kubernetes.plugins.module_utils._in_cluster.removal import InClusterRemoval, RemovalError


def main() -> None:
    module = AnsibleModule(
        argument_spec=dict(
            cluster_kubectl.ARGUMENTS,
            namespace={"type": "str", "required": True},
            force={"type": "bool", "default": False},
            timeout={"type": "int", "required": True},
        ),
        supports_check_mode=True,
    )
    params = module.params
    try:
        removal = InClusterRemoval(cluster_kubectl.for_module(module), params["namespace"], params["timeout"])
        removal.check(params["force"])
        if removal.removed and not module.check_mode:
            removal.apply()
    except (cluster_kubectl.KubectlError, RemovalError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=bool(removal.removed), removed=removal.removed, nodes=removal.nodes, diff=diff_of(removal.removed))


if __name__ == "__main__":
    main()
