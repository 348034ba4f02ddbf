#!/usr/bin/python
# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpushare_in_cluster_plan
short_description: Judge a cluster before gpushare is installed in it, and make the objects
version_added: 0.1.0
description:
  - The role C(in_cluster) uses this module. Its options may change in any release.
  - Runs on the controller. Reads what the installation depends on from the API server, and judges it together with the variables. Fails
    with every reason against the installation, each with what was found, what was expected and what to do.
author: gpushare.kubernetes contributors (@gpushare)
extends_documentation_fragment:
  - gpushare.kubernetes.attributes
  - gpushare.kubernetes.attributes.info
  - gpushare.kubernetes.kubectl
  - gpushare.kubernetes.bundle
options:
  settings:
    description: The variables of the role, by their names.
    type: dict
    required: true
  bundle:
    description: A bundle on the controller whose images the hosts get before. By default the nodes have them, or pull them.
    type: str
    default: ""
  hosts:
    description: Names in the inventory of the hosts that get the images.
    type: list
    elements: str
    default: []
  wait:
    description: Seconds within which kubelet must have told of an image that was imported. Whether it has is judged afterwards.
    type: int
    default: 0
  changes:
    description: Whether the run changes the mode, so that services on hosts go on for now.
    type: bool
    default: false
  wires:
    description: Whether the run reaches the control planes, too, and adds the extender to their kube-schedulers.
    type: bool
    default: false
  replicas:
    description: Number of the scheduler's pods.
    type: int
    default: 2
  namespace:
    description: The namespace of gpushare's pods. This module's action plugin sets it by the settings, not users.
    type: str
  nodes:
    description: Names of the GPU nodes, by the same. Without them, the nodes with the label C(gpushare.kubernetes/node=true).
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Judge the cluster
  gpushare.kubernetes.gpushare_in_cluster_plan:
    kubeconfig: ~/.kube/config
    settings: "{{ settings }}"
  register: plan
"""

RETURN = r"""
reasons:
  description: The reasons, also those that are warnings.
  returned: always
  type: list
  elements: dict
objects:
  description: The objects to apply, those that others need first.
  returned: success
  type: list
  elements: dict
labels:
  description: The nodes to label.
  returned: success
  type: list
  elements: dict
nodes:
  description: Names of the GPU nodes.
  returned: success
  type: list
  elements: str
runtime_class:
  description: RuntimeClass of the pods, by the variable or by the preset.
  returned: success
  type: str
kubelet_root:
  description: Root folder of the nodes' kubelets, by the same.
  returned: success
  type: str
on_hosts:
  description: In a change of the mode, names of the nodes that services serve for now.
  returned: success
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster import kubectl as cluster_kubectl
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.received import BUNDLE_KEY
from ansible_collections.gpushare.kubernetes.plugins.module_utils._in_cluster.facts import gather, when_told


def main() -> None:
    module = AnsibleModule(
        argument_spec=dict(
            cluster_kubectl.ARGUMENTS,
            settings={"type": "dict", "required": True},
            bundle={"type": "str", "default": ""},
            bundle_key=BUNDLE_KEY,
            hosts={"type": "list", "elements": "str", "default": []},
            wait={"type": "int", "default": 0},
            changes={"type": "bool", "default": False},
            wires={"type": "bool", "default": False},
            replicas={"type": "int", "default": 2},
            namespace={"type": "str"},
            nodes={"type": "list", "elements": "str", "default": []},
        ),
        supports_check_mode=True,
    )
    params = module.params
    if params["namespace"] is None:
        module.fail_json(msg="gpushare_in_cluster_plan was run without its action plugin; call it by its full name gpushare.kubernetes.…")
    kubectl = cluster_kubectl.for_module(module)
    try:
        facts = when_told(
            lambda: gather(kubectl, params["namespace"], params["nodes"]), str(params["settings"].get("gpushare_image")), params["wait"]
        )
    except (cluster_kubectl.KubectlError, ValueError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, facts=facts)


if __name__ == "__main__":
    main()
