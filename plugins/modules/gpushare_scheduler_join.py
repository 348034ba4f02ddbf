#!/usr/bin/python
# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpushare_scheduler_join
short_description: Copy the scheduler's configuration to a host that joins as a control plane
version_added: 0.1.0
description:
  - The role C(scheduler) uses this module. Its options may change in any release.
  - kubeadm writes the same C(--config) and volumes into kube-scheduler's manifest on every control plane, and copies no file along.
    Without the file, the kube-scheduler of a joined control plane does not start.
  - Without O(files), reads the files of a control plane that has joined. With O(files), writes those that this host does not have.
author: gpushare.kubernetes contributors (@gpushare)
extends_documentation_fragment:
  - gpushare.kubernetes.attributes
  - gpushare.kubernetes.attributes.changes
options:
  manifest:
    description: The static pod's manifest, on a control plane that has joined.
    type: path
    default: /etc/kubernetes/manifests/kube-scheduler.yaml
  files:
    description: Path to text of the files to write.
    type: dict
"""

EXAMPLES = r"""
- name: Read the scheduler's configuration
  gpushare.kubernetes.gpushare_scheduler_join:
  delegate_to: cp1
  register: found

- name: Write it
  gpushare.kubernetes.gpushare_scheduler_join:
    files: "{{ found.files }}"
"""

RETURN = r"""
files:
  description: Path to text of the files of this control plane.
  returned: without O(files)
  type: dict
kept:
  description: Paths of files that this host has already, with other content, and that stay.
  returned: with O(files)
  type: list
  elements: str
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.journal import JournalError
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.transaction import Transaction, TransactionError
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host import lock
from ansible_collections.gpushare.kubernetes.plugins.module_utils._scheduler import join
from ansible_collections.gpushare.kubernetes.plugins.module_utils._scheduler.apply import OWNER


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "manifest": {"type": "path", "default": "/etc/kubernetes/manifests/kube-scheduler.yaml"},
            "files": {"type": "dict"},
        },
        supports_check_mode=True,
    )
    files = module.params["files"]
    with lock.for_module(module):
        os.umask(0o022)
        try:
            if files is None:
                module.exit_json(changed=False, files=join.read(module.params["manifest"]))
            transaction = Transaction(OWNER)
            kept = join.plan(transaction, files)
            changed, diff = bool(transaction.changes), transaction.diff()
            if changed and not module.check_mode:
                transaction.apply()
        except (join.JoinError, TransactionError, JournalError, OSError, UnicodeDecodeError) as error:
            module.fail_json(msg=str(error))
    module.exit_json(changed=changed, kept=list(kept), diff=diff)


if __name__ == "__main__":
    main()
