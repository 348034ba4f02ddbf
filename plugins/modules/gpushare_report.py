#!/usr/bin/python
# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpushare_report
short_description: List what gpushare has changed on a host, and what has been modified since
version_added: 0.1.0
description:
  - The role C(report) uses this module. Its options may change in any release.
  - Compares the host's journal with its present files. Returns the installed runtime and the running daemons.
author: gpushare.kubernetes contributors (@gpushare)
extends_documentation_fragment:
  - gpushare.kubernetes.attributes
  - gpushare.kubernetes.attributes.info
options:
  install_dir:
    description: Folder of the runtime's environments.
    type: path
    default: /opt/gpushare
  kubectl_plugin_dir:
    description: Folder of the link to the kubectl plugin.
    type: path
    default: /usr/local/bin
  root:
    description: Folder that stands for the host's V(/), for tests. Without systemd.
    type: path
    default: /
"""

EXAMPLES = r"""
- name: Tell what gpushare has changed on the host
  gpushare.kubernetes.gpushare_report:
  register: report
"""

RETURN = r"""
words:
  description: The whole report as a table for people, line by line.
  returned: success
  type: list
  elements: str
report:
  description: The same as data.
  returned: success
  type: dict
  contains:
    runtime:
      description: The runtime that is installed, null if none is.
      type: dict
      contains:
        environment: {description: Path of the environment in use., type: str}
        state: {description: Whether it is complete., type: str}
        version: {description: Version of the runtime., type: str}
        python: {description: Version of its Python., type: str}
        wheel_sha256: {description: Hash of its wheel., type: str}
        older: {description: Names of other environments., type: list, elements: str}
    units: {description: "Our systemd units: name, active, enabled, file.", type: list, elements: dict}
    files:
      description: "The changed files: path, owner, before, state, and when others have last written it."
      type: list
      elements: dict
    settings: {description: "Changes outside of the host's files: what, owner.", type: list, elements: dict}
    kubectl_plugins: {description: Paths of the links, type: list, elements: str}
    unproven: {description: Unverified changes of an interrupted run., type: list, elements: str}
    unrecorded: {description: Files of ours that the journal does not have., type: list, elements: str}
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.journal import JournalError
from ansible_collections.gpushare.kubernetes.plugins.module_utils._removal.plan import Layout
from ansible_collections.gpushare.kubernetes.plugins.module_utils._removal.report import report, words


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "install_dir": {"type": "path", "default": "/opt/gpushare"},
            "kubectl_plugin_dir": {"type": "path", "default": "/usr/local/bin"},
            "root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    layout = Layout(**module.params)

    def run(argv):
        # A folder that stands for a host has no systemd; that of this host is none of its business.
        return module.run_command(argv) if layout.root == "/" else (0, "", "")

    try:
        found = report(layout, run)
    except (JournalError, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=False, report=found, words=words(found))


if __name__ == "__main__":
    main()
