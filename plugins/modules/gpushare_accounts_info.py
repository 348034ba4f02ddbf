#!/usr/bin/python
# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpushare_accounts_info
short_description: List the device plugins' accounts, and those that no node needs
version_added: 0.1.0
description:
  - The role C(admission) uses this module. Its options may change in any release.
  - Lists the ServiceAccounts that this collection has made for device plugins, each of one node.
author: gpushare.kubernetes contributors (@gpushare)
extends_documentation_fragment:
  - gpushare.kubernetes.attributes
  - gpushare.kubernetes.attributes.info
  - gpushare.kubernetes.kubectl
"""

EXAMPLES = r"""
- name: List the accounts of nodes that are gone
  gpushare.kubernetes.gpushare_accounts_info:
  register: accounts
"""

RETURN = r"""
accounts:
  description: The accounts' names.
  returned: success
  type: list
  elements: str
  sample: [gpushare-device-plugin-gpu1]
without_node:
  description: Those of nodes that the cluster does not have.
  returned: success
  type: list
  elements: str
"""

import json

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster import kubectl as cluster_kubectl
from ansible_collections.gpushare.kubernetes.plugins.module_utils._removal.cluster import plugin_accounts


def main() -> None:
    module = AnsibleModule(argument_spec=dict(cluster_kubectl.ARGUMENTS), supports_check_mode=True)
    kubectl = cluster_kubectl.for_module(module)
    try:
        # Raw, because kubectl leaves out who has made an object.
        paths = ("/api/v1/namespaces/kube-system/serviceaccounts", "/api/v1/nodes")
        accounts, nodes = (json.loads(kubectl.text(["get", "--raw", path]))["items"] for path in paths)
    except cluster_kubectl.KubectlError as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, **plugin_accounts(accounts, nodes))


if __name__ == "__main__":
    main()
