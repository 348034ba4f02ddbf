#!/usr/bin/python
# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpushare_drain
short_description: Cordon or drain a node, and make it schedulable again
version_added: 0.1.0
description:
  - The roles C(nvidia_driver), C(take_over) and C(uninstall) use this module, on a control plane. Its options may change in any release.
  - Cordons the node. With O(state=drained), also evicts its pods through the API, within their disruption budgets. DaemonSets' pods and
    static pods stay.
  - Marks the node with the annotations C(gpushare/cordoned-by) and C(gpushare/cordon-reason). With O(state=uncordoned), changes only a
    node that has the first.
author: gpushare.kubernetes contributors (@gpushare)
extends_documentation_fragment:
  - gpushare.kubernetes.attributes
  - gpushare.kubernetes.attributes.changes
  - gpushare.kubernetes.kubectl
options:
  node:
    description: Name of the node.
    type: str
    required: true
  state:
    description: The required state of the node.
    type: str
    choices: [cordoned, drained, uncordoned]
    required: true
  owner:
    description: Value of the annotation.
    type: str
    default: nvidia_driver
  reason:
    description: Value of the annotation C(gpushare/cordon-reason). With O(state=cordoned), also on a node that this collection cordoned.
    type: str
    default: ""
  seconds:
    description: Seconds for this call. RV(done) reports whether they were enough. Otherwise call again.
    type: int
    default: 20
  force:
    description: Whether to delete pods that no controller creates again.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Drain the node
  gpushare.kubernetes.gpushare_drain:
    node: gpu1
    state: drained
  register: drained
  until: drained.done
  retries: 15
  delay: 1
"""

RETURN = r"""
done:
  description: Whether no pod is left to evict.
  returned: success
  type: bool
left:
  description: Pods that are still there, as namespace/name.
  returned: success
  type: list
  elements: str
why:
  description: Report of kubectl about them.
  returned: success
  type: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster import kubectl as cluster_kubectl
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.drain import Drained, DrainError, cordon, drain, uncordon


def main() -> None:
    module = AnsibleModule(
        argument_spec=dict(
            cluster_kubectl.ARGUMENTS,
            node={"type": "str", "required": True},
            state={"type": "str", "choices": ["cordoned", "drained", "uncordoned"], "required": True},
            owner={"type": "str", "default": "nvidia_driver"},
            reason={"type": "str", "default": ""},
            seconds={"type": "int", "default": 20},
            force={"type": "bool", "default": False},
        ),
        supports_check_mode=True,
    )
    kubectl, params, dry = cluster_kubectl.for_module(module), module.params, module.check_mode
    node, owner, reason = params["node"], params["owner"], params["reason"]
    try:
        if params["state"] == "drained":
            found = drain(kubectl, node, owner, params["seconds"], params["force"], dry, reason)
        elif params["state"] == "cordoned":
            found = Drained(cordon(kubectl, node, owner, dry, reason), True)
        else:
            found = Drained(uncordon(kubectl, node, dry), True)
    except (DrainError, cluster_kubectl.KubectlError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=found.changed, done=found.done, left=list(found.left), why=found.why, diff=[])


if __name__ == "__main__":
    main()
