# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpushare_judge
short_description: "Private: judge on the controller what hosts and the API server have answered"
version_added: 0.1.0
description:
  - Roles of this collection use this module. Its options may change in any release.
  - Works on the controller, by its action plugin. Changes nothing.
author: gpushare.kubernetes contributors (@gpushare)
extends_documentation_fragment:
  - gpushare.kubernetes.attributes
  - gpushare.kubernetes.attributes.info
options:
  what:
    description:
      - V(host) gathers the facts of a host with M(gpushare.kubernetes.gpushare_sharing), in one call with O(plans), and judges them and the
        host's C(gpushare_*) variables. Never fails because of the host. Each problem of the host, even an unreachable one, is a reason in
        the result.
      - V(preflight) gathers the reasons of each host, and adds those against the inventory as a whole. Prints a block for each problem
        and fails if there is one. Warnings are shown and do not fail. Reaches no host. Use it with C(run_once).
      - V(driver) gathers the facts of a host with M(gpushare.kubernetes.gpushare_driver), in one call. Chooses the packages, the
        kernel module and the headers by the data of the host's distribution, and the GPUs. Fails with all reasons if the driver cannot be
        installed as required.
      - V(verify) judges the results of M(gpushare.kubernetes.gpushare_verify_host) and M(gpushare.kubernetes.gpushare_verify_cluster).
        Fails with every finding if one of them is an error. Each finding has a stable code, and states what was found, what was expected,
        and what to do. One that another one causes refers to it. Reaches no host. Use it with C(run_once).
      - V(take_over) compares the device plugins of others, by M(gpushare.kubernetes.gpushare_api), with the facts of the GPU hosts. Returns
        a reason for each host or DaemonSet that prevents the take-over.
      - V(dead_nodes) finds the Kubernetes node of each dead host by the inventory, because a dead host cannot report its node. Fails if
        one of these nodes is Ready. A node that the API server no longer has is found by its account.
      - V(in_cluster) judges a cluster before gpushare is installed in it, by M(gpushare.kubernetes.gpushare_in_cluster) and the variables
        of the role C(in_cluster), and makes the objects. Fails with every reason against the installation.
    type: str
    choices: [host, preflight, driver, verify, take_over, dead_nodes, in_cluster]
    required: true
  gpu_node: {description: "Whether the host's GPUs are to be shared. V(host) requires it.", type: bool}
  control_plane: {description: "Whether the host's kube-scheduler is to call the extender. V(host) requires it.", type: bool}
  install_dir: {description: Folder of the runtime., type: path, default: /opt/gpushare}
  python:
    description: Name or path of the Python for the runtime. By default the distribution's own or the newest.
    type: str
    default: ""
  kubectl: {description: Name or path of kubectl., type: str, default: kubectl}
  kubeconfig: {description: "The administrator's kubeconfig.", type: path, default: /etc/kubernetes/admin.conf}
  scheduler_manifest:
    description: Manifest of kube-scheduler's static pod.
    type: path
    default: /etc/kubernetes/manifests/kube-scheduler.yaml
  target_kubernetes:
    description: Version of Kubernetes for the next upgrade. Reports the feature gates of kubelet that this version no longer takes.
    type: str
    default: ""
  take_over: {description: Whether this run moves other device plugins aside. Then an active one is a warning., type: bool, default: false}
  plans:
    description: Names of subjects that the host plans in the same call, of the lookup plugin C(subjects).
    type: list
    elements: str
    default: []
  root: {description: "Folder that stands for the host's V(/), for tests. For V(host) and V(driver).", type: path, default: /}
  hosts:
    description:
      - The hosts of the run, by their names in the inventory. For a verdict V(ansible_play_hosts_all), so that it lists lost ones as well.
        For V(dead_nodes), a name that the inventory does not have is the name of a Kubernetes node. V(preflight), V(verify), V(take_over)
        and V(dead_nodes) require it.
    type: list
    elements: str
  result: {description: "Name of the variable in which each host's result of V(host) was registered. V(preflight) requires it.", type: str}
  control_plane_group: {description: Inventory group of the control planes. V(preflight) requires it., type: str}
  gpu_group: {description: Inventory group of the GPU nodes. V(preflight) requires it., type: str}
  answers:
    description: Results of M(gpushare.kubernetes.gpushare_api) about V(facts), one for each control plane, whose name is C(item).
    type: list
    elements: dict
  accept: {description: Checks whose errors are to be warnings., type: list, elements: str, default: []}
  report:
    description: Path on the controller for all that was found, as JSON, by V(preflight) or V(verify). By default no file is written.
    type: str
    default: ""
  facts:
    description:
      - Name of the variable of each host with its facts, a result of M(gpushare.kubernetes.gpu_node_info) or of V(host). V(take_over)
        reads it.
    type: str
    default: __preflight_host
  extender_port: {description: "Port of gpushare's extender, for V(take_over).", type: int, default: 32766}
  drain:
    description: Whether pods are evicted first. Pods with GPUs of another device plugin then do not prevent V(take_over).
    type: bool
    default: false
  gpu_operator:
    description: Whether this run switches the GPU Operator's device plugin off (V(patch)), or must find it so.
    type: str
    choices: [check, patch]
    default: check
  wait:
    description: Seconds within which kubelet must have told of an image that was imported. Whether it has is judged afterwards.
    type: int
    default: 0
  changes: {description: "Whether the run changes the mode, so that services on hosts go on for now.", type: bool, default: false}
  wires:
    description: Whether the run reaches the control planes, too, and adds the extender to their kube-schedulers.
    type: bool
    default: false
  replicas: {description: "Number of the scheduler's pods.", type: int, default: 2}
  data: {description: Folder on the controller with the data of the distributions. V(driver) requires it., type: path}
  version: {description: Exact version of the driver. V(driver) requires it., type: str}
  source: {description: Source of the driver., type: str, choices: [nvidia, distribution, run_file], default: nvidia}
  module: {description: Kind of the kernel module. V(auto) suits the GPUs., type: str, choices: [auto, open, proprietary], default: auto}
  build:
    description: V(dkms), V(precompiled), or V(auto) for precompiled modules where the kernel requires signed ones.
    type: str
    choices: [auto, dkms, precompiled]
    default: auto
  run_file: {description: "Path of NVIDIA's installer on the host.", type: str, default: ""}
  change_ok: {description: Whether another version or kernel module than the installed one is accepted., type: bool, default: false}
  own_key: {description: Whether DKMS signs modules with a key that is enrolled in the firmware., type: bool, default: false}
  persistenced: {description: Whether the persistence daemon runs., type: bool, default: true}
  fabric:
    description: V(never) installs no fabric manager. V(auto) installs it on hosts with NVSwitch.
    type: str
    choices: [auto, never]
    default: auto
  repository: {description: "Address of the repository instead of the source's own.", type: str, default: ""}
  key: {description: "The repository's key as text, URL or absolute path on the host.", type: str, default: ""}
  fingerprints: {description: Fingerprints of the key., type: list, elements: str, default: []}
  module_options:
    description: Options of the driver's kernel modules, such as V(nvidia NVreg_RestrictProfilingToAdminUsers=0).
    type: list
    elements: str
    default: []
  runtime:
    description: Folder on the controller with the runtime's sources, by which the hash of its wheel is computed. V(verify) requires it.
    type: path
  seen: {description: "Name of the variable with each host's registered evidence. V(verify) requires it.", type: str}
  cluster: {description: "Name of the variable with the cluster's registered evidence. V(verify) requires it.", type: str}
  probed:
    description: Name of the variable with each host's second evidence, from during the probe. By default there is none.
    type: str
    default: ""
  probes:
    description: Result of M(gpushare.kubernetes.gpushare_verify_cluster) with C(what=place). By default there was no probe.
    type: dict
    default: {}
  unproven: {description: RV(unproven) of an earlier call., type: dict, default: {}}
  probe: {description: Whether to place probe pods. Only with O(final=false)., type: bool, default: false}
  required:
    description: Whether the user demands probe pods. A node on which none can run is an error then.
    type: bool
    default: false
  namespace: {description: The namespace of the probe pods. One that cannot be is rejected., type: str, default: default}
  image: {description: The image of the probe pods. By default one that each node has for its pod sandboxes., type: str, default: ""}
  final: {description: "With V(false), V(verify) never fails, and returns the probe pods to place.", type: bool, default: true}
