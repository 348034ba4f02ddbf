#!/usr/bin/python
# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpushare_driver_info
short_description: Gather the facts that decide how a driver is installed
version_added: 0.1.0
description:
  - The role C(nvidia_driver) uses this module. Its options may change in any release.
  - Returns the facts of a host for M(gpushare.kubernetes.gpushare_judge), the processes on its GPUs, and its machine id.
author: gpushare.kubernetes contributors (@gpushare)
extends_documentation_fragment:
  - gpushare.kubernetes.attributes
  - gpushare.kubernetes.attributes.info
options:
  root:
    description: Folder that stands for the host's V(/), for tests.
    type: path
    default: /
"""

EXAMPLES = r"""
- name: Gather the facts
  gpushare.kubernetes.gpushare_driver_info:
  register: found
"""

RETURN = r"""
facts:
  description: The facts.
  returned: success
  type: dict
processes:
  description:
    - The processes on the GPUs, each as text with its PID, its name and its pod. Where nvidia-smi has a problem, also the processes that
      have C(/dev/nvidia-uvm) open.
  returned: success
  type: list
  elements: str
machine_id:
  description: Content of C(/etc/machine-id).
  returned: success
  type: str
boot_id:
  description: A value that each boot changes.
  returned: success
  type: str
driver:
  description: The driver by its parts, as M(gpushare.kubernetes.gpu_node_info) returns it.
  returned: success
  type: dict
problem:
  description: Why nvidia-smi reports no GPUs, null if it reports them.
  returned: success
  type: dict
"""

from dataclasses import asdict

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpushare.kubernetes.plugins.module_utils._driver.facts import gather, processes_on
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts.driver import driver
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts.gpus import gpus
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.host import Host


def main() -> None:
    module = AnsibleModule(argument_spec={"root": {"type": "path", "default": "/"}}, supports_check_mode=True)
    host = Host(module.params["root"])
    report = gpus(host)
    module.exit_json(
        changed=False,
        facts=gather(host).as_dict(),
        processes=processes_on(report, host),
        machine_id=host.line("/etc/machine-id") or "",
        boot_id=host.line("/proc/sys/kernel/random/boot_id") or "",
        driver=asdict(driver(host)),
        problem=None if report.problem is None else asdict(report.problem),
    )


if __name__ == "__main__":
    main()
