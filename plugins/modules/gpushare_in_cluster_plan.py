#!/usr/bin/python
# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpushare_in_cluster_plan
short_description: Judge a cluster before gpushare is installed in it, and make the objects
version_added: 0.1.0
description:
  - The role C(in_cluster) uses this module. Its options may change in any release.
  - Runs on the controller. Asks the API server by M(gpushare.kubernetes.gpushare_in_cluster_info), and judges what it says together with
    the variables. Fails with every reason against the installation, each with what was found, expected and what to do.
author: gpushare.kubernetes contributors (@gpushare)
extends_documentation_fragment:
  - gpushare.kubernetes.attributes
  - gpushare.kubernetes.attributes.info
options:
  settings:
    description: The variables of the role, by their names.
    type: dict
    required: true
  kubectl:
    description: Name or path of kubectl on the controller.
    type: str
    default: kubectl
  kubeconfig:
    description: Path of your kubeconfig on the controller.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Judge the cluster
  gpushare.kubernetes.gpushare_in_cluster_plan:
    kubeconfig: ~/.kube/config
    settings: "{{ settings }}"
  register: plan
"""

RETURN = r"""
reasons:
  description: The reasons, also those that are warnings.
  returned: always
  type: list
  elements: dict
objects:
  description: The objects to apply, those that others need first.
  returned: success
  type: list
  elements: dict
labels:
  description: The nodes to label.
  returned: success
  type: list
  elements: dict
nodes:
  description: Names of the GPU nodes.
  returned: success
  type: list
  elements: str
runtime_class:
  description: RuntimeClass of the pods, by the variable or by the preset.
  returned: success
  type: str
"""

from ansible.module_utils.basic import AnsibleModule


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "settings": {"type": "dict", "required": True},
            "kubectl": {"type": "str", "default": "kubectl"},
            "kubeconfig": {"type": "str", "required": True},
        },
        supports_check_mode=True,
    )
    name = "gpushare_in_cluster_plan"
    module.fail_json(msg=f"{name} works on the controller; call it by its full name gpushare.kubernetes.{name}")


if __name__ == "__main__":
    main()
