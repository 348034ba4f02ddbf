#!/usr/bin/python
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpushare_cluster
short_description: "Private: apply gpushare's objects to the cluster or remove them, and create the credentials of its daemons"
version_added: 0.1.0
description:
  - Roles of this collection use this module. Its options may change in any release.
author: gpushare.kubernetes contributors (@gpushare)
extends_documentation_fragment:
  - gpushare.kubernetes.attributes
  - gpushare.kubernetes.attributes.changes
  - gpushare.kubernetes.kubectl
options:
  what:
    description:
      - V(objects) applies O(objects) by server-side apply through the host's own kubectl, but only if the server's dry run shows a change.
        Fields of these objects that others have changed are reset. Rejects every object with a kind or name that this collection does not
        create. Of nodes it accepts only gpushare's labels. Puts the taint C(gpushare.kubernetes/gpu:PreferNoSchedule) on nodes, or takes
        it away. Other taints stay.
      - V(identity) returns the daemons' kubeconfig, which has no secret. For each daemon without a usable token it also returns a seed. A
        seed is a token that is valid for an hour, with which the daemon requests its own. A token is not usable if it is missing or
        expired, or the API server rejects it. The same applies if it belongs to another or a former ServiceAccount, or if less than a
        quarter of its life is left. Seeds are secrets. Use C(no_log) on the task.
      - V(openshift_policy) merges the extender into the scheduler's policy of OpenShift up to 4.9, in the ConfigMap in C(openshift-config)
        that C(Scheduler/cluster) names. If it names none, uses C(scheduler-policy), and names that. Other predicates, priorities and
        extenders stay. Rejects a Kubernetes after 1.22, whose scheduler reads no policy.
      - V(remove_objects) deletes the objects that this collection has applied, by name and field manager. Admission policies go first,
        then bindings, roles and accounts. Removes its label, taint and annotations from O(nodes). Removes the extended resources from the
        nodes' status, once kubelet has released them. kubelet does so five minutes after the device plugin has gone. Until then it would
        write them again. Annotations of pods stay. They record the GPUs that the pods had.
      - V(remove_pods) stops before the first change, if pods with a share of a GPU run. Deletes the workloads, removes the state folder
        and the sockets of the device plugin on each GPU node by a pod, and deletes the namespace. If this collection has not made the
        namespace, deletes its objects in it.
    type: str
    choices: [objects, identity, openshift_policy, remove_objects, remove_pods]
    required: true
  namespace:
    description:
      - The namespace of daemons that are pods. V(objects) without it accepts only objects of daemons on hosts. V(remove_pods) requires it.
      - Namespace of the ServiceAccounts, for V(identity). Without it C(kube-system).
    type: str
  objects: {description: "Complete Kubernetes objects, those that others need first.", type: list, elements: dict}
  gone: {description: "Objects to delete, with kind, name and namespace.", type: list, elements: dict, default: []}
  removed:
    description: Titles of objects that a task before has removed, or in check mode would have. They count as not there, for V(objects).
    type: list
    elements: str
    default: []
  create:
    description: Whether missing objects may be created. If not, they are left out and listed in RV(missing).
    type: bool
    default: true
  unserved:
    description:
      - Action for objects of kinds that this API server does not have, such as policies before Kubernetes 1.30. V(skip) leaves them out
        and lists them in RV(unserved).
    type: str
    choices: [fail, skip]
    default: fail
  taints: {description: Name of a node to whether it has the taint. Nodes that are not there are left out., type: dict, default: {}}
  accounts:
    description:
      - Name of the ServiceAccount by key of the daemon in the result, such as its host. The account must exist, except in check mode.
    type: dict
  tokens:
    description: C(own) of the daemon's M(gpushare.kubernetes.gpushare_daemon) result, by key of the daemon.
    type: dict
    default: {}
  server: {description: URL of the API server. By default the one of O(kubeconfig)., type: str, default: ""}
  state:
    description: With V(absent), V(openshift_policy) is as it was. If others have changed it since, only the extender is removed.
    type: str
    choices: [present, absent]
    default: present
  url_prefix:
    description: URL of the extender, as kube-scheduler reaches it on its host.
    type: str
    default: http://127.0.0.1:32766/gpushare-scheduler
  weight: {description: "Weight of the extender's scores.", type: int, default: 1}
  http_timeout: {description: "Timeout of the calls, as a Go duration.", type: str, default: 1s}
  preemption: {description: Whether kube-scheduler calls the extender before it evicts pods of lower priority., type: bool, default: true}
  nodes: {description: "Names of the nodes whose device plugin has been removed, for V(remove_objects).", type: list, elements: str}
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
  reinstalls:
    description:
      - Whether another back end comes at once. Then V(remove_pods) keeps the namespace with the objects of others, and stops if pods wait
        for a share of a GPU. V(remove_objects) keeps the nodes' labels and taints.
    type: bool
    default: false
  force: {description: Whether V(remove_pods) continues although pods with a share of a GPU run., type: bool, default: false}
  timeout: {description: "Seconds for pods to go, and for pods to run. V(remove_pods) requires it.", type: int}
