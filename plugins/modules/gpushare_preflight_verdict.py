#!/usr/bin/python
# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpushare_preflight_verdict
short_description: Stop the run if there is a reason to, with all reasons of all hosts
version_added: 0.1.0
description:
  - The role C(preflight) uses this module. Its options may change in any release.
  - Gathers the reasons of M(gpushare.kubernetes.gpushare_preflight) from each host, and adds those against the inventory as a whole.
    Prints a block for each problem and fails if there is one. Warnings are shown and do not fail.
  - Works on the controller and reaches no host. Use it with C(run_once).
author: gpushare.kubernetes contributors (@gpushare)
extends_documentation_fragment:
  - gpushare.kubernetes.attributes
  - gpushare.kubernetes.attributes.info
options:
  hosts:
    description: The hosts of the run, usually V(ansible_play_hosts_all), so that the verdict lists lost ones as well.
    type: list
    elements: str
    required: true
  result:
    description: Name of the variable in which each host's result was registered.
    type: str
    required: true
  control_plane_group:
    description: Inventory group of the control planes.
    type: str
    required: true
  gpu_group:
    description: Inventory group of the GPU nodes.
    type: str
    required: true
  cluster:
    description: >-
      Result of M(gpushare.kubernetes.gpushare_cluster_info) on each control plane, whose name is C(item). By default there is none.
    type: list
    elements: dict
  plans:
    description:
      - Check to the name of the variable in which a role's plan for each host was registered. One that failed is a reason.
    type: dict
    default: {}
  accept:
    description: Checks whose errors are to be warnings.
    type: list
    elements: str
    default: []
  report:
    description: Path on the controller for all reasons as JSON. By default no file is written.
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Stop with every reason, if there is one
  gpushare.kubernetes.gpushare_preflight_verdict:
    hosts: "{{ ansible_play_hosts_all }}"
    result: found
    control_plane_group: kube_control_plane
    gpu_group: gpu_nodes
  run_once: true
"""

RETURN = r"""
ok:
  description: Whether there is no error.
  returned: always
  type: bool
v:
  description: Version of the form of the reasons.
  returned: without an error
  type: int
  sample: 1
reasons:
  description:
    - All reasons, errors first, as M(gpushare.kubernetes.gpushare_preflight) describes them. An empty host means the inventory. With an
      error they are on the screen, and in O(report) for programs.
  returned: without an error
  type: list
  elements: dict
"""

from ansible.module_utils.basic import AnsibleModule


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "hosts": {"type": "list", "elements": "str", "required": True},
            "result": {"type": "str", "required": True},
            "control_plane_group": {"type": "str", "required": True},
            "gpu_group": {"type": "str", "required": True},
            "cluster": {"type": "list", "elements": "dict"},
            "plans": {"type": "dict", "default": {}},
            "accept": {"type": "list", "elements": "str", "default": []},
            "report": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    module.fail_json(
        msg="gpushare_preflight_verdict works on the controller; call it by its full name gpushare.kubernetes.gpushare_preflight_verdict"
    )


if __name__ == "__main__":
    main()
