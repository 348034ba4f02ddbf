#!/usr/bin/python
# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpushare_probe
short_description: Place a probe pod on nodes through the real scheduler, or remove all probe pods
version_added: 0.1.0
description:
  - The role C(verify) uses this module. Its options may change in any release.
  - Creates a pod per node that requests one unit and may only run there, with any taints. Waits until the pod runs or is rejected. Its
    image is on the node already and needs no command.
  - The pods stay for inspection until the module is called with O(state=absent). Both states first remove the probe pods of an
    interrupted run.
author: gpushare.kubernetes contributors (@gpushare)
extends_documentation_fragment:
  - gpushare.kubernetes.attributes
  - gpushare.kubernetes.kubectl
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
  idempotent:
    support: none
    details: With O(state=present) each call creates the pods again.
options:
  state:
    description: Whether there are to be probe pods.
    type: str
    choices: [present, absent]
    default: present
  nodes:
    description: Name of each node to the image of its probe pod.
    type: dict
    default: {}
  resource:
    description: The resource of which a probe pod requests one unit.
    type: str
    default: aliyun.com/gpu-mem
  scheduler_name:
    description: The scheduler that is to place them.
    type: str
    default: default-scheduler
  timeout:
    description: Seconds within which the pods must run, or be gone.
    type: int
    default: 60
"""

EXAMPLES = r"""
- name: Place a probe pod on each node
  gpushare.kubernetes.gpushare_probe:
    nodes: {gpu1: "registry.k8s.io/pause:3.10", gpu2: "registry.k8s.io/pause:3.10"}
  register: probes

- name: Remove them
  gpushare.kubernetes.gpushare_probe:
    state: absent
"""

RETURN = r"""
pods:
  description: Final state of the probe pod by node, for M(gpushare.kubernetes.gpushare_judge). Null for a missing pod.
  returned: with O(state=present), not in check mode
  type: dict
removed:
  description: Names of the probe pods that were removed (in check mode, none).
  returned: success
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster import kubectl
from ansible_collections.gpushare.kubernetes.plugins.module_utils._evidence.probes import Probes, name, probe_pod


def main() -> None:
    module = AnsibleModule(
        argument_spec=dict(
            kubectl.ARGUMENTS,
            state={"type": "str", "choices": ["present", "absent"], "default": "present"},
            nodes={"type": "dict", "default": {}},
            resource={"type": "str", "default": "aliyun.com/gpu-mem"},
            scheduler_name={"type": "str", "default": "default-scheduler"},
            timeout={"type": "int", "default": 60},
        ),
        supports_check_mode=True,
    )
    params = module.params
    if module.check_mode:
        module.exit_json(changed=bool(params["nodes"]) and params["state"] == "present", removed=[])
    probes = Probes(kubectl.for_module(module))
    try:
        removed = probes.remove(params["timeout"])
        result = {"changed": bool(removed), "removed": removed}
        if params["state"] == "present" and params["nodes"]:
            wanted = [
                probe_pod(node, str(image), params["resource"], params["scheduler_name"]) for node, image in sorted(params["nodes"].items())
            ]
            placed = probes.place(wanted, params["timeout"])
            result.update(changed=True, pods={node: placed[name(node)] for node in params["nodes"]})
    except kubectl.KubectlError as error:
        module.fail_json(msg=str(error))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