"""

EXAMPLES = r"""
- name: Look at a GPU node
  gpushare.kubernetes.gpushare_judge:
    what: host
    gpu_node: true
    control_plane: false
  register: found
"""

RETURN = r"""
host: {description: "The host's name in the inventory.", returned: with O(what=host), type: str}
node_name: {description: "Name of its Kubernetes node, null for an unreachable host.", returned: with O(what=host), type: str}
facts:
  description: Result of M(gpushare.kubernetes.gpu_node_info), empty for an unreachable host.
  returned: with O(what=host)
  type: dict
answers: {description: "The result of each of O(plans), by its name.", returned: with O(what=host), type: dict}
asked: {description: "The options of each of O(plans), by its name.", returned: with O(what=host), type: dict}
reasons:
  description:
    - The reasons against changing the host, or any of them, errors first. An empty host means the inventory. V(preflight) that fails has
      them on the screen, and in O(report) for programs.
  returned: with O(what=host), and with O(what=preflight) and O(what=in_cluster) without an error
  type: list
  elements: dict
  contains:
    host: {description: The host's name in the inventory., type: str}
    check: {description: A word for the kind of reason., type: str, sample: gpus}
    severity: {description: V(error) or V(warning)., type: str}
    found: {description: The state that was found., type: str}
    expected: {description: The required state., type: str}
    cure: {description: The action to take., type: str}
v: {description: Version of the form of the reasons., returned: with O(what=preflight) without an error, type: int, sample: 1}
ok: {description: Whether there is no error so far., returned: with O(what=preflight) and with O(final=false), type: bool}
plan: {description: The plan of the driver., returned: with O(what=driver), type: dict}
info: {description: Result of M(gpushare.kubernetes.gpushare_driver)., returned: with O(what=driver), type: dict}
due: {description: "Whether the kernel module must change, so that no process may use the GPUs.", returned: with O(what=driver), type: bool}
pending:
  description: Why the host must reboot before the planned driver runs. Empty if it need not.
  returned: with O(what=driver)
  type: str
report:
  description: The verdict. With an error it is on the screen, and in O(report) for programs.
  returned: with O(what=verify) and O(final=true), without an error
  type: dict
  contains:
    v: {description: Version of this form., type: int, sample: 1}
    ok: {description: Whether no finding is an error., type: bool}
    looked_at: {description: Numbers of verified items., type: dict}
    findings:
      description: Errors first, causes before what follows from them. As RV(reasons), and C(because) has the code of their cause.
      type: list
      elements: dict
images: {description: Node to the image of the probe pod that is to be placed on it., returned: with O(final=false), type: dict}
unproven: {description: "Node to why no probe pod can be placed on it: C(reason), C(found).", returned: with O(final=false), type: dict}
left_behind: {description: Probe pods that a killed run has left behind., returned: with O(final=false), type: list, elements: str}
scheduler_name: {description: The scheduler that probe pods are for., returned: with O(final=false), type: str}
objects: {description: "The objects to apply, those that others need first.", returned: with O(what=in_cluster), type: list, elements: dict}
labels: {description: The nodes to label., returned: with O(what=in_cluster), type: list, elements: dict}
nodes: {description: Names of the GPU nodes., returned: with O(what=in_cluster), type: list, elements: str}
runtime_class: {description: "RuntimeClass of the pods, by the variable or by the preset.", returned: with O(what=in_cluster), type: str}
kubelet_root: {description: "Root folder of the nodes' kubelets, by the same.", returned: with O(what=in_cluster), type: str}
on_hosts:
  description: In a change of the mode, names of the nodes that services serve for now.
  returned: with O(what=in_cluster)
  type: list
  elements: str
plugins:
  description: As M(gpushare.kubernetes.gpushare_api) returns them, with C(active), C(writers) and C(node_ports).
  returned: with O(what=take_over)
  type: list
  elements: dict
rejections: {description: The reasons that prevent the take-over., returned: with O(what=take_over), type: list, elements: str}
moves: {description: Host to the DaemonSets that leave it., returned: with O(what=take_over), type: dict}
dead: {description: "Names of the dead hosts' nodes.", returned: with O(what=dead_nodes), type: list, elements: str}
pods:
  description: The pods of these nodes with a share of a GPU, as M(gpushare.kubernetes.gpushare_api) returns them.
  returned: with O(what=dead_nodes)
  type: list
  elements: dict
"""