"""

EXAMPLES = r"""
- name: Apply the extender's account and rights
  gpushare.kubernetes.gpushare_cluster:
    what: objects
    objects: "{{ lookup('ansible.builtin.file', 'rbac.yml') | from_yaml_all | list }}"
  delegate_to: "{{ groups['kube_control_plane'] | first }}"
  run_once: true
"""

RETURN = r"""
objects:
  description: The objects that were created or changed (in check mode, would be).
  returned: with O(what=objects)
  type: list
  elements: str
  sample: [ClusterRole gpushare-extender]
unserved: {description: The objects that this API server does not have., returned: with O(what=objects), type: list, elements: str}
missing:
  description: With O(create=false), the objects that are not there.
  returned: with O(what=objects)
  type: list
  elements: str
  sample: [Node gpu1]
kubeconfig: {description: The kubeconfig of all these daemons., returned: with O(what=identity), type: str}
due:
  description: Why a daemon needs a seed, by the key of O(accounts). Daemons that need none are not in it.
  returned: with O(what=identity)
  type: dict
  sample: {cp1: it has no token of its own yet}
seeds: {description: The seeds by the key of O(accounts). None in check mode., returned: with O(what=identity), type: dict}
notes:
  description: Remarks for people, for example about a policy that others have changed since.
  returned: with O(what=openshift_policy)
  type: list
  elements: str
removed:
  description: The removed objects and files (in check mode, those to remove).
  returned: with O(what=remove_objects) and O(what=remove_pods)
  type: list
  elements: str
left:
  description: The objects that stay, and why.
  returned: with O(what=remove_objects)
  type: list
  elements: dict
  contains:
    what: {description: The object or part of it., type: str}
    why: {description: The reason as a message., type: str}
