#!/usr/bin/python
# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpushare_token_info
short_description: Read the token of one of gpushare's daemons
version_added: 0.1.0
description:
  - The roles C(device_plugin), C(extender) and C(dashboard) use this module. Its options may change in any release.
  - Reads the claims of a daemon's own token, and checks whether the API server of the daemon's kubeconfig accepts it.
  - Never returns the token.
author: gpushare.kubernetes contributors (@gpushare)
extends_documentation_fragment:
  - gpushare.kubernetes.attributes
  - gpushare.kubernetes.attributes.info
options:
  token_path:
    description: Where the daemon keeps its token.
    type: path
    required: true
  kubeconfig_path:
    description: The daemon's kubeconfig.
    type: path
    required: true
"""

EXAMPLES = r"""
- name: Look at the extender's token
  gpushare.kubernetes.gpushare_token_info:
    token_path: /var/lib/gpushare-extender/token
    kubeconfig_path: /etc/gpushare/extender.kubeconfig
  register: extender_token
"""

RETURN = r"""
own:
  description: Claims of the token, V(null) without a token.
  returned: success
  type: dict
  contains:
    subject: {description: Whose it is., type: str, sample: "system:serviceaccount:kube-system:gpushare-extender"}
    uid: {description: UID of that ServiceAccount., type: str}
    issued: {description: "Since when it is valid, Unix time in seconds.", type: int}
    expires: {description: "Until when it is valid, Unix time in seconds.", type: int}
    accepted: {description: Whether the API server accepts it; null if it does not answer., type: bool}
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpushare.kubernetes.plugins.module_utils._identity.token import ask_api_server, own_token


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "token_path": {"type": "path", "required": True, "no_log": False},
            "kubeconfig_path": {"type": "path", "required": True},
        },
        supports_check_mode=True,
    )
    try:
        own = own_token(module.params["token_path"], module.params["kubeconfig_path"], ask_api_server)
    except OSError as error:
        module.fail_json(msg=f"{error.filename}: {error.strerror}; expected a file that root can read")
    module.exit_json(changed=False, own=None if own is None else own.as_dict())


if __name__ == "__main__":
    main()
