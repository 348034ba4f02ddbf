#!/usr/bin/python
# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpushare_in_cluster_trial
short_description: Try whether each GPU node can run the device plugin's pod
version_added: 0.1.0
description:
  - The role C(in_cluster) uses this module. Its options may change in any release.
  - Runs a pod with gpushare's image, the RuntimeClass and kubelet's socket on each node, then removes it, and the namespace if it was not
    there. Leaves out nodes on which the device plugin serves with the same. Fails with what is wrong with each node.
author: gpushare.kubernetes contributors (@gpushare)
extends_documentation_fragment:
  - gpushare.kubernetes.attributes
  - gpushare.kubernetes.attributes.info
  - gpushare.kubernetes.kubectl
options:
  nodes:
    description: Names of the GPU nodes.
    type: list
    elements: str
    required: true
  namespace:
    description: The namespace of gpushare's pods.
    type: str
    required: true
  image:
    description: gpushare's image.
    type: str
    required: true
  runtime_class:
    description: The RuntimeClass of the pods, or nothing.
    type: str
    default: ""
  kubelet_root:
    description: Root folder of the nodes' kubelets.
    type: path
    required: true
  timeout:
    description: Seconds for the pods to run.
    type: int
    required: true
"""

EXAMPLES = r"""
- name: Try the nodes
  gpushare.kubernetes.gpushare_in_cluster_trial:
    nodes: [gpu1]
    namespace: gpushare-system
    image: localhost/gpushare:0.1.0
    kubelet_root: /var/lib/kubelet
    timeout: 180
"""

RETURN = r"""
nodes:
  description: The nodes on which a pod ran.
  returned: always
  type: list
  elements: str
problems:
  description: The problems, each with what was found, expected and what to do.
  returned: always
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster import kubectl as cluster_kubectl
from ansible_collections.gpushare.kubernetes.plugins.module_utils._in_cluster.pods import Image
from ansible_collections.gpushare.kubernetes.plugins.module_utils._in_cluster.trial import Needs, Trial


def main() -> None:
    module = AnsibleModule(
        argument_spec=dict(
            cluster_kubectl.ARGUMENTS,
            nodes={"type": "list", "elements": "str", "required": True},
            namespace={"type": "str", "required": True},
            image={"type": "str", "required": True},
            runtime_class={"type": "str", "default": ""},
            kubelet_root={"type": "path", "required": True},
            timeout={"type": "int", "required": True},
        ),
        supports_check_mode=True,
    )
    params = module.params
    if module.check_mode:
        module.exit_json(changed=False, nodes=[], problems=[])
    needs = Needs(Image(params["image"], params["namespace"], params["runtime_class"]), params["kubelet_root"].rstrip("/"))
    try:
        nodes, problems = Trial(cluster_kubectl.for_module(module), needs).run(params["nodes"], params["timeout"])
    except cluster_kubectl.KubectlError as error:
        module.fail_json(msg=str(error))
    if problems:
        words = "\n".join(f"- {one}" for one in problems)
        module.fail_json(msg=f"GPU nodes cannot run gpushare, nothing was changed:\n{words}", nodes=nodes, problems=problems)
    module.exit_json(changed=False, nodes=nodes, problems=problems)


if __name__ == "__main__":
    main()
