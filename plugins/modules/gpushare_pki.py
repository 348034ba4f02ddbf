#!/usr/bin/python
# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpushare_pki
short_description: Make the certificates of the extender and of the dashboard
version_added: 0.1.0
description:
  - The roles C(extender) and C(dashboard) use this module. Its options may change in any release.
  - Runs the runtime's C(gpushare-pki). It creates a certificate authority of this host, a server certificate for the extender and a
    client certificate for kube-scheduler. It renews certificates that are due, and never changes a valid file.
  - With O(server=dashboard) it creates an authority and a server certificate for the dashboard.
  - In check mode on a host that does not have the runtime yet, every missing file is predicted.
author: gpushare.kubernetes contributors (@gpushare)
extends_documentation_fragment:
  - gpushare.kubernetes.attributes
  - gpushare.kubernetes.attributes.changes
options:
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
"""

EXAMPLES = r"""
- name: Make the certificates
  gpushare.kubernetes.gpushare_pki:
"""

RETURN = r"""
files:
  description: New files (in check mode, predicted ones), relative to O(path).
  returned: success
  type: list
  elements: str
  sample: [extender.crt, extender.key]
not_after:
  description: End of validity by certificate. Empty in check mode on a host without the runtime.
  returned: success
  type: dict
  sample: {extender.crt: "2027-02-19T10:00:00Z"}
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpushare.kubernetes.plugins.module_utils._daemon import pki
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host import lock
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.systemd import UNITS


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "default": "/etc/gpushare/pki"},
            "program": {"type": "path", "default": "/opt/gpushare/current/bin/gpushare-pki"},
            "server": {"type": "str", "choices": ["extender", "dashboard"], "default": "extender"},
            "names": {"type": "list", "elements": "str", "default": []},
            "reload": {"type": "str", "default": "gpushare-extender.service"},
        },
        supports_check_mode=True,
    )
    params = module.params
    installed = os.access(params["program"], os.X_OK)
    if not installed and not module.check_mode:
        module.fail_json(msg=f"{params['program']} is not there; expected the runtime; run gpushare.kubernetes.python_environment first")
    with lock.for_module(module):
        # A unit that does not exist yet cannot be reloaded; it reads the files when it starts.
        unit = params["reload"] if os.path.exists(os.path.join(UNITS, params["reload"])) else ""
        verb, dashboard = "plan" if module.check_mode else "ensure", params["server"] == "dashboard"
        argv = pki.command(params["program"], params["path"], verb, unit, params["names"] if dashboard else None)
        try:
            found = pki.ask(module.run_command, argv) if installed else pki.missing(params["path"], dashboard)
        except pki.PkiError as error:
            module.fail_json(msg=str(error))
        module.exit_json(changed=bool(found.changed), files=found.changed, not_after=found.not_after, diff=found.diff())


if __name__ == "__main__":
    main()
