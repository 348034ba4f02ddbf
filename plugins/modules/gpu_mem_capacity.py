#!/usr/bin/python
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_mem_capacity
short_description: Compare the memory of a node's GPUs with the capacity in Kubernetes
version_added: 0.1.0
description:
  - Compares, for each node, the GPUs that nvidia-smi lists, the annotation C(gpushare/gpus) of the device plugin, and capacity and
    allocatable of C(aliyun.com/gpu-mem) and C(aliyun.com/gpu-count). Returns the differences and what to do.
  - Memory on GPUs that are unhealthy or cordoned is not allocatable; that is a warning, not an error.
  - One call on a control plane serves any number of nodes. On a GPU node without O(nodes), the module compares that node only, for
    which kubelet's own kubeconfig is enough.
author: gpushare.kubernetes contributors (@gpushare)
extends_documentation_fragment:
  - gpushare.kubernetes.attributes
  - gpushare.kubernetes.attributes.info
  - gpushare.kubernetes.kubectl
options:
  nodes:
    description:
      - Result of M(gpushare.kubernetes.nvidia_smi_info) by name of the node.
      - By default the node that the module runs on. There it runs nvidia-smi itself.
    type: dict
  unit: {description: "The required unit of memory, such as V(GiB). By default any.", type: str, default: ""}
  timeout: {description: Seconds to wait until all values are equal. With V(0) the module compares once., type: int, default: 0}
  fail_on_difference: {description: Whether a difference that is an error fails the module., type: bool, default: true}
"""

EXAMPLES = r"""
- name: List the GPUs of every GPU node
  gpushare.kubernetes.nvidia_smi_info:
  register: gpus

- name: Compare them with what Kubernetes offers
  gpushare.kubernetes.gpu_mem_capacity:
    nodes: "{{ dict(ansible_play_hosts | zip(ansible_play_hosts | map('extract', hostvars, 'gpus'))) }}"
    timeout: 30
  delegate_to: cp1
  run_once: true

- name: Compare on the node itself
  gpushare.kubernetes.gpu_mem_capacity:
    kubeconfig: /etc/kubernetes/kubelet.conf
"""

RETURN = r"""
ok: {description: "Whether nothing differs, warnings apart.", returned: always, type: bool}
nodes:
  description: The sums of each node. Null where a place has no value.
  returned: always
  type: list
  elements: dict
  contains:
    node: {description: Name of the node., type: str, sample: gpu1}
    unit: {description: The published unit., type: str, sample: GiB}
    nvml: {description: Units of all GPUs by nvidia-smi., type: int, sample: 32}
    published: {description: Units in the annotation., type: int, sample: 32}
    capacity: {description: Units in the node's capacity., type: int, sample: 32}
    allocatable: {description: Units in the node's allocatable., type: int, sample: 32}
    gpus_nvml: {description: GPUs by nvidia-smi., type: int, sample: 2}
    gpus_published: {description: GPUs in the annotation., type: int, sample: 2}
    gpus_capacity: {description: C(aliyun.com/gpu-count) in the capacity., type: int, sample: 2}
    gpus_allocatable: {description: C(aliyun.com/gpu-count) in allocatable., type: int, sample: 2}
differences:
  description: The differences.
  returned: always
  type: list
  elements: dict
  contains:
    node: {description: Name of the node., type: str, sample: gpu1}
    what: {description: Which place differs., type: str, sample: capacity aliyun.com/gpu-mem}
    severity: {description: V(error) or V(warning)., type: str}
    found: {description: The state that was found., type: str, sample: "0"}
    expected: {description: The required state., type: str, sample: "32"}
    cure: {description: The action to take., type: str}
    code: {description: A stable word for the kind of difference., type: str, sample: capacity_short}
"""

import time

from ansible.module_utils.basic import AnsibleModule

from ..module_utils._cluster import kubectl as cluster_kubectl
from ..module_utils._facts import nvidia_smi
from ..module_utils._facts.capacity import CapacityAnswer, compare
from ..module_utils._facts.node import gather
from ..module_utils._formats.answers import answer_of
from ..module_utils._formats.finding import ERROR
from ..module_utils._host.host import Host

# Above this many, one list is cheaper than one request for each name.
MANY = 20


def reports(module: AnsibleModule) -> dict:
    """Node name to the report of nvidia-smi there."""
    if module.params["nodes"] is None:
        facts = gather(Host(), ["gpus"])
        return {facts.kubelet.node_name: facts.nvidia_smi}
    found = {}
    for name, values in module.params["nodes"].items():
        try:
            found[name] = nvidia_smi.SmiReport.from_dict(values)
        except (KeyError, TypeError) as error:
            seen = f"{str(values)[:200]!r} ({type(error).__name__} {error})"
            module.fail_json(msg=f"nodes.{name} must be what nvidia_smi_info returned on that host; found {seen}")
    return found


def compared(module: AnsibleModule) -> CapacityAnswer:
    """The comparison, once the API agrees or the time is up."""
    kubectl = cluster_kubectl.for_module(module)
    wanted = reports(module)
    names = sorted(wanted) if len(wanted) <= MANY else []
    deadline = time.monotonic() + module.params["timeout"]
    while True:
        try:
            nodes = kubectl.items(["get", "nodes", *names, "--ignore-not-found"]) if wanted else []
        except cluster_kubectl.KubectlError as error:
            module.fail_json(msg=str(error))
        comparison = compare(wanted, nodes, module.params["unit"])
        if comparison.ok or time.monotonic() >= deadline:
            return comparison.answer()
        time.sleep(1)


OPERATIONS = {"": compared}


def main() -> None:
    module = AnsibleModule(
        argument_spec=dict(
            cluster_kubectl.ARGUMENTS,
            nodes={"type": "dict"},
            unit={"type": "str", "default": ""},
            timeout={"type": "int", "default": 0},
            fail_on_difference={"type": "bool", "default": True},
        ),
        supports_check_mode=True,
    )
    result = compared(module)
    if not result.ok and module.params["fail_on_difference"]:
        errors = [
            f"{different.node}: {different.what}: found {different.found}; expected {different.expected}; {different.cure}"
            for different in result.differences
            if different.severity == ERROR
        ]
        module.fail_json(msg="\n".join(errors), **answer_of(result))
    module.exit_json(**answer_of(result))


if __name__ == "__main__":
    main()
