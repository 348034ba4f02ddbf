#!/usr/bin/python
# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpushare_handover
short_description: Change a node's device plugin, and the scheduler, between services of hosts and pods
version_added: 0.1.0
description:
  - The playbook C(change_mode) uses this module, on a control plane. Its options may change in any release.
  - Each call is one step. A step that is done already changes nothing.
author: gpushare.kubernetes contributors (@gpushare)
extends_documentation_fragment:
  - gpushare.kubernetes.attributes
  - gpushare.kubernetes.attributes.changes
  - gpushare.kubernetes.kubectl
options:
  step:
    description:
      - V(settled) waits until no pod with a request for GPUs waits for the scheduler that is about to end, and fails if one still does.
      - V(marked) labels O(nodes) with C(gpushare.kubernetes/on-host), which keeps the DaemonSet of the device plugin off them.
      - V(stopped) ends the scheduler's pods. V(opened) removes the policies that give pods the name of that scheduler.
      - V(pod) removes the label of each of O(nodes), and waits until the DaemonSet's pod serves it. V(host) sets the label, and waits
        until the pod is gone.
      - V(pruned) removes the objects of gpushare that are not in O(keep).
    type: str
    choices: [settled, marked, stopped, opened, pod, host, pruned]
    required: true
  to:
    description: The mode after the change.
    type: str
    choices: [systemd, kubernetes]
    required: true
  nodes:
    description: Names of nodes.
    type: list
    elements: str
    default: []
  keep:
    description: The objects of the new mode.
    type: list
    elements: dict
    default: []
  namespace:
    description: The namespace of gpushare's pods.
    type: str
    required: true
  timeout:
    description: Seconds for the step.
    type: int
    required: true
"""

EXAMPLES = r"""
- name: Let the DaemonSet serve the node
  gpushare.kubernetes.gpushare_handover:
    step: pod
    to: kubernetes
    nodes: [gpu1]
    namespace: gpushare-system
    timeout: 60
"""

RETURN = r"""
objects:
  description: The objects that were changed or removed (in check mode, would be).
  returned: success
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster import kubectl as cluster_kubectl
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.objects import diff_of
from ansible_collections.gpushare.kubernetes.plugins.module_utils._in_cluster.handover import Handover, HandoverError


def main() -> None:
    module = AnsibleModule(
        argument_spec=dict(
            cluster_kubectl.ARGUMENTS,
            step={"type": "str", "choices": ["settled", "marked", "stopped", "opened", "pod", "host", "pruned"], "required": True},
            to={"type": "str", "choices": ["systemd", "kubernetes"], "required": True},
            nodes={"type": "list", "elements": "str", "default": []},
            keep={"type": "list", "elements": "dict", "default": []},
            namespace={"type": "str", "required": True},
            timeout={"type": "int", "required": True},
        ),
        supports_check_mode=True,
    )
    params, dry = module.params, module.check_mode
    handover = Handover(cluster_kubectl.for_module(module), params["namespace"], params["timeout"])
    to_pods, nodes = params["to"] == "kubernetes", params["nodes"]
    steps = {
        "settled": lambda: handover.waiting(to_pods) or [],
        "marked": lambda: handover.mark(nodes, dry),
        "stopped": lambda: handover.stop_scheduler(dry),
        "opened": lambda: handover.open(dry),
        "pod": lambda: [one for node in nodes for one in handover.to_pod(node, dry)],
        "host": lambda: [one for node in nodes for one in handover.to_host(node, dry)],
        "pruned": lambda: handover.prune(params["keep"], not to_pods, dry),
    }
    try:
        found = steps[params["step"]]()
    except (cluster_kubectl.KubectlError, HandoverError) as error:
        module.fail_json(msg=str(error))
    diff = diff_of(found, gone=params["step"] not in ("marked", "pod", "host"))
    module.exit_json(changed=bool(found), objects=found, diff=diff)


if __name__ == "__main__":
    main()
