#!/usr/bin/python
# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpushare_in_cluster_ready_info
short_description: Wait until gpushare's pods serve
version_added: 0.1.0
description:
  - The role C(in_cluster) uses this module. Its options may change in any release.
  - Waits until the scheduler's Deployment and the device plugin's DaemonSet run as they are written, and kubelet provides on each GPU
    node what its device plugin has published. Fails with the words of the pods that do not serve.
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
  timeout:
    description: Seconds to wait.
    type: int
    required: true
"""

EXAMPLES = r"""
- name: Wait for the pods
  gpushare.kubernetes.gpushare_in_cluster_ready_info:
    namespace: gpushare-system
    timeout: 120
"""

RETURN = r"""
left:
  description: Workloads, nodes and pods that do not serve within the time.
  returned: always
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster import kubectl as cluster_kubectl
from ansible_collections.gpushare.kubernetes.plugins.module_utils._in_cluster.ready import wait


def main() -> None:
    module = AnsibleModule(
        argument_spec=dict(
            cluster_kubectl.ARGUMENTS,
            namespace={"type": "str", "required": True},
            timeout={"type": "int", "required": True},
        ),
        supports_check_mode=True,
    )
    params = module.params
    try:
        left = wait(cluster_kubectl.for_module(module), params["namespace"], params["timeout"])
    except cluster_kubectl.KubectlError as error:
        module.fail_json(msg=str(error))
    if left:
        words = "\n".join(f"- {one}" for one in left)
        module.fail_json(msg=f"gpushare's pods do not serve within {params['timeout']} s:\n{words}", left=left)
    module.exit_json(changed=False, left=left)


if __name__ == "__main__":
    main()
