#!/usr/bin/python
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpushare_driver
short_description: "Private: gather the facts for a driver, and make a host ready for the one that its packages brought"
version_added: 0.1.0
description:
  - The role C(nvidia_driver) uses this module. Its options may change in any release.
author: gpushare.kubernetes contributors (@gpushare)
extends_documentation_fragment:
  - gpushare.kubernetes.attributes
  - gpushare.kubernetes.attributes.changes
options:
  what:
    description:
      - V(facts) gathers the facts that decide how a driver is installed, for M(gpushare.kubernetes.gpushare_judge), and the processes on
        the GPUs. Changes nothing.
      - V(present) blacklists nouveau, writes the options of the kernel modules, and rebuilds the initramfs only if that changed. Runs
        NVIDIA's installer if O(run_file) names one. Loads the kernel module and enables the services. Returns whether the host must
        reboot, and never reboots it. Records in the host's journal how each file and each service was before.
      - V(absent) restores the files and services, and uninstalls the driver of a run file.
    type: str
    choices: [facts, present, absent]
    required: true
  version: {description: Version of the driver. O(what=present) requires it., type: str}
  module: {description: Kind of the kernel module., type: str, default: ""}
  blacklist: {description: Whether nouveau is not blacklisted yet., type: bool, default: true}
  initramfs: {description: Command that rebuilds the initramfs., type: list, elements: str, default: []}
  run_file: {description: "Path of NVIDIA's installer and its arguments.", type: list, elements: str, default: []}
  services: {description: Units to enable., type: list, elements: str, default: []}
  options:
    description: Options of the driver's kernel modules, as lines of modprobe.d without C(options).
    type: list
    elements: str
    default: []
  modules: {description: Kernel modules to load now and at boot., type: list, elements: str, default: []}
  timeout: {description: "Seconds within which NVIDIA's installer must finish.", type: int, default: 1800}
  root: {description: "Folder that stands for the host's V(/), for tests of V(facts).", type: path, default: /}
"""

EXAMPLES = r"""
- name: Load the driver
  gpushare.kubernetes.gpushare_driver:
    what: present
    version: 580.178.04
    initramfs: [update-initramfs, -u, -k, all]
    services: [nvidia-persistenced.service]
"""

RETURN = r"""
steps:
  description: The steps that were done (in check mode, would be).
  returned: with O(what=present) and O(what=absent)
  type: list
  elements: str
files:
  description: The files that were changed (in check mode, would be).
  returned: with O(what=present) and O(what=absent)
  type: list
  elements: str
notes: {description: Remarks for people., returned: with O(what=present) and O(what=absent), type: list, elements: str}
reboot: {description: Why the host must reboot. Empty if it need not., returned: with O(what=present) and O(what=absent), type: str}
at: {description: "Unix time by the host's clock.", returned: with O(what=present) and O(what=absent), type: float}
facts: {description: The facts., returned: with O(what=facts), type: dict}
processes:
  description:
    - The processes on the GPUs, each as text with its PID, its name and its pod. Where nvidia-smi has a problem, also the processes that
      have C(/dev/nvidia-uvm) open.
  returned: with O(what=facts)
  type: list
  elements: str
machine_id: {description: Content of C(/etc/machine-id)., returned: with O(what=facts), type: str}
boot_id: {description: A value that each boot changes., returned: with O(what=facts), type: str}
driver:
  description: The driver by its parts, as M(gpushare.kubernetes.gpu_node_info) returns it.
  returned: with O(what=facts)
  type: dict
problem: {description: "Why nvidia-smi reports no GPUs, null if it reports them.", returned: with O(what=facts), type: dict}
"""

import time
from typing import Any, Dict

from ansible.module_utils.basic import AnsibleModule

from ..module_utils._driver.apply import DriverAnswer, DriverResult, WantedDriver, absent, present
from ..module_utils._driver.facts import DriverFacts, gather, processes_on
from ..module_utils._facts.driver import driver
from ..module_utils._facts.gpus import gpus
from ..module_utils._formats.answers import answer_of
from ..module_utils._host import command
from ..module_utils._host.answering import changing
from ..module_utils._host.host import Host


def facts(module: AnsibleModule) -> DriverFacts:
    """The facts for a plan of the driver."""
    host = Host(module.params["root"])
    report = gpus(host)
    return DriverFacts(
        changed=False,
        facts=gather(host),
        processes=processes_on(report, host),
        machine_id=host.line("/etc/machine-id") or "",
        boot_id=host.line("/proc/sys/kernel/random/boot_id") or "",
        driver=driver(host),
        problem=report.sent().problem,
    )


def bring(module: AnsibleModule) -> DriverAnswer:
    """Have it."""
    given = {key: value for key, value in module.params.items() if key not in ("what", "root")}
    values: Dict[str, Any] = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
    with changing(module):
        return _done(module, present(WantedDriver(**values), command.run, module.check_mode))


def take_away(module: AnsibleModule) -> DriverAnswer:
    """Have it no more."""
    with changing(module):
        return _done(module, absent(command.run, module.check_mode, timeout=module.params["timeout"]))


def _done(module: AnsibleModule, result: DriverResult) -> DriverAnswer:
    for note in result.notes:
        module.warn(note)
    return DriverAnswer(result.changed, result.steps, result.files, result.notes, result.reboot, time.time(), result.diff)


OPERATIONS = {"facts": facts, "present": bring, "absent": take_away}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "what": {"type": "str", "choices": list(OPERATIONS), "required": True},
            "version": {"type": "str"},
            "module": {"type": "str", "default": ""},
            "blacklist": {"type": "bool", "default": True},
            "initramfs": {"type": "list", "elements": "str", "default": []},
            "run_file": {"type": "list", "elements": "str", "default": []},
            "services": {"type": "list", "elements": "str", "default": []},
            "options": {"type": "list", "elements": "str", "default": []},
            "modules": {"type": "list", "elements": "str", "default": []},
            "timeout": {"type": "int", "default": 1800},
            "root": {"type": "path", "default": "/"},
        },
        required_if=[("what", "present", ("version",))],
        supports_check_mode=True,
    )
    module.exit_json(**answer_of(OPERATIONS[module.params["what"]](module)))


if __name__ == "__main__":
    main()
