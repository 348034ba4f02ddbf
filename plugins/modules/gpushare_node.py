#!/usr/bin/python
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpushare_node
short_description: "Private: cordon or drain a node, make it schedulable again, and check whether it is ready"
version_added: 0.1.0
description:
  - Roles of this collection use this module, on a control plane. Its options may change in any release.
author: gpushare.kubernetes contributors (@gpushare)
extends_documentation_fragment:
  - gpushare.kubernetes.attributes
  - gpushare.kubernetes.attributes.changes
  - gpushare.kubernetes.kubectl
options:
  what:
    description:
      - V(cordon) cordons the node, and marks it with the annotations C(gpushare/cordoned-by) and C(gpushare/cordon-reason).
      - V(drain) also evicts its pods through the API, within their disruption budgets, for at most 20 seconds.
        RV(done) reports whether they were enough. Otherwise call again. DaemonSets' pods and static pods stay.
      - V(uncordon) makes a node that has the first of these annotations schedulable again, and no other.
      - V(ready) reads the node's condition C(Ready) and its lease, once. The condition counts only with a heartbeat of kubelet that is
        later than O(since), by the time that kubelet needs to notice a restart. Use it with C(until).
    type: str
    choices: [cordon, drain, uncordon, ready]
    required: true
  node: {description: Name of the node., type: str, required: true}
  owner: {description: Value of the annotation., type: str, default: nvidia_driver}
  reason:
    description: Value of the annotation C(gpushare/cordon-reason). With V(cordon), also on a node that this collection cordoned.
    type: str
    default: ""
  force: {description: Whether to delete pods that no controller creates again., type: bool, default: false}
  since: {description: "When the container runtime was restarted, as Unix time of the node's clock. V(ready) requires it.", type: float}
"""

EXAMPLES = r"""
- name: Drain the node
  gpushare.kubernetes.gpushare_node:
    what: drain
    node: gpu1
  register: drained
  until: drained.done
  retries: 15
  delay: 1
"""

RETURN = r"""
done: {description: Whether no pod is left to evict., returned: without O(what=ready), type: bool}
left: {description: "Pods that are still there, as namespace/name.", returned: without O(what=ready), type: list, elements: str}
why: {description: Report of kubectl about them., returned: without O(what=ready), type: str}
ready: {description: "Whether it is ready. If it is not, C(msg) has the missing condition.", returned: with O(what=ready), type: bool}
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils._cluster import kubectl as cluster_kubectl
from ..module_utils._cluster.drain import SECONDS, Drained, cordon, drain, uncordon
from ..module_utils._cluster.node_ready import NodeReady, not_ready
from ..module_utils._formats.answers import answer_of
from ..module_utils._host.answering import answering


def ready(kubectl: cluster_kubectl.Kubectl, module: AnsibleModule) -> NodeReady:
    """Whether the node is ready since then, and what it lacks."""
    name = module.params["node"]
    try:
        node = kubectl.json(["get", "--ignore-not-found", "node", name])
        lease = kubectl.json(["get", "--ignore-not-found", "--namespace", "kube-node-lease", "lease", name])
    except (cluster_kubectl.KubectlError, ValueError) as error:
        # The API server of the only control plane may have been restarted along with its containerd.
        return NodeReady(False, False, str(error))
    why = not_ready(node, lease, module.params["since"])
    return NodeReady(False, why is None, None if why is None else f"node {name}: {why}")


def close(kubectl: cluster_kubectl.Kubectl, module: AnsibleModule) -> Drained:
    """Cordon it."""
    params = module.params
    return Drained(cordon(kubectl, params["node"], params["owner"], module.check_mode, params["reason"]), True)


def empty(kubectl: cluster_kubectl.Kubectl, module: AnsibleModule) -> Drained:
    """Drain it."""
    params = module.params
    return drain(kubectl, params["node"], params["owner"], SECONDS, params["force"], module.check_mode, params["reason"])


def open_again(kubectl: cluster_kubectl.Kubectl, module: AnsibleModule) -> Drained:
    """Uncordon it."""
    return Drained(uncordon(kubectl, module.params["node"], module.check_mode), True)


OPERATIONS = {"cordon": close, "drain": empty, "uncordon": open_again, "ready": ready}


def main() -> None:
    module = AnsibleModule(
        argument_spec=dict(
            cluster_kubectl.ARGUMENTS,
            what={"type": "str", "choices": list(OPERATIONS), "required": True},
            node={"type": "str", "required": True},
            owner={"type": "str", "default": "nvidia_driver"},
            reason={"type": "str", "default": ""},
            force={"type": "bool", "default": False},
            since={"type": "float"},
        ),
        required_if=[("what", "ready", ["since"])],
        supports_check_mode=True,
    )
    with answering(module):
        found = OPERATIONS[module.params["what"]](cluster_kubectl.for_module(module), module)
    module.exit_json(**answer_of(found))


if __name__ == "__main__":
    main()
