#!/usr/bin/python
# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpushare_mps
short_description: Run an MPS control daemon for each GPU
version_added: 0.1.0
description:
  - The role C(mps) uses this module. Its options may change in any release.
  - Writes a systemd service for each GPU in O(gpus), starts it, and waits until its control daemon answers. Removes the services of
    other GPUs.
  - Fails if pods have GPUs and a service would have to be added or removed. A service of an older release keeps running as long as
    pods have GPUs.
  - If a daemon does not start, restores the previous files and returns the daemon's own log.
author: gpushare.kubernetes contributors (@gpushare)
extends_documentation_fragment:
  - gpushare.kubernetes.attributes
  - gpushare.kubernetes.attributes.changes
options:
  gpus:
    description: UUIDs of the GPUs that get a control daemon. An empty list removes all services.
    type: list
    elements: str
    required: true
  unit:
    description: Content of the unit file, with C(@gpu@) for the UUID of the GPU. Empty only if O(gpus) is empty.
    type: str
    default: ""
  settings_dir:
    description: Folder for the settings of the services, one file each.
    type: path
    default: /etc/gpushare
  timeout:
    description: Seconds within which a control daemon must answer.
    type: int
    default: 60
"""

EXAMPLES = r"""
- name: Run the control daemons
  gpushare.kubernetes.gpushare_mps:
    gpus: "{{ found.gpus | map(attribute='uuid') | list }}"
    unit: "{{ lookup('ansible.builtin.template', 'gpushare-mps.service.j2') }}"
"""

RETURN = r"""
waiting:
  description: Services that run on with an older release or other settings, because pods have GPUs.
  returned: success
  type: list
  elements: str
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.transaction import TransactionError
from ansible_collections.gpushare.kubernetes.plugins.module_utils._daemon.exposure import exposed
from ansible_collections.gpushare.kubernetes.plugins.module_utils._daemon.mps import MpsError, Place, plan, present
from ansible_collections.gpushare.kubernetes.plugins.module_utils._daemon.service import SystemdError, read_environ
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts.node import gather
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host import lock
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.host import Host


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "gpus": {"type": "list", "elements": "str", "required": True},
            "unit": {"type": "str", "default": ""},
            "settings_dir": {"type": "path", "default": "/etc/gpushare"},
            "timeout": {"type": "int", "default": 60},
        },
        supports_check_mode=True,
    )
    params, run = module.params, module.run_command
    place = Place(settings=params["settings_dir"])
    if not params["gpus"] and not present(place):
        module.exit_json(changed=False, waiting=[], diff=[])

    def hurt() -> "str | None":
        return exposed(run)

    with lock.for_module(module):
        os.umask(0o022)
        sharing = gather(Host("/"), ["sharing"]).sharing
        holders = list(sharing.holders) if sharing else []
        try:
            made = plan(params["gpus"], params["unit"], holders, run, read_environ, params["timeout"], place, hurt)
        except (MpsError, SystemdError, OSError) as error:
            module.fail_json(msg=f"{error}; nothing was changed")
        transaction = made.transaction
        due = bool(transaction.changes) or transaction.unfinished or made.service.due()
        result = {"changed": due or bool(made.disabled), "waiting": list(made.waiting), "diff": transaction.diff()}
        if not module.check_mode:
            try:
                if due:
                    transaction.apply(made.service)
                for daemon in made.disabled:
                    daemon.enable()
            except (TransactionError, SystemdError) as error:
                module.fail_json(msg=str(error))
        module.exit_json(**result)


if __name__ == "__main__":
    main()
