#!/usr/bin/python
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpushare_in_cluster
short_description: "Private: read, verify and change a cluster with gpushare's daemons as pods"
version_added: 0.1.0
description:
  - The role C(in_cluster) and the playbook C(change_mode) use this module. Its options may change in any release.
author: gpushare.kubernetes contributors (@gpushare)
extends_documentation_fragment:
  - gpushare.kubernetes.attributes
  - gpushare.kubernetes.attributes.changes
  - gpushare.kubernetes.kubectl
options:
  what:
    description:
      - V(facts) reads what an installation depends on, for M(gpushare.kubernetes.gpushare_judge).
      - V(trial) runs a pod with gpushare's image, the RuntimeClass and kubelet's sockets on each of O(nodes), then removes it, and the
        namespace if it was not there. It leaves out nodes on which the device plugin serves with the same settings.
      - V(scheduler) waits until the scheduler's pods run as they are written.
      - V(moved) ends the scheduler's pods that run on GPU nodes, one after the other, and waits until others serve. Their Deployment puts
        those on other nodes. In check mode O(nodes) count as GPU nodes, too.
      - V(everything) waits until the scheduler's and the device plugin's workloads run as they are written, and kubelet provides on each
        GPU node what its device plugin has published. Then it runs a pod with one unit on each node with the label
        C(gpushare.kubernetes/node=true), compares the pod's device nodes and the variables of its first process with its annotation, and
        removes it. A pod of the scheduler on a GPU node is a finding, too, unless O(on_gpu_nodes). It fails with every finding, as V(trial)
        and V(scheduler) do.
      - V(handover) is one O(step) of a change between services of hosts and pods. A step that is done already changes nothing.
    type: str
    choices: [facts, trial, scheduler, moved, everything, handover]
    required: true
  namespace: {description: "The namespace of gpushare's pods.", type: str, required: true}
  nodes:
    description:
      - Names of the nodes for V(trial) and V(handover), or of the GPU nodes for V(facts) and V(everything). Without them, these two are
        about the nodes with the label C(gpushare.kubernetes/node=true). With them, V(everything) warns about others with that label that
        no pod serves.
    type: list
    elements: str
    default: []
  image: {description: "gpushare's image.", type: str, default: ""}
  rules: {description: "Rights of the accounts that this user will have to grant, for V(facts).", type: list, elements: dict, default: []}
  wait: {description: "Seconds within which kubelet must have told of O(image), for V(facts).", type: int, default: 0}
  runtime_class: {description: "The RuntimeClass of the pods, or nothing.", type: str, default: ""}
  kubelet_root: {description: "The --root-dir of the nodes' kubelets, for V(trial).", type: path, default: /var/lib/kubelet}
  scheduler:
    description: Which scheduler places the pods with GPUs, V(own) or the cluster's V(default).
    type: str
    choices: [own, default]
    default: own
  backend:
    description:
      - Back end that counts GPU memory. With V(dra) the scheduler's pods are those that keep the templates of claims. V(everything) then
        waits for the objects of admission, a template in its own namespace and a ResourceSlice of each GPU node, and compares the pod's
        device node with that slice. It warns about other namespaces without a template.
    type: str
    choices: [extender, dra]
    default: extender
  on_gpu_nodes: {description: Whether the scheduler's pods may run on GPU nodes., type: bool, default: false}
  start_timeout: {description: "Seconds for gpushare's pods, or those of the trial, to run.", type: int}
  timeout: {description: "Seconds for the pods that verify, for V(everything), or for the O(step).", type: int}
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
  to: {description: The mode after the change., type: str, choices: [systemd, kubernetes]}
  keep: {description: The objects of the new mode., type: list, elements: dict, default: []}
"""

EXAMPLES = r"""
- name: Verify each node
  gpushare.kubernetes.gpushare_in_cluster:
    what: everything
    namespace: gpushare-system
    image: localhost/gpushare:0.1.0
    start_timeout: 180
    timeout: 120
"""

RETURN = r"""
facts: {description: The facts., returned: with O(what=facts), type: dict}
nodes: {description: The nodes on which a pod ran., returned: with what verifies, type: list, elements: str}
findings:
  description: The findings, each with what was found, expected and what to do.
  returned: with what verifies
  type: list
  elements: str
unproven: {description: "Nodes without a free unit, on which no pod ran.", returned: with what verifies, type: list, elements: str}
objects:
  description: The objects that were changed or removed (in check mode, would be).
  returned: with O(what=handover) and O(what=moved)
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils._cluster import kubectl as cluster_kubectl
from ..module_utils._cluster.names import BACKENDS, BY_CLAIMS, BY_EXTENDER
from ..module_utils._cluster.objects import diff_of
from ..module_utils._formats.answers import answer_of
from ..module_utils._host.answering import answering
from ..module_utils._in_cluster.facts import FactsInCluster, gather, when_told
from ..module_utils._in_cluster.handover import Handover, ObjectsMoved
from ..module_utils._in_cluster.pods import Image
from ..module_utils._in_cluster.ready import Awaited, beside, wait
from ..module_utils._in_cluster.replicas import findings, live, move
from ..module_utils._in_cluster.trial import DevicePluginNeeds, Trial
from ..module_utils._in_cluster.verify import Proof, verify

CANNOT = "GPU nodes cannot run gpushare, nothing was changed:"
LATE = "gpushare's pods do not serve in time:"
BROKEN = "gpushare does not work:"


def facts(kubectl: cluster_kubectl.Kubectl, module: AnsibleModule) -> FactsInCluster:
    """The facts as soon as kubelet has told of the image."""
    params = module.params
    what = params["namespace"], params["nodes"], params["rules"], params["backend"]
    return FactsInCluster(False, when_told(lambda: gather(kubectl, *what), params["image"], params["wait"]))


def trial(kubectl: cluster_kubectl.Kubectl, module: AnsibleModule) -> Proof:
    """Try a pod on each node."""
    params, check = module.params, module.check_mode
    if check:
        return _proof(module, [], [], [], "")
    needs = DevicePluginNeeds(_image(params), params["kubelet_root"].rstrip("/"))
    nodes, findings = Trial(kubectl, needs).run(params["nodes"], params["start_timeout"])
    return _proof(module, nodes, [], findings, CANNOT)


def scheduler(kubectl: cluster_kubectl.Kubectl, module: AnsibleModule) -> Proof:
    """Wait for the scheduler's pods."""
    params, check = module.params, module.check_mode
    return _proof(module, [], [], [] if check else wait(kubectl, _awaited(params, True), params["start_timeout"]), LATE)


def everything(kubectl: cluster_kubectl.Kubectl, module: AnsibleModule) -> Proof:
    """Wait for all pods, and verify each node. told: warnings."""
    params, check = module.params, module.check_mode
    awaited = _awaited(params, False)
    late = [] if check else wait(kubectl, awaited, params["start_timeout"])
    if late or check:
        return _proof(module, [], [], late, LATE)
    apart = params["scheduler"] == "own" and not params["on_gpu_nodes"] and params["backend"] != BY_CLAIMS
    displaced = findings(kubectl, params["namespace"]) if apart else []
    nodes, unproven, found, told = verify(kubectl, _image(params), params["timeout"], params["nodes"])
    for words in (*told, *beside(kubectl, awaited)):
        module.warn(words)
    return _proof(module, nodes, unproven, [*displaced, *found], BROKEN)


def moved(kubectl: cluster_kubectl.Kubectl, module: AnsibleModule) -> ObjectsMoved:
    """Move the scheduler's pods off the GPU nodes."""
    params, check = module.params, module.check_mode
    namespace = params["namespace"]
    if check:
        found = [f"Pod {namespace}/{name}" for name in sorted(live(kubectl, namespace, params["nodes"]))]
    else:
        found = move(kubectl, namespace, params["start_timeout"])
    return ObjectsMoved(bool(found), found, diff_of(found))


def handover(kubectl: cluster_kubectl.Kubectl, module: AnsibleModule) -> ObjectsMoved:
    """Do one step of a change of the mode."""
    params, check = module.params, module.check_mode
    change = Handover(kubectl, params["namespace"], params["timeout"])
    to_pods, nodes = params["to"] == "kubernetes", params["nodes"]

    def settled() -> list:
        change.waiting(to_pods)
        return []

    steps = {
        "settled": settled,
        "marked": lambda: change.mark(nodes, check),
        "stopped": lambda: change.stop_scheduler(check),
        "opened": lambda: change.open(check),
        "pod": lambda: [title for node in nodes for title in change.to_pod(node, check)],
        "host": lambda: [title for node in nodes for title in change.to_host(node, check)],
        "pruned": lambda: change.prune(params["keep"], not to_pods, check),
    }
    found = steps[params["step"]]()
    return ObjectsMoved(bool(found), found, diff_of(found, gone=params["step"] not in ("marked", "pod", "host")))


def _image(params: dict) -> Image:
    return Image(params["image"], params["namespace"], params["runtime_class"], params["scheduler"], params["backend"])


def _awaited(params: dict, scheduler_only: bool) -> Awaited:
    default = params["scheduler"] == "default"
    return Awaited(params["namespace"], params["backend"], default, scheduler_only, tuple(params["nodes"]))


def _proof(module: AnsibleModule, nodes: list, unproven: list, findings: list, words: str) -> Proof:
    """The answer of what verifies. With a finding it has failed."""
    found = Proof(False, nodes, unproven, findings)
    if findings:
        module.fail_json(msg=words + "\n" + "\n".join(f"- {finding}" for finding in findings), **answer_of(found))
    return found


OPERATIONS = {"facts": facts, "trial": trial, "scheduler": scheduler, "moved": moved, "everything": everything, "handover": handover}


def main() -> None:
    module = AnsibleModule(
        argument_spec=dict(
            cluster_kubectl.ARGUMENTS,
            what={"type": "str", "choices": list(OPERATIONS), "required": True},
            namespace={"type": "str", "required": True},
            nodes={"type": "list", "elements": "str", "default": []},
            image={"type": "str", "default": ""},
            rules={"type": "list", "elements": "dict", "default": []},
            wait={"type": "int", "default": 0},
            runtime_class={"type": "str", "default": ""},
            on_gpu_nodes={"type": "bool", "default": False},
            kubelet_root={"type": "path", "default": "/var/lib/kubelet"},
            scheduler={"type": "str", "choices": ["own", "default"], "default": "own"},
            backend={"type": "str", "choices": list(BACKENDS), "default": BY_EXTENDER},
            start_timeout={"type": "int"},
            timeout={"type": "int"},
            step={"type": "str", "choices": ["settled", "marked", "stopped", "opened", "pod", "host", "pruned"]},
            to={"type": "str", "choices": ["systemd", "kubernetes"]},
            keep={"type": "list", "elements": "dict", "default": []},
        ),
        required_if=[
            ("what", "trial", ["nodes", "image", "start_timeout"]),
            ("what", "scheduler", ["start_timeout"]),
            ("what", "moved", ["start_timeout"]),
            ("what", "everything", ["image", "start_timeout", "timeout"]),
            ("what", "handover", ["step", "to", "timeout"]),
        ],
        supports_check_mode=True,
    )
    with answering(module):
        try:
            found = OPERATIONS[module.params["what"]](cluster_kubectl.for_module(module), module)
        except ValueError as error:
            raise cluster_kubectl.KubectlError(str(error)) from error
    module.exit_json(**answer_of(found))


if __name__ == "__main__":
    main()
