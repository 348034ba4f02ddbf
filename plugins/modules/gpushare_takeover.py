#!/usr/bin/python
# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpushare_takeover
short_description: Move other device plugins away from nodes, and restore them
version_added: 0.1.0
description:
  - The roles C(take_over) and C(uninstall) use this module on a control plane, C(in_cluster) with your kubeconfig.
  - Its options may change in any release.
  - With O(state=aside), changes the label of the nodes that the DaemonSet selects. If the DaemonSet has no such label, adds an expression
    to its node affinity and labels the nodes. Annotations of nodes and DaemonSet store the state before.
  - With O(state=returned), restores the labels of the nodes. Restores the DaemonSet as soon as no other node needs its change. Labels
    and affinities that others have changed since lose only the part of this collection. Restarts the original's device plugin on nodes
    whose number of GPUs kubelet has set to 0. The original writes that number when it starts.
  - With O(state=operator_off), sets C(spec.devicePlugin.enabled) of the GPU Operator's ClusterPolicy to V(false), by which the operator
    deletes its device plugin on every node. An annotation stores the state before. Rejects a ClusterPolicy that a chart or a tool owns.
  - With O(state=operator_returned), restores the ClusterPolicy as soon as no other node is one of this collection, as O(state=returned)
    does, too.
  - With O(state=retired), deletes the parts of the original gpushare, and fails while they serve a node.
author: gpushare.kubernetes contributors (@gpushare)
extends_documentation_fragment:
  - gpushare.kubernetes.attributes
  - gpushare.kubernetes.attributes.changes
  - gpushare.kubernetes.kubectl
options:
  nodes:
    description: Names of the nodes.
    type: list
    elements: str
    default: []
  state:
    description: The required state.
    type: str
    choices: [aside, returned, retired, operator_off, operator_returned]
    required: true
  save_to:
    description: File on this host for the deleted objects, with O(state=retired). C(kubectl apply -f) restores them.
    type: path
    default: /var/lib/gpushare-original/objects.json
"""

EXAMPLES = r"""
- name: Move other device plugins away from gpu1
  gpushare.kubernetes.gpushare_takeover:
    nodes: [gpu1]
    state: aside
  register: moved
  until: moved.left | length == 0
  retries: 20
"""

RETURN = r"""
objects:
  description: The changed objects (in check mode, the objects to change).
  returned: success
  type: list
  elements: str
  sample: [Node gpu1]
left:
  description: Pods of other device plugins that are still on the nodes.
  returned: success
  type: list
  elements: str
kept:
  description: Labels that others have changed, and that therefore stay.
  returned: success
  type: list
  elements: str
served:
  description: The nodes that the device plugin of the original gpushare serves, with O(state=returned).
  returned: success
  type: list
  elements: str
"""

import json
import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster import kubectl as cluster_kubectl
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.names import ANNOTATION_GPUS
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.objects import diff_of
from ansible_collections.gpushare.kubernetes.plugins.module_utils._takeover import original
from ansible_collections.gpushare.kubernetes.plugins.module_utils._takeover.aside import TakeOverError
from ansible_collections.gpushare.kubernetes.plugins.module_utils._takeover.cluster import OtherPlugins

STATES = ["aside", "returned", "retired", "operator_off", "operator_returned"]


def main() -> None:
    module = AnsibleModule(
        argument_spec=dict(
            cluster_kubectl.ARGUMENTS,
            nodes={"type": "list", "elements": "str", "default": []},
            state={"type": "str", "choices": STATES, "required": True},
            save_to={"type": "path", "default": "/var/lib/gpushare-original/objects.json"},
        ),
        supports_check_mode=True,
    )
    kubectl = cluster_kubectl.for_module(module)
    nodes, state, dry = module.params["nodes"], module.params["state"], module.check_mode
    try:
        cluster = OtherPlugins(kubectl)
        if state == "retired":
            _retire(module, kubectl, cluster)
        calls = {
            "aside": cluster.move_aside,
            "returned": cluster.give_back,
            "operator_off": cluster.switch_operator_off,
            "operator_returned": cluster.switch_operator_on,
        }
        found = calls[state](nodes, dry)
    except (TakeOverError, cluster_kubectl.KubectlError, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(
        changed=bool(found.changes or found.restarted),
        objects=[change.title for change in found.changes] + [f"Pod {pod.name}" for pod in found.restarted],
        left=sorted(pod.name for pod in found.left),
        kept=list(found.kept),
        served=list(found.served),
        diff=[change.diff() for change in found.changes],
    )


def _retire(module: AnsibleModule, kubectl: cluster_kubectl.Kubectl, cluster: OtherPlugins) -> None:
    found = original.parts(kubectl, cluster)
    titles = [original.title(one) for one in found.all]
    if titles:
        serving = [name for name, node in cluster.nodes.items() if ANNOTATION_GPUS in (node["metadata"].get("annotations") or {})]
        original.check_unused(found, cluster, serving)
        if not module.check_mode:
            _save(module.params["save_to"], original.for_file(found))
            original.retire(kubectl, found)
    module.exit_json(changed=bool(titles), objects=titles, left=[], kept=[], served=[], diff=diff_of(titles))


def _save(path: str, text: str) -> None:
    """Beside what an earlier run has saved: it may have been interrupted between two deletions."""
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    known = _saved(path)
    names = {_key(one) for one in json.loads(text)["items"]}
    items = json.loads(text)["items"] + [one for one in known if _key(one) not in names]
    descriptor = os.open(path + ".new", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}, indent=1, sort_keys=True) + "\n")
    os.replace(path + ".new", path)


def _saved(path: str) -> list:
    try:
        with open(path) as file:
            return list(json.load(file)["items"])
    except (OSError, ValueError, KeyError, TypeError):
        return []


def _key(item: dict) -> tuple:
    metadata = item["metadata"]
    return item["kind"], metadata.get("namespace"), metadata["name"]


if __name__ == "__main__":
    main()
