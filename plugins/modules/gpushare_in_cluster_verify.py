#!/usr/bin/python
# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpushare_in_cluster_verify
short_description: Verify in the cluster that nodes can run gpushare, that its pods serve, and that pods have their GPUs
version_added: 0.1.0
description:
  - The role C(in_cluster) uses this module. Its options may change in any release. It fails with every finding.
author: gpushare.kubernetes contributors (@gpushare)
extends_documentation_fragment:
  - gpushare.kubernetes.attributes
  - gpushare.kubernetes.attributes.info
  - gpushare.kubernetes.kubectl
options:
  what:
    description:
      - V(trial) runs a pod with gpushare's image, the RuntimeClass and kubelet's socket on each of O(nodes), then removes it, and the
        namespace if it was not there. It leaves out nodes on which the device plugin serves with the same settings.
      - V(scheduler) waits until the scheduler's pods run as they are written.
      - V(everything) waits until the scheduler's and the device plugin's workloads run as they are written, and kubelet provides on each
        GPU node what its device plugin has published. Then it runs a pod with one unit on each node with the label
        C(gpushare.kubernetes/node=true), compares the pod's device nodes and the variables of its first process with its annotation, and
        removes it.
    type: str
    choices: [trial, scheduler, everything]
    required: true
  namespace:
    description: The namespace of gpushare's pods.
    type: str
    required: true
  nodes:
    description: Names of the GPU nodes, for V(trial).
    type: list
    elements: str
    default: []
  image:
    description: gpushare's image, for V(trial) and V(everything).
    type: str
    default: ""
  runtime_class:
    description: The RuntimeClass of the pods, or nothing.
    type: str
    default: ""
  kubelet_root:
    description: Root folder of the nodes' kubelets, for V(trial).
    type: path
    default: /var/lib/kubelet
  scheduler:
    description: Which scheduler places the pods with GPUs, V(own) or the cluster's V(default).
    type: str
    choices: [own, default]
    default: own
  start_timeout:
    description: Seconds for gpushare's pods, or those of the trial, to run.
    type: int
    required: true
  timeout:
    description: Seconds for the pods that verify, for V(everything).
    type: int
"""

EXAMPLES = r"""
- name: Verify each node
  gpushare.kubernetes.gpushare_in_cluster_verify:
    what: everything
    namespace: gpushare-system
    image: localhost/gpushare:0.1.0
    start_timeout: 180
    timeout: 120
"""

RETURN = r"""
nodes:
  description: The nodes on which a pod ran.
  returned: always
  type: list
  elements: str
findings:
  description: The findings, each with what was found, expected and what to do.
  returned: always
  type: list
  elements: str
unproven:
  description: Nodes without a free unit, on which no pod ran.
  returned: always
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster import kubectl as cluster_kubectl
from ansible_collections.gpushare.kubernetes.plugins.module_utils._in_cluster.pods import Image
from ansible_collections.gpushare.kubernetes.plugins.module_utils._in_cluster.ready import wait
from ansible_collections.gpushare.kubernetes.plugins.module_utils._in_cluster.trial import DevicePluginNeeds, Trial
from ansible_collections.gpushare.kubernetes.plugins.module_utils._in_cluster.verify import verify

_FAILED = {
    "trial": "GPU nodes cannot run gpushare, nothing was changed:",
    "scheduler": "gpushare's pods do not serve in time:",
    "everything": "gpushare's pods do not serve in time:",
    "gpus": "gpushare does not work:",
}


def main() -> None:
    module = AnsibleModule(
        argument_spec=dict(
            cluster_kubectl.ARGUMENTS,
            what={"type": "str", "choices": ["trial", "scheduler", "everything"], "required": True},
            namespace={"type": "str", "required": True},
            nodes={"type": "list", "elements": "str", "default": []},
            image={"type": "str", "default": ""},
            runtime_class={"type": "str", "default": ""},
            kubelet_root={"type": "path", "default": "/var/lib/kubelet"},
            scheduler={"type": "str", "choices": ["own", "default"], "default": "own"},
            start_timeout={"type": "int", "required": True},
            timeout={"type": "int"},
        ),
        required_if=[("what", "trial", ["nodes", "image"]), ("what", "everything", ["image", "timeout"])],
        supports_check_mode=True,
    )
    params, what = module.params, module.params["what"]
    if module.check_mode:
        module.exit_json(changed=False, nodes=[], findings=[], unproven=[])
    kubectl, seconds = cluster_kubectl.for_module(module), params["start_timeout"]
    image = Image(params["image"], params["namespace"], params["runtime_class"], params["scheduler"])
    nodes, unproven = [], []
    try:
        if what == "trial":
            nodes, findings = Trial(kubectl, DevicePluginNeeds(image, params["kubelet_root"].rstrip("/"))).run(params["nodes"], seconds)
        else:
            findings = wait(kubectl, params["namespace"], seconds, what == "scheduler", params["scheduler"] == "default")
            if what == "everything" and not findings:
                what = "gpus"
                nodes, unproven, findings = verify(kubectl, image, params["timeout"])
    except cluster_kubectl.KubectlError as error:
        module.fail_json(msg=str(error))
    result = {"nodes": nodes, "findings": findings, "unproven": unproven}
    if findings:
        module.fail_json(msg=_FAILED[what] + "\n" + "\n".join(f"- {one}" for one in findings), **result)
    module.exit_json(changed=False, **result)


if __name__ == "__main__":
    main()
