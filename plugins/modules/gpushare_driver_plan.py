#!/usr/bin/python
# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpushare_driver_plan
short_description: Plan how a driver is installed on a host
version_added: 0.1.0
description:
  - The role C(nvidia_driver) uses this module. Its options may change in any release.
  - Gathers the facts of a host with M(gpushare.kubernetes.gpushare_driver_info), in one call. On the controller it chooses the packages,
    the kernel module and the headers by the data of the host's distribution, and the GPUs.
  - Fails with all reasons if the driver cannot be installed as required. Changes nothing.
author: gpushare.kubernetes contributors (@gpushare)
extends_documentation_fragment:
  - gpushare.kubernetes.attributes
  - gpushare.kubernetes.attributes.info
options:
  data:
    description: Folder on the controller with the data of the distributions.
    type: path
    required: true
  version:
    description: Exact version of the driver.
    type: str
    required: true
  source:
    description: Source of the driver.
    type: str
    choices: [nvidia, distribution, run_file]
    default: nvidia
  module:
    description: Kind of the kernel module. V(auto) suits the GPUs.
    type: str
    choices: [auto, open, proprietary]
    default: auto
  build:
    description: V(dkms), V(precompiled), or V(auto) for precompiled modules where the kernel requires signed ones.
    type: str
    choices: [auto, dkms, precompiled]
    default: auto
  run_file:
    description: Path of NVIDIA's installer on the host.
    type: str
    default: ""
  change_ok:
    description: Whether another version or kernel module than the installed one is accepted.
    type: bool
    default: false
  own_key:
    description: Whether DKMS signs modules with a key that is enrolled in the firmware.
    type: bool
    default: false
  persistenced:
    description: Whether the persistence daemon runs.
    type: bool
    default: true
  fabric:
    description: V(never) installs no fabric manager. V(auto) installs it on hosts with NVSwitch.
    type: str
    choices: [auto, never]
    default: auto
  repository:
    description: Address of the repository instead of the source's own.
    type: str
    default: ""
  key:
    description: The repository's key as text, URL or absolute path on the host.
    type: str
    default: ""
  fingerprints:
    description: Fingerprints of the key.
    type: list
    elements: str
    default: []
  module_options:
    description: Options of the driver's kernel modules, such as V(nvidia NVreg_RestrictProfilingToAdminUsers=0).
    type: list
    elements: str
    default: []
  root:
    description: Folder that stands for the host's V(/), for tests.
    type: path
    default: /
"""

EXAMPLES = r"""
- name: Plan the driver
  gpushare.kubernetes.gpushare_driver_plan:
    data: "{{ role_path }}/vars"
    version: 580.159.03
  register: planned
"""

RETURN = r"""
plan:
  description: The plan.
  returned: always
  type: dict
info:
  description: Result of M(gpushare.kubernetes.gpushare_driver_info).
  returned: always
  type: dict
due:
  description: Whether the kernel module must change, so that no process may use the GPUs.
  returned: always
  type: bool
pending:
  description: Why the host must reboot before the planned driver runs. Empty if it need not.
  returned: always
  type: str
"""

from ansible.module_utils.basic import AnsibleModule


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "data": {"type": "path", "required": True},
            "version": {"type": "str", "required": True},
            "source": {"type": "str", "choices": ["nvidia", "distribution", "run_file"], "default": "nvidia"},
            "module": {"type": "str", "choices": ["auto", "open", "proprietary"], "default": "auto"},
            "build": {"type": "str", "choices": ["auto", "dkms", "precompiled"], "default": "auto"},
            "run_file": {"type": "str", "default": ""},
            "change_ok": {"type": "bool", "default": False},
            "own_key": {"type": "bool", "default": False},
            "persistenced": {"type": "bool", "default": True},
            "fabric": {"type": "str", "choices": ["auto", "never"], "default": "auto"},
            "repository": {"type": "str", "default": ""},
            "key": {"type": "str", "default": "", "no_log": False},
            "fingerprints": {"type": "list", "elements": "str", "default": []},
            "module_options": {"type": "list", "elements": "str", "default": []},
            "root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    module.fail_json(msg="gpushare_driver_plan works on the controller; call it by its full name gpushare.kubernetes.gpushare_driver_plan")


if __name__ == "__main__":
    main()
