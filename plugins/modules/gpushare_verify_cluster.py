#!/usr/bin/python
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpushare_verify_cluster
short_description: "Private: gather everything of gpushare in the API, and place probe pods"
version_added: 0.1.0
description:
  - The role C(verify) uses this module. Its options may change in any release.
  - Returns evidence only. M(gpushare.kubernetes.gpushare_judge) judges it, together with that of the hosts.
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
    support: partial
    details: With O(what=place) each call creates the pods again.
options:
  what:
    description:
      - V(evidence) gathers the nodes, the pods that request or have GPUs, and the running schedulers, in one call on a control plane.
        Compares gpushare's own objects with those that its roles apply, by the server's dry run. Changes nothing.
      - V(place) creates a pod per node that requests one unit and may only run there, with any taints. Waits until the pod runs or is
        rejected. Its image is on the node already and needs no command. The pods stay for inspection until V(remove).
      - V(remove) removes the probe pods of all namespaces, as V(place) does first with those of an interrupted run.
    type: str
    choices: [evidence, place, remove]
    required: true
  nodes: {description: "Names of the nodes whose GPUs are shared, for V(evidence).", type: list, elements: str}
  schedulers: {description: Names of the nodes whose kube-scheduler calls the extender., type: list, elements: str, default: []}
  objects: {description: Complete objects as the roles apply them., type: list, elements: dict, default: []}
  settle:
    description:
      - Seconds to wait until kubelet has reported the device plugin's resources, which it does every ten seconds. Use it right after the
        start of a device plugin. With V(0) the module reads once.
    type: int
    default: 0
  images: {description: Name of each node to the image of its probe pod., type: dict, default: {}}
  namespace:
    description:
      - The namespace of the probe pods. A pod that the API server does not take there is created in C(kube-system).
    type: str
    default: kube-system
  scheduler_name: {description: The scheduler that is to place the probe pods., type: str, default: default-scheduler}
  timeout: {description: "Seconds within which the probe pods must run, or be gone.", type: int, default: 60}
"""

EXAMPLES = r"""
- name: Look at the cluster
  gpushare.kubernetes.gpushare_verify_cluster:
    what: evidence
    nodes: [gpu1, gpu2]
    schedulers: [cp1]
  register: cluster
  delegate_to: cp1
  run_once: true
"""

RETURN = r"""
seen: {description: "The evidence, for M(gpushare.kubernetes.gpushare_judge).", returned: with O(what=evidence), type: dict}
pods:
  description: Final state of the probe pod by node, for M(gpushare.kubernetes.gpushare_judge). Null for a missing pod.
  returned: with O(what=place), not in check mode
  type: dict
moved:
  description:
    - The probe pod by node that others have given to another scheduler in O(namespace), or hold back. RV(pods) has another one for it.
  returned: with O(what=place), not in check mode
  type: dict
rejected:
  description: The API server's words about probe pods that it did not take in O(namespace). Empty if it took all.
  returned: with O(what=place), not in check mode
  type: str
removed:
  description: Names of the probe pods that were removed (in check mode, none).
  returned: with O(what=place) and O(what=remove)
  type: list
  elements: str
"""

import time
from dataclasses import replace

from ansible.module_utils.basic import AnsibleModule

from ..module_utils._cluster import dra
from ..module_utils._cluster import kubectl as cluster_kubectl
from ..module_utils._cluster.names import MEMORY
from ..module_utils._evidence import admission, cluster
from ..module_utils._evidence.probes import Probes, ProbesPlaced, ProbesRemoved, probe_pod
from ..module_utils._formats.answers import answer_of


def evidence(kubectl: cluster_kubectl.Kubectl, params: dict, _check: bool) -> cluster.SeenCluster:
    """Gather what the API has."""
    deadline = time.monotonic() + params["settle"]
    nodes = cluster.nodes(kubectl, params["nodes"])
    while not all(map(cluster.settled, nodes)) and time.monotonic() < deadline:
        time.sleep(1)
        nodes = cluster.nodes(kubectl, params["nodes"])
    seen = cluster.ClusterEvidence(
        nodes=nodes,
        labelled=cluster.labelled(kubectl),
        schedulers=cluster.schedulers(kubectl, params["schedulers"]),
        leases=cluster.leases(kubectl) if params["schedulers"] else {},
        objects=cluster.objects(kubectl, params["objects"]),
        admission=admission.admission(kubectl, params["objects"], params["nodes"]),
        dra=dra.published(kubectl),
        # Last: kubelet tells the API a second or two late of a container that ended right before the hosts were read.
        pods=cluster.pods(kubectl),
        passed_by=[],
    )
    return cluster.SeenCluster(False, replace(seen, passed_by=cluster.passed_by(kubectl, seen.pods)))


def place(kubectl: cluster_kubectl.Kubectl, params: dict, check: bool) -> ProbesPlaced:
    """Create the probe pods, and wait."""
    images = params["images"]
    found = ProbesPlaced(**vars(remove(kubectl, params, check)))
    if images and not check:
        scheduler, namespace = params["scheduler_name"], params["namespace"]
        wanted = {node: probe_pod(node, str(image), MEMORY, scheduler, namespace) for node, image in sorted(images.items())}
        placed = Probes(kubectl).place(wanted, params["timeout"])
        found = replace(found, **vars(placed))
    return replace(found, changed=bool(images) or found.changed)


def remove(kubectl: cluster_kubectl.Kubectl, params: dict, check: bool) -> ProbesRemoved:
    """Remove all probe pods."""
    removed = [] if check else Probes(kubectl).remove(params["timeout"])
    return ProbesRemoved(bool(removed), removed)


OPERATIONS = {"evidence": evidence, "place": place, "remove": remove}


def main() -> None:
    module = AnsibleModule(
        argument_spec=dict(
            cluster_kubectl.ARGUMENTS,
            what={"type": "str", "choices": list(OPERATIONS), "required": True},
            nodes={"type": "list", "elements": "str"},
            schedulers={"type": "list", "elements": "str", "default": []},
            objects={"type": "list", "elements": "dict", "default": []},
            settle={"type": "int", "default": 0},
            images={"type": "dict", "default": {}},
            namespace={"type": "str", "default": "kube-system"},
            scheduler_name={"type": "str", "default": "default-scheduler"},
            timeout={"type": "int", "default": 60},
        ),
        required_if=[("what", "evidence", ["nodes"])],
        supports_check_mode=True,
    )
    try:
        found = OPERATIONS[module.params["what"]](cluster_kubectl.for_module(module), module.params, module.check_mode)
    except cluster_kubectl.KubectlError as error:
        module.fail_json(msg=str(error))
    module.exit_json(**answer_of(found))


if __name__ == "__main__":
    main()
