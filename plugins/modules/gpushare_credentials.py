#!/usr/bin/python
# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpushare_credentials
short_description: Make certificates for the extender and the dashboard, and read the tokens of daemons
version_added: 0.1.0
description:
  - The roles C(device_plugin), C(extender) and C(dashboard) use this module. Its options may change in any release.
author: gpushare.kubernetes contributors (@gpushare)
extends_documentation_fragment:
  - gpushare.kubernetes.attributes
  - gpushare.kubernetes.attributes.changes
options:
  what:
    description:
      - V(certificates) runs the runtime's C(gpushare-pki). It creates a certificate authority of this host, a server certificate for the
        extender and a client certificate for kube-scheduler. With O(server=dashboard) it creates an authority and a server certificate
        for the dashboard. It renews certificates that are due, and never changes a valid file. In check mode on a host that does not have
        the runtime yet, every missing file is predicted.
      - V(token) reads the claims of a daemon's own token, and checks whether the API server of the daemon's kubeconfig accepts it. Never
        returns the token. Changes nothing.
    type: str
    choices: [certificates, token]
    required: true
  path:
    description: Folder of the certificates and keys.
    type: path
    default: /etc/gpushare/pki
  program:
    description: The runtime's C(gpushare-pki).
    type: path
    default: /opt/gpushare/current/bin/gpushare-pki
  server:
    description: The server whose certificates are created.
    type: str
    choices: [extender, dashboard]
    default: extender
  names:
    description: Host names and addresses in the certificate of the dashboard, beside those of the loopback interface.
    type: list
    elements: str
    default: []
  reload:
    description: Service to reload if it exists and its certificate is new.
    type: str
    default: gpushare-extender.service
  token_path:
    description: Where the daemon keeps its token.
    type: path
  kubeconfig_path:
    description: The daemon's kubeconfig.
    type: path
"""

EXAMPLES = r"""
- name: Make the certificates
  gpushare.kubernetes.gpushare_credentials:
    what: certificates

- name: Look at the extender's token
  gpushare.kubernetes.gpushare_credentials:
    what: token
    token_path: /var/lib/gpushare-extender/token
    kubeconfig_path: /etc/gpushare/extender.kubeconfig
  register: extender_token
"""

RETURN = r"""
files:
  description: New files (in check mode, predicted ones), relative to O(path).
  returned: with O(what=certificates)
  type: list
  elements: str
  sample: [extender.crt, extender.key]
not_after:
  description: End of validity by certificate. Empty in check mode on a host without the runtime.
  returned: with O(what=certificates)
  type: dict
  sample: {extender.crt: "2027-02-19T10:00:00Z"}
own:
  description: Claims of the token, V(null) without a token.
  returned: with O(what=token)
  type: dict
  contains:
    subject: {description: Whose it is., type: str, sample: "system:serviceaccount:kube-system:gpushare-extender"}
    uid: {description: UID of that ServiceAccount., type: str}
    issued: {description: "Since when it is valid, Unix time in seconds.", type: int}
    expires: {description: "Until when it is valid, Unix time in seconds.", type: int}
    accepted: {description: "Whether the API server accepts it, null if it does not answer.", type: bool}
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpushare.kubernetes.plugins.module_utils._daemon import pki
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host import lock
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.systemd import UNITS
from ansible_collections.gpushare.kubernetes.plugins.module_utils._identity.token import ask_api_server, own_token


def certificates(module: AnsibleModule) -> dict:
    """Make those that are missing or due. PkiError."""
    params = module.params
    installed = os.access(params["program"], os.X_OK)
    if not installed and not module.check_mode:
        raise pki.PkiError(f"{params['program']} is not there; expected the runtime: run gpushare.kubernetes.python_environment first")
    with lock.for_module(module):
        # A unit that does not exist yet cannot be reloaded, and reads the files when it starts.
        unit = params["reload"] if os.path.exists(os.path.join(UNITS, params["reload"])) else ""
        verb, dashboard = "plan" if module.check_mode else "ensure", params["server"] == "dashboard"
        argv = pki.command(params["program"], params["path"], verb, unit, params["names"] if dashboard else None)
        found = pki.ask(module.run_command, argv) if installed else pki.missing(params["path"], dashboard)
    return {"changed": bool(found.changed), "files": found.changed, "not_after": found.not_after, "diff": found.diff()}


def token(module: AnsibleModule) -> dict:
    """Read a daemon's own. OSError."""
    own = own_token(module.params["token_path"], module.params["kubeconfig_path"], ask_api_server)
    return {"changed": False, "own": None if own is None else own.as_dict()}


def main() -> None:
    subjects = {"certificates": certificates, "token": token}
    module = AnsibleModule(
        argument_spec={
            "what": {"type": "str", "choices": list(subjects), "required": True},
            "path": {"type": "path", "default": "/etc/gpushare/pki"},
            "program": {"type": "path", "default": "/opt/gpushare/current/bin/gpushare-pki"},
            "server": {"type": "str", "choices": ["extender", "dashboard"], "default": "extender"},
            "names": {"type": "list", "elements": "str", "default": []},
            "reload": {"type": "str", "default": "gpushare-extender.service"},
            "token_path": {"type": "path", "no_log": False},
            "kubeconfig_path": {"type": "path"},
        },
        required_if=[("what", "token", ["token_path", "kubeconfig_path"])],
        supports_check_mode=True,
    )
    try:
        module.exit_json(**subjects[module.params["what"]](module))
    except pki.PkiError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{error.filename}: {error.strerror}; expected a file that root can read")


if __name__ == "__main__":
    main()
