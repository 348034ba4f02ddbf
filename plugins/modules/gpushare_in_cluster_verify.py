#!/usr/bin/python
# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpushare_in_cluster_verify
short_description: Wait until gpushare's pods serve, and verify by a pod on each GPU node that it has the GPU of its annotation
version_added: 0.1.0
description:
  - The role C(in_cluster) uses this module. Its options may change in any release.
  - Waits until the scheduler's Deployment and the device plugin's DaemonSet run as they are written, and kubelet provides on each GPU
    node what its device plugin has published. Fails with the words of the pods that do not serve.
  - Runs a pod of gpushare's image with one unit on each node with the label C(gpushare.kubernetes/node=true). Compares its device nodes
    and the variables of its first process with its annotation, then removes it. Fails with every finding.
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
  image:
    description: gpushare's image.
    type: str
    required: true
  runtime_class:
    description: The RuntimeClass of the pods, or nothing.
    type: str
    default: ""
  start_timeout:
    description: Seconds for gpushare's pods to serve.
    type: int
    required: true
  timeout:
    description: Seconds for the pods to run.
    type: int
    required: true
"""

EXAMPLES = r"""
- name: Verify each node
  gpushare.kubernetes.gpushare_in_cluster_verify:
    namespace: gpushare-system
    image: localhost/gpushare:0.1.0
    start_timeout: 180
    timeout: 120
"""

RETURN = r"""
nodes:
  description: The nodes on which a pod ran.
  returned: always
  type: list
  elements: str
findings:
  description: The findings, each with what was found, expected and what to do.
  returned: always
  type: list
  elements: str
unproven:
  description: Nodes without a free unit, on which no pod ran.
  returned: always
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster import kubectl as cluster_kubectl
from ansible_collections.gpushare.kubernetes.plugins.module_utils._in_cluster.pods import Image
from ansible_collections.gpushare.kubernetes.plugins.module_utils._in_cluster.ready import wait
from ansible_collections.gpushare.kubernetes.plugins.module_utils._in_cluster.verify import verify


def main() -> None:
    module = AnsibleModule(
        argument_spec=dict(
            cluster_kubectl.ARGUMENTS,
            namespace={"type": "str", "required": True},
            image={"type": "str", "required": True},
            runtime_class={"type": "str", "default": ""},
            start_timeout={"type": "int", "required": True},
            timeout={"type": "int", "required": True},
        ),
        supports_check_mode=True,
    )
    params = module.params
    if module.check_mode:
        module.exit_json(changed=False, nodes=[], findings=[], unproven=[])
    image = Image(params["image"], params["namespace"], params["runtime_class"])
    kubectl = cluster_kubectl.for_module(module)
    try:
        left = wait(kubectl, params["namespace"], params["start_timeout"])
        if left:
            words = "\n".join(f"- {one}" for one in left)
            module.fail_json(msg=f"gpushare's pods do not serve within {params['start_timeout']} s:\n{words}")
        nodes, unproven, findings = verify(kubectl, image, params["timeout"])
    except cluster_kubectl.KubectlError as error:
        module.fail_json(msg=str(error))
    result = {"nodes": nodes, "findings": findings, "unproven": unproven}
    if findings:
        module.fail_json(msg="gpushare does not work:\n" + "\n".join(f"- {one}" for one in findings), **result)
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
