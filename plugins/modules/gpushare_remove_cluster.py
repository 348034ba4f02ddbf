#!/usr/bin/python
# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpushare_remove_cluster
short_description: Remove gpushare's objects, and its traces on nodes, from the cluster
version_added: 0.1.0
description:
  - The role C(uninstall) uses this module. Its options may change in any release.
  - Deletes the objects that this collection has applied, by name and field manager. Admission policies go first, then bindings, roles and
    accounts. Removes its label, taint and annotations from the nodes.
  - Removes the extended resources from the nodes' status, once kubelet has released them. kubelet does so five minutes after the device
    plugin has gone. Until then it would write them again.
  - Annotations of pods stay. They record the GPUs that the pods had.
author: gpushare.kubernetes contributors (@gpushare)
extends_documentation_fragment:
  - gpushare.kubernetes.attributes
  - gpushare.kubernetes.attributes.changes
  - gpushare.kubernetes.kubectl
options:
  nodes:
    description: Names of the nodes whose device plugin has been removed.
    type: list
    elements: str
    required: true
  everything:
    description:
      - Whether to remove the objects that all nodes and control planes share, too. They stay while another node of the cluster still serves
        GPUs.
    type: bool
    default: false
  wait:
    description: Seconds to wait for kubelet to release the extended resources. RV(left) lists those that remain.
    type: int
    default: 330
  dead:
    description:
      - Whether the kubelets of these nodes no longer run. Then the extended resources are removed from the nodes' status at once.
    type: bool
    default: false
  others:
    description:
      - Names of the nodes that the device plugin of the original gpushare serves again. Their memory stays. Their number of GPUs stays,
        once kubelet has released the number of this collection's device plugin.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Take everything out of the cluster
  gpushare.kubernetes.gpushare_remove_cluster:
    nodes: [gpu1, gpu2]
    everything: true
"""

RETURN = r"""
removed:
  description: The removed objects (in check mode, the objects to remove).
  returned: success
  type: list
  elements: str
left:
  description: The objects that stay, and why.
  returned: success
  type: list
  elements: dict
  contains:
    what: {description: The object or part of it., type: str}
    why: {description: The reason as a message., type: str}
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster import kubectl
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.objects import diff_of
from ansible_collections.gpushare.kubernetes.plugins.module_utils._removal.cluster import Removal


def main() -> None:
    module = AnsibleModule(
        argument_spec=dict(
            kubectl.ARGUMENTS,
            nodes={"type": "list", "elements": "str", "required": True},
            everything={"type": "bool", "default": False},
            wait={"type": "int", "default": 330},
            dead={"type": "bool", "default": False},
            others={"type": "list", "elements": "str", "default": []},
        ),
        supports_check_mode=True,
    )
    params = module.params
    try:
        removal = Removal(
            kubectl.for_module(module), params["nodes"], params["everything"], params["wait"], params["dead"], params["others"]
        )
        if removal.removed and not module.check_mode:
            removal.apply()
    except kubectl.KubectlError as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=bool(removal.removed), removed=removal.removed, left=removal.left, diff=diff_of(removal.removed))


if __name__ == "__main__":
    main()
