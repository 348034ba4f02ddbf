#!/usr/bin/python
# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpushare_service
short_description: Run one of gpushare's daemons as a systemd service
version_added: 0.1.0
description:
  - Writes the daemon's unit and kubeconfig, enables and starts it, and waits until it reports that it is healthy.
  - Restarts it only if its running process was started from another unit, kubeconfig or environment than those on the disk.
  - If it does not come up, puts back the files that were there and says why in the daemon's own words.
author: gpushare.kubernetes contributors (@gpushare)
extends_documentation_fragment:
  - gpushare.kubernetes.attributes
  - gpushare.kubernetes.attributes.changes
options:
  name:
    description: Name of the service, without C(.service).
    type: str
    required: true
  unit:
    description: Content of the unit file. The module adds one variable to its section C([Service]).
    type: str
    required: true
  kubeconfig_path:
    description: Where the daemon's kubeconfig lies; always of mode 0600.
    type: path
    required: true
  kubeconfig_content:
    description:
      - Content of the kubeconfig. If it is not given, the one that is there stays.
      - In check mode it may be missing because the identity does not exist yet; then the file is predicted to change.
    type: str
  runtime:
    description: Path of the environment that the daemon runs from, or of the link to it. Another one is a reason to restart.
    type: path
    default: /opt/gpushare/current
  health_url:
    description: URL on this host that answers a JSON object. By default only systemd's word counts.
    type: str
  health_key:
    description: The key that must be true in what O(health_url) answers.
    type: str
    default: synced
  timeout:
    description: How many seconds the daemon has to become healthy.
    type: int
    default: 60
"""

EXAMPLES = r"""
- name: Run the extender
  gpushare.kubernetes.gpushare_service:
    name: gpushare-extender
    unit: "{{ lookup('ansible.builtin.template', 'gpushare-extender.service.j2') }}"
    kubeconfig_path: /etc/gpushare/extender.kubeconfig
    kubeconfig_content: "{{ extender_identity.content }}"
    health_url: http://127.0.0.1:32766/healthz
"""

RETURN = r"""
restarted:
  description: Whether the service was started or restarted (in check mode, would be).
  returned: success
  type: bool
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpushare.kubernetes.plugins.module_utils._files import read_state
from ansible_collections.gpushare.kubernetes.plugins.module_utils._systemd import (
    Daemon,
    Health,
    SystemdError,
    generation,
    read_environ,
    stamped,
)
from ansible_collections.gpushare.kubernetes.plugins.module_utils._transaction import Transaction, TransactionError


def plan(params, daemon: Daemon) -> Transaction:
    """The unit, and the kubeconfig where its content is known. The unit names a hash of all that the daemon reads."""
    transaction = Transaction(params["name"])
    content = params["kubeconfig_content"]
    if content is None:
        state = read_state(params["kubeconfig_path"])
        content = None if state is None else state.content.decode()
    else:
        transaction.write(params["kubeconfig_path"], content.encode(), 0o600, secret=True)
    stamp = generation([params["unit"], content, os.path.realpath(params["runtime"])])
    transaction.write(daemon.path, stamped(params["unit"], stamp).encode(), 0o644)
    return transaction


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "name": {"type": "str", "required": True},
            "unit": {"type": "str", "required": True},
            "kubeconfig_path": {"type": "path", "required": True},
            "kubeconfig_content": {"type": "str", "no_log": True},
            "runtime": {"type": "path", "default": "/opt/gpushare/current"},
            "health_url": {"type": "str"},
            "health_key": {"type": "str", "default": "synced", "no_log": False},
            "timeout": {"type": "int", "default": 60},
        },
        supports_check_mode=True,
    )
    params = module.params
    if params["kubeconfig_content"] is None and not os.path.exists(params["kubeconfig_path"]) and not module.check_mode:
        module.fail_json(msg=f"{params['kubeconfig_path']} does not exist and kubeconfig_content is not given; give it")
    os.umask(0o022)
    health = Health(params["health_url"], params["health_key"], params["timeout"])
    daemon = Daemon(params["name"], health, module.run_command, read_environ)
    transaction = plan(params, daemon)
    restart, enabled = bool(transaction.changes) or daemon.is_due(), daemon.is_enabled()
    result = {"changed": restart or not enabled, "restarted": restart, "diff": transaction.diff()}
    if not module.check_mode:
        try:
            if restart:
                transaction.apply(daemon)
            elif not enabled:
                daemon.enable()
        except (TransactionError, SystemdError) as error:
            module.fail_json(msg=str(error))
        problem = None if restart else daemon.problem()
        if problem:
            module.fail_json(msg=problem)
    module.exit_json(**result)


if __name__ == "__main__":
    main()
