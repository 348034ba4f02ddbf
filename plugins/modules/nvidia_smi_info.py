#!/usr/bin/python
# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nvidia_smi_info
short_description: List the NVIDIA cards of a host
version_added: 0.1.0
description:
  - Runs C(nvidia-smi -q -x) and returns the cards, the versions of driver and CUDA, and what is wrong with them.
  - The module does not fail on a host without cards or driver. RV(problem) then states what was found and what to do.
author: gpushare.kubernetes contributors (@gpushare)
extends_documentation_fragment:
  - gpushare.kubernetes.attributes
  - gpushare.kubernetes.attributes.info
options:
  nvidia_smi:
    description: Name or path of nvidia-smi.
    type: str
    default: nvidia-smi
  minimum_driver:
    description: The oldest accepted version of the driver.
    type: str
    default: "384.81"
  timeout:
    description:
      - Timeout of nvidia-smi in seconds.
      - Without a persistence daemon it first initialises every card.
    type: int
    default: 120
"""

EXAMPLES = r"""
- name: List the cards
  gpushare.kubernetes.nvidia_smi_info:
  register: cards

- name: Stop where they cannot be used
  ansible.builtin.assert:
    that: cards.problem is none
    fail_msg: "Found {{ cards.problem.found }}; {{ cards.problem.cure }}"
"""

RETURN = r"""
cards:
  description: The cards by NVML index. A value that the driver does not know is null.
  returned: success
  type: list
  elements: dict
  contains:
    index: {description: NVML's index., type: int, sample: 0}
    uuid: {description: UUID., type: str, sample: GPU-e9361bd4-fd7c-e351-66ae-c0cb0152d66a}
    minor: {description: Number of its device node., type: int, sample: 0}
    pci: {description: "PCI address: domain, bus, device, function.", type: str, sample: "0000:04:00.0"}
    model: {description: Product name., type: str, sample: Tesla T4}
    memory_mib: {description: All of its memory in MiB., type: int, sample: 15360}
    compute_mode: {description: Compute mode as nvidia-smi writes it., type: str, sample: Default}
    mig_mode: {description: V(enabled) or V(disabled); null for a card without MIG., type: str, sample: disabled}
    mig_devices:
      description: MIG instances, each with C(index), C(gpu_instance), C(compute_instance) and C(memory_mib).
      type: list
      elements: dict
    processes:
      description: Processes on the card, each with C(pid), C(kind) (C, G or C+G), C(name) and C(memory_mib).
      type: list
      elements: dict
driver_version:
  description: Version of the driver.
  returned: success
  type: str
  sample: 535.261.03
cuda_version:
  description: The newest CUDA that the driver serves. Null for drivers that do not report it (before 410).
  returned: success
  type: str
  sample: "12.2"
problem:
  description: Why the cards cannot be used as they are, null if they can. Cards may be listed nevertheless.
  returned: success
  type: dict
  contains:
    kind:
      description:
        - V(not_installed), V(driver_not_loaded), V(version_mismatch), V(library_missing), V(no_devices), V(card_lost),
          V(reset_required), V(no_permission), V(driver_too_old), V(timeout), V(unreadable) or V(failed).
      type: str
      sample: version_mismatch
    found: {description: The state that was found., type: str}
    expected: {description: The required state., type: str}
    cure: {description: The action to take., type: str}
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts import nvidia_smi
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.host import Host


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "nvidia_smi": {"type": "str", "default": "nvidia-smi"},
            "minimum_driver": {"type": "str", "default": nvidia_smi.MINIMUM_DRIVER},
            "timeout": {"type": "int", "default": nvidia_smi.TIMEOUT},
        },
        supports_check_mode=True,
    )
    host = Host()
    outcome = host.ask(host.program(module.params["nvidia_smi"]), nvidia_smi.ARGUMENTS, module.params["timeout"])
    module.exit_json(changed=False, **nvidia_smi.report(outcome, module.params["minimum_driver"]).as_dict())


if __name__ == "__main__":
    main()
