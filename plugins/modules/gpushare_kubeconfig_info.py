#!/usr/bin/python
# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpushare_kubeconfig_info
short_description: Make a kubeconfig from a ServiceAccount's token
version_added: 0.1.0
description:
  - Reads a Secret of type C(kubernetes.io/service-account-token), waiting until the cluster has put a token into it, and returns a
    kubeconfig with that token and the cluster's certificate authority.
  - The result is a secret. Use C(no_log) on the task.
author: gpushare.kubernetes contributors (@gpushare)
extends_documentation_fragment:
  - gpushare.kubernetes.attributes
  - gpushare.kubernetes.attributes.info
  - gpushare.kubernetes.kubectl
options:
  namespace:
    description: Namespace of the Secret.
    type: str
    default: kube-system
  secret:
    description: Name of the Secret, and of the user in the kubeconfig.
    type: str
    required: true
  server:
    description: URL of the API server. By default the one of O(kubeconfig).
    type: str
    default: ""
  timeout:
    description: How many seconds the cluster has to put a token into the Secret.
    type: int
    default: 30
"""

EXAMPLES = r"""
- name: Make the extender's kubeconfig
  gpushare.kubernetes.gpushare_kubeconfig_info:
    secret: gpushare-extender
  register: identity
  no_log: true
"""

RETURN = r"""
content:
  description: The kubeconfig. V(null) in check mode if the Secret does not exist yet.
  returned: success
  type: str
"""

import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpushare.kubernetes.plugins.module_utils import _kubeconfig, _kubectl


def main() -> None:
    module = AnsibleModule(
        argument_spec=dict(
            _kubectl.ARGUMENTS,
            namespace={"type": "str", "default": "kube-system"},
            secret={"type": "str", "required": True, "no_log": False},
            server={"type": "str", "default": ""},
            timeout={"type": "int", "default": 30},
        ),
        supports_check_mode=True,
    )
    params = module.params
    kubectl = _kubectl.for_module(module)
    deadline = time.monotonic() + params["timeout"]
    try:
        server = params["server"] or _kubeconfig.api_server(kubectl.json(["config", "view", "--minify"]))
        while True:
            found = kubectl.json(["get", "secret", "--namespace", params["namespace"], params["secret"], "--ignore-not-found"])
            content = _kubeconfig.kubeconfig(found or {}, server, params["secret"])
            if content is not None or module.check_mode or time.monotonic() > deadline:
                break
            time.sleep(0.3)
    except (_kubectl.KubectlError, _kubeconfig.NoClusterError) as error:
        module.fail_json(msg=str(error))
    if content is None and not module.check_mode:
        module.fail_json(
            msg=f"Secret {params['namespace']}/{params['secret']} has no token after {params['timeout']} s: is it of type "
            "kubernetes.io/service-account-token, does its ServiceAccount exist, does kube-controller-manager run?"
        )
    module.exit_json(changed=False, content=content)


if __name__ == "__main__":
    main()
