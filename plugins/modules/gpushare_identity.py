#!/usr/bin/python
# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpushare_identity
short_description: Create the credentials of gpushare's daemons
version_added: 0.1.0
description:
  - The roles C(device_plugin), C(extender) and C(dashboard) use this module. Its options may change in any release.
  - Returns the daemons' kubeconfig, which has no secret. For each daemon without a usable token it also returns a seed. A seed is a
    token that is valid for an hour, with which the daemon requests its own.
  - A token is not usable if it is missing or expired, or the API server rejects it. The same applies if it belongs to another or a
    former ServiceAccount, or if less than a quarter of its life is left.
  - Seeds are secrets. Use C(no_log) on the task.
author: gpushare.kubernetes contributors (@gpushare)
extends_documentation_fragment:
  - gpushare.kubernetes.attributes
  - gpushare.kubernetes.attributes.info
  - gpushare.kubernetes.kubectl
options:
  namespace:
    description: Namespace of the ServiceAccounts.
    type: str
    default: kube-system
  accounts:
    description:
      - Name of the ServiceAccount by key of the daemon in the result, such as its host. The account must exist, except in check mode.
    type: dict
    required: true
  tokens:
    description: C(own) of the daemon's M(gpushare.kubernetes.gpushare_credentials) result, by key of the daemon.
    type: dict
    default: {}
  server:
    description: URL of the API server. By default the one of O(kubeconfig).
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Make the extenders' kubeconfig and seeds
  gpushare.kubernetes.gpushare_identity:
    accounts:
      cp1: gpushare-extender
    tokens:
      cp1: "{{ extender_token.own }}"
  register: identity
  no_log: true
"""

RETURN = r"""
kubeconfig:
  description: The kubeconfig of all these daemons.
  returned: success
  type: str
due:
  description: Why a daemon needs a seed, by the key of O(accounts). Daemons that need none are not in it.
  returned: success
  type: dict
  sample: {cp1: it has no token of its own yet}
seeds:
  description: The seeds by the key of O(accounts). None in check mode.
  returned: success
  type: dict
"""

import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster import kubectl
from ansible_collections.gpushare.kubernetes.plugins.module_utils._identity.kubeconfig import NoClusterError
from ansible_collections.gpushare.kubernetes.plugins.module_utils._identity.seeds import daemons_of, identify


def main() -> None:
    module = AnsibleModule(
        argument_spec=dict(
            kubectl.ARGUMENTS,
            namespace={"type": "str", "default": "kube-system"},
            accounts={"type": "dict", "required": True},
            tokens={"type": "dict", "default": {}, "no_log": False},
            server={"type": "str", "default": ""},
        ),
        supports_check_mode=True,
    )
    params = module.params
    try:
        daemons = daemons_of(params["accounts"], params["tokens"])
        found = identify(kubectl.for_module(module), params["namespace"], daemons, params["server"], time.time(), not module.check_mode)
    except (kubectl.KubectlError, NoClusterError) as error:
        module.fail_json(msg=str(error))
    except TypeError as error:
        module.fail_json(msg=f"a value of tokens is not what gpushare_credentials returns: {error}")
    module.exit_json(changed=False, kubeconfig=found.kubeconfig, due=found.due, seeds=found.seeds)


if __name__ == "__main__":
    main()
