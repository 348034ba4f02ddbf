#!/usr/bin/python
# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpushare_gpu_operator
short_description: Switch the device plugin of NVIDIA's GPU Operator off, and restore it
version_added: 0.1.0
description:
  - The roles C(take_over) and C(in_cluster) use this module. Its options may change in any release.
  - With O(state=off), sets C(spec.devicePlugin.enabled) of the ClusterPolicy to V(false), by which the operator deletes its device plugin
    on every node. An annotation of the ClusterPolicy stores the state before.
  - With O(state=returned), restores the ClusterPolicy as soon as no other node is one of this collection. A field that others have changed
    since stays as it is.
  - A ClusterPolicy that Helm, Argo CD, Flux, OLM or an operator owns is not changed.
author: gpushare.kubernetes contributors (@gpushare)
extends_documentation_fragment:
  - gpushare.kubernetes.attributes
  - gpushare.kubernetes.attributes.changes
  - gpushare.kubernetes.kubectl
options:
  nodes:
    description: Names of the nodes. With O(state=off), RV(left) has the pods of the operator's device plugin on them.
    type: list
    elements: str
    required: true
  state:
    description: The required state.
    type: str
    choices: ['off', returned]
    required: true
"""

EXAMPLES = r"""
- name: Switch the operator's device plugin off, and wait until gpu1 has none
  gpushare.kubernetes.gpushare_gpu_operator:
    nodes: [gpu1]
    state: 'off'
  register: switched
  until: switched.left | length == 0
  retries: 20
"""

RETURN = r"""
objects:
  description: The changed objects (in check mode, the objects to change).
  returned: success
  type: list
  elements: str
  sample: [ClusterPolicy cluster-policy]
left:
  description: Pods of the operator's device plugin that are still on the nodes.
  returned: success
  type: list
  elements: str
kept:
  description: Fields that others have changed, and that therefore stay.
  returned: success
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster import kubectl as cluster_kubectl
from ansible_collections.gpushare.kubernetes.plugins.module_utils._takeover.aside import TakeOverError
from ansible_collections.gpushare.kubernetes.plugins.module_utils._takeover.cluster import Cluster


def main() -> None:
    module = AnsibleModule(
        argument_spec=dict(
            cluster_kubectl.ARGUMENTS,
            nodes={"type": "list", "elements": "str", "required": True},
            state={"type": "str", "choices": ["off", "returned"], "required": True},
        ),
        supports_check_mode=True,
    )
    nodes, dry = module.params["nodes"], module.check_mode
    try:
        cluster = Cluster(cluster_kubectl.for_module(module))
        off = module.params["state"] == "off"
        found = cluster.switch_operator_off(nodes, dry) if off else cluster.switch_operator_on(nodes, dry)
    except (TakeOverError, cluster_kubectl.KubectlError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(
        changed=bool(found.changes),
        objects=[change.title for change in found.changes],
        left=sorted(pod.name for pod in found.left),
        kept=list(found.kept),
        diff=[change.diff() for change in found.changes],
    )


if __name__ == "__main__":
    main()
