#!/usr/bin/python
# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpushare_remove_cluster
short_description: Remove gpushare's objects, pods and traces on nodes from the cluster
version_added: 0.1.0
description:
  - The roles C(uninstall) and C(in_cluster) use this module. Its options may change in any release.
  - Annotations of pods stay. They record the GPUs that the pods had.
author: gpushare.kubernetes contributors (@gpushare)
extends_documentation_fragment:
  - gpushare.kubernetes.attributes
  - gpushare.kubernetes.attributes.changes
  - gpushare.kubernetes.kubectl
options:
  what:
    description:
      - V(objects) deletes the objects that this collection has applied, by name and field manager. Admission policies go first, then
        bindings, roles and accounts. Removes its label, taint and annotations from O(nodes). Removes the extended resources from the
        nodes' status, once kubelet has released them. kubelet does so five minutes after the device plugin has gone. Until then it would
        write them again.
      - V(pods) stops before the first change, if pods with a share of a GPU run. Deletes the workloads, removes the state folder and the
        sockets of the device plugin on each GPU node by a pod, and deletes the namespace.
    type: str
    choices: [objects, pods]
    required: true
  nodes:
    description: Names of the nodes whose device plugin has been removed, for V(objects).
    type: list
    elements: str
  everything:
    description:
      - Whether V(objects) are also those that all nodes and control planes share. They stay while another node of the cluster still serves
        GPUs.
    type: bool
    default: false
  wait:
    description: Seconds to wait for kubelet to release the extended resources, for V(objects). RV(left) lists those that remain.
    type: int
    default: 330
  dead:
    description:
      - Whether the kubelets of O(nodes) no longer run. Then the extended resources are removed from the nodes' status at once.
    type: bool
    default: false
  others:
    description:
      - Names of the nodes that the device plugin of the original gpushare serves again. Their memory stays. Their number of GPUs stays,
        once kubelet has released the number of this collection's device plugin.
    type: list
    elements: str
    default: []
  namespace:
    description: The namespace of gpushare's pods, for V(pods).
    type: str
  force:
    description: Whether V(pods) are removed although pods with a share of a GPU run.
    type: bool
    default: false
  timeout:
    description: Seconds for pods to go, and for pods to run, for V(pods).
    type: int
"""

EXAMPLES = r"""
- name: Take everything out of the cluster
  gpushare.kubernetes.gpushare_remove_cluster:
    what: objects
    nodes: [gpu1, gpu2]
    everything: true

- name: Remove the pods
  gpushare.kubernetes.gpushare_remove_cluster:
    what: pods
    namespace: gpushare-system
    timeout: 120
"""

RETURN = r"""
removed:
  description: The removed objects and files (in check mode, those to remove).
  returned: success
  type: list
  elements: str
left:
  description: The objects that stay, and why.
  returned: with O(what=objects)
  type: list
  elements: dict
  contains:
    what: {description: The object or part of it., type: str}
    why: {description: The reason as a message., type: str}
nodes:
  description: The nodes that the device plugin has served.
  returned: with O(what=pods)
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster import kubectl as cluster_kubectl
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.objects import diff_of
from ansible_collections.gpushare.kubernetes.plugins.module_utils._in_cluster.removal import InClusterRemoval, RemovalError
from ansible_collections.gpushare.kubernetes.plugins.module_utils._removal.cluster import Removal


def _pods(kubectl: cluster_kubectl.Kubectl, namespace: str, timeout: int, force: bool) -> InClusterRemoval:
    removal = InClusterRemoval(kubectl, namespace, timeout)
    removal.check(force)
    return removal


#: Each choice of `what` has its function, its options in their order, and the further key of its answer.
_SUBJECTS = {
    "objects": (Removal, ("nodes", "everything", "wait", "dead", "others"), "left"),
    "pods": (_pods, ("namespace", "timeout", "force"), "nodes"),
}


def main() -> None:
    module = AnsibleModule(
        argument_spec=dict(
            cluster_kubectl.ARGUMENTS,
            what={"type": "str", "choices": list(_SUBJECTS), "required": True},
            nodes={"type": "list", "elements": "str"},
            everything={"type": "bool", "default": False},
            wait={"type": "int", "default": 330},
            dead={"type": "bool", "default": False},
            others={"type": "list", "elements": "str", "default": []},
            namespace={"type": "str"},
            force={"type": "bool", "default": False},
            timeout={"type": "int"},
        ),
        required_if=[("what", "objects", ["nodes"]), ("what", "pods", ["namespace", "timeout"])],
        supports_check_mode=True,
    )
    make, options, more = _SUBJECTS[module.params["what"]]
    try:
        removal = make(cluster_kubectl.for_module(module), *(module.params[name] for name in options))
        if removal.removed and not module.check_mode:
            removal.apply()
    except (cluster_kubectl.KubectlError, RemovalError) as error:
        module.fail_json(msg=str(error))
    found = {"removed": removal.removed, more: getattr(removal, more)}
    module.exit_json(changed=bool(removal.removed), diff=diff_of(removal.removed), **found)


if __name__ == "__main__":
    main()