nodes: {description: The nodes that the device plugin has served., returned: with O(what=remove_pods), type: list, elements: str}
"""

import time

from ansible.module_utils.basic import AnsibleModule

from ..module_utils._cluster import kubectl as cluster_kubectl
from ..module_utils._cluster.names import NAMESPACE, RESOURCES
from ..module_utils._cluster.objects import ObjectsApplied, WantedObjects, check_ours, converge, diff_of
from ..module_utils._formats.answers import answer_of
from ..module_utils._host.answering import answering
from ..module_utils._identity.seeds import Identity, daemons_of, identify
from ..module_utils._in_cluster.removal import InClusterRemoval, PodsRemoved
from ..module_utils._removal.cluster import ObjectsRemoved, Removal
from ..module_utils._scheduler import openshift
from ..module_utils._scheduler.scheduler_config import ExtenderEntry


def objects(module: AnsibleModule, kubectl: cluster_kubectl.Kubectl) -> ObjectsApplied:
    """Apply the objects and taints."""
    params = module.params
    wanted = WantedObjects(
        apply=params["objects"],
        create=params["create"],
        skip_unserved=params["unserved"] == "skip",
        namespace=params["namespace"] or "",
        gone=params["gone"],
        removed=params["removed"],
        taints={str(name): module.boolean(value) for name, value in params["taints"].items()},
    )
    check_ours(wanted)
    return converge(kubectl, wanted, module.check_mode)


def identity(module: AnsibleModule, kubectl: cluster_kubectl.Kubectl) -> Identity:
    """Make the kubeconfig and the seeds."""
    params = module.params
    try:
        daemons = daemons_of(params["accounts"], params["tokens"])
    except TypeError as error:
        module.fail_json(msg=f"a value of tokens is not what gpushare_daemon returns: {error}")
    return identify(kubectl, params["namespace"] or NAMESPACE, daemons, params["server"], time.time(), not module.check_mode)


def openshift_policy(module: AnsibleModule, kubectl: cluster_kubectl.Kubectl) -> openshift.PolicyMerged:
    """Add the extender to the policy, or remove it."""
    params = module.params
    extender = ExtenderEntry(params["url_prefix"], params["weight"], params["http_timeout"], RESOURCES, "", params["preemption"])
    found = openshift.read(kubectl)
    steps, notes = (openshift.present(found, extender), []) if params["state"] == "present" else openshift.absent(found, extender)
    if not module.check_mode:
        openshift.apply(kubectl, steps)
    return openshift.PolicyMerged(bool(steps), notes, [step.diff() for step in steps])


def remove_objects(module: AnsibleModule, kubectl: cluster_kubectl.Kubectl) -> ObjectsRemoved:
    """Remove what this collection has applied."""
    removal = Removal(kubectl, *(module.params[name] for name in ("nodes", "everything", "wait", "dead", "others", "reinstalls")))
    _apply(module, removal)
    return ObjectsRemoved(bool(removal.removed), removal.removed, removal.left, diff_of(removal.removed))


def remove_pods(module: AnsibleModule, kubectl: cluster_kubectl.Kubectl) -> PodsRemoved:
    """Remove the pods of the daemons."""
    params = module.params
    removal = InClusterRemoval(kubectl, params["namespace"], params["timeout"], reinstalls=params["reinstalls"])
    removal.check(module.params["force"])
    _apply(module, removal)
    return PodsRemoved(bool(removal.removed), removal.removed, removal.nodes, diff_of(removal.removed))


def _apply(module: AnsibleModule, removal: "Removal | InClusterRemoval") -> None:
    if removal.removed and not module.check_mode:
        removal.apply()


OPERATIONS = {
    "objects": objects,
    "identity": identity,
    "openshift_policy": openshift_policy,
    "remove_objects": remove_objects,
    "remove_pods": remove_pods,
}


def main() -> None:
    module = AnsibleModule(
        argument_spec=dict(
            cluster_kubectl.ARGUMENTS,
            what={"type": "str", "choices": list(OPERATIONS), "required": True},
            namespace={"type": "str"},
            objects={"type": "list", "elements": "dict"},
            gone={"type": "list", "elements": "dict", "default": []},
            removed={"type": "list", "elements": "str", "default": []},
            create={"type": "bool", "default": True},
            unserved={"type": "str", "choices": ["fail", "skip"], "default": "fail"},
            taints={"type": "dict", "default": {}},
            accounts={"type": "dict"},
            tokens={"type": "dict", "default": {}, "no_log": False},
            server={"type": "str", "default": ""},
            state={"type": "str", "choices": ["present", "absent"], "default": "present"},
            url_prefix={"type": "str", "default": "http://127.0.0.1:32766/gpushare-scheduler"},
            weight={"type": "int", "default": 1},
            http_timeout={"type": "str", "default": "1s"},
            preemption={"type": "bool", "default": True},
            nodes={"type": "list", "elements": "str"},
            everything={"type": "bool", "default": False},
            wait={"type": "int", "default": 330},
            dead={"type": "bool", "default": False},
            others={"type": "list", "elements": "str", "default": []},
            reinstalls={"type": "bool", "default": False},
            force={"type": "bool", "default": False},
            timeout={"type": "int"},
        ),
        required_if=[
            ("what", "objects", ["objects"]),
            ("what", "identity", ["accounts"]),
            ("what", "remove_objects", ["nodes"]),
            ("what", "remove_pods", ["namespace", "timeout"]),
        ],
        supports_check_mode=True,
    )
    with answering(module):
        module.exit_json(**answer_of(OPERATIONS[module.params["what"]](module, cluster_kubectl.for_module(module))))


if __name__ == "__main__":
    main()
