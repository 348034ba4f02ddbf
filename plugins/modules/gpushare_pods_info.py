#!/usr/bin/python
# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpushare_pods_info
short_description: List the pods that have a share of a GPU
version_added: 0.1.0
description:
  - The role C(uninstall) uses this module. Its options may change in any release.
  - Lists the pods that are on a node, have not ended and request C(aliyun.com/gpu-mem), C(aliyun.com/gpu-count) or
    C(aliyun.com/gpu-core.percentage).
author: gpushare.kubernetes contributors (@gpushare)
extends_documentation_fragment:
  - gpushare.kubernetes.attributes
  - gpushare.kubernetes.attributes.info
  - gpushare.kubernetes.kubectl
options:
  nodes:
    description: Names of the nodes. By default all.
    type: list
    elements: str
"""

EXAMPLES = r"""
- name: List the pods that have a share of a GPU on gpu1
  gpushare.kubernetes.gpushare_pods_info:
    nodes: [gpu1]
"""

RETURN = r"""
pods:
  description: The pods, by node.
  returned: success
  type: list
  elements: dict
  contains:
    pod: {description: Namespace and name., type: str, sample: default/train-0}
    node: {description: Its node., type: str, sample: gpu1}
    asks: {description: The resources., type: str, sample: aliyun.com/gpu-mem}
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster import kubectl
from ansible_collections.gpushare.kubernetes.plugins.module_utils._removal.cluster import gpu_pods


def main() -> None:
    module = AnsibleModule(
        argument_spec=dict(kubectl.ARGUMENTS, nodes={"type": "list", "elements": "str"}),
        supports_check_mode=True,
    )
    nodes = module.params["nodes"]
    selector = "--field-selector=spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
    try:
        pods = kubectl.for_module(module).items(["get", "pods", "--all-namespaces", selector])
    except kubectl.KubectlError as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, pods=gpu_pods(pods, None if nodes is None else set(nodes)))


if __name__ == "__main__":
    main()
