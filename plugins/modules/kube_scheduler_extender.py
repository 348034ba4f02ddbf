#!/usr/bin/python
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: kube_scheduler_extender
short_description: "Private: add the gpushare extender to a kubeadm kube-scheduler of any release"
version_added: 0.1.0
description:
  - The role C(scheduler) uses this module. Its options may change in any release.
  - Merges the extender into the KubeSchedulerConfiguration that the static pod's manifest names, in any apiVersion that this scheduler
    reads. Up to Kubernetes 1.22 also into the Policy that it names, a file or a ConfigMap, whose predicates and priorities stay.
  - Where the manifest names nothing, creates a Policy up to Kubernetes 1.18, and a KubeSchedulerConfiguration from 1.19 on. Adds the
    flag with its volumes to the manifest. Everything else in both files stays, including comments.
  - Keeps the scheduler's part of kubeadm's ClusterConfiguration in step, so that C(kubeadm upgrade apply) writes the same C(--config)
    and volumes.
  - Before anything is written, the kube-scheduler of the manifest's own image reads the candidate (on hosts with containerd).
  - The manifest is edited as a copy outside the manifests folder and renamed in. kubelet restarts the scheduler, also when only the
    configuration changes, because the manifest carries its hash.
  - Ends when the new scheduler runs, holds its Lease (or stands by) and has called the extender. Otherwise both files are restored and
    the scheduler's own log is the error message. After an interruption, the next run verifies or restores.
author: gpushare.kubernetes contributors (@gpushare)
extends_documentation_fragment:
  - gpushare.kubernetes.attributes
  - gpushare.kubernetes.attributes.changes
  - gpushare.kubernetes.kubectl
options:
  what:
    description:
      - V(extender) adds the extender, or removes it.
      - V(read_files) reads the files of a control plane that has joined, for one that is to join. kubeadm writes the same C(--config) and
        volumes into kube-scheduler's manifest on every control plane, and copies no file along. Without the file, the kube-scheduler of a
        joined control plane does not start.
      - V(write_files) writes those of O(files) that this host does not have, before it joins.
    type: str
    choices: [extender, read_files, write_files]
    default: extender
  files: {description: Path to text of the files. V(write_files) requires it., type: dict}
  state:
    description:
      - With V(absent), unchanged files get their old bytes back. From files that others have changed since, the module removes exactly
        its own part. A configuration that the module created and others have changed stays in use, without that part.
    type: str
    choices: [present, absent]
    default: present
  node_name: {description: Name of the Kubernetes node that this host is. V(extender) requires it., type: str}
  manifest: {description: "The static pod's manifest.", type: path, default: /etc/kubernetes/manifests/kube-scheduler.yaml}
  config:
    description: The configuration file to make if the manifest names none. A policy file is made in the same folder.
    type: path
    default: /etc/kubernetes/gpushare/kube-scheduler.yaml
  url_prefix: {description: Where kube-scheduler calls the extender., type: str, default: http://127.0.0.1:32766/gpushare-scheduler}
  health_url:
    description:
      - The extender's health report, which has its sync state and the number of calls of filter.
      - Empty for an extender that has none. Then the module does not check that the scheduler calls it.
    type: str
    default: http://127.0.0.1:32766/healthz
  health_ca: {description: "The certificate authority of the health report, for an O(health_url) with https.", type: path}
  tls_dir:
    description:
      - Folder with C(ca.crt), C(tls.crt) and C(tls.key), with which kube-scheduler and the extender authenticate each other. It is
        mounted into the scheduler's container. Empty for plain http.
    type: path
    default: ""
  percentage_of_nodes_to_score:
    description:
      - Percentage of the nodes that kube-scheduler searches before it chooses among the feasible ones.
      - With V(-1), 100 for clusters of up to 500 nodes, otherwise 0, which is Kubernetes' own sampling. Then an administrator's value in
        the configuration stays.
    type: int
    default: -1
  weight: {description: "Weight of the extender's scores among those of the scheduler's own plugins.", type: int, default: 10}
  http_timeout: {description: "How long the scheduler waits for the extender, as Go writes durations.", type: str, default: 1s}
  managed_resources:
    description:
      - The extended resources for which kube-scheduler calls the extender. The first is the one that the probe names.
      - No node has the resource C(aliyun.com/gpu-core.percentage), so the configuration leaves it to the extender.
    type: list
    elements: str
    default: [aliyun.com/gpu-mem, aliyun.com/gpu-count, aliyun.com/gpu-core.percentage]
  lease:
    description:
      - Namespace and name of the Lease that identifies the active scheduler, C(none) for a scheduler without leader election. A scheduler
        with another Lease is rejected. By default any is accepted.
    type: str
    default: ""
  control_planes:
    description: Number of control planes. With several, a scheduler without leader election is rejected.
    type: int
    default: 1
  preemption:
    description: Whether kube-scheduler calls the extender before it evicts pods for a pod of higher priority.
    type: bool
    default: true
  timeout:
    description: Timeout in seconds for the verification of the changed scheduler, and for the return of the former one.
    type: int
    default: 180
  plan:
    description: The files to read, or to write and to verify. This module's action plugin on the controller sets it, not users.
    type: dict
"""

EXAMPLES = r"""
- name: Point kube-scheduler at the extender
  gpushare.kubernetes.kube_scheduler_extender:
    node_name: "{{ node.node_name }}"
"""

RETURN = r"""
notes:
  description: Remarks for people, for example about a file that others have changed since.
  returned: with O(what=extender)
  type: list
  elements: str
candidate: {description: "Result of the candidate check, or why it was not possible.", returned: when changed, type: str}
holder:
  description: Identity of the scheduler that holds the lease after the change, empty without leader election.
  returned: when the scheduler was changed
  type: str
standby:
  description:
    - Whether another host's scheduler holds the lease. Then this one runs with the new configuration, but its call of the extender
      cannot be shown before it becomes active.
  returned: when the scheduler was changed
  type: bool
files: {description: Path to text of the files of this control plane., returned: with O(what=read_files), type: dict}
kept:
  description: Paths of files that this host has already, with other content, and that stay.
  returned: with O(what=write_files)
  type: list
  elements: str
"""

import os
from dataclasses import fields

from ansible.module_utils.basic import AnsibleModule

from ..module_utils._change.transaction import Transaction
from ..module_utils._cluster import kubectl as cluster_kubectl
from ..module_utils._formats.answers import answer_of
from ..module_utils._host import host as host_host
from ..module_utils._host.answering import changing
from ..module_utils._scheduler import apply, before_join
from ..module_utils._scheduler.service import SchedulerHost

OPTIONS = {
    "what": {"type": "str", "choices": ["extender", "read_files", "write_files"], "default": "extender"},
    "files": {"type": "dict"},
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "node_name": {"type": "str"},
    "manifest": {"type": "path", "default": "/etc/kubernetes/manifests/kube-scheduler.yaml"},
    "config": {"type": "path", "default": "/etc/kubernetes/gpushare/kube-scheduler.yaml"},
    "url_prefix": {"type": "str", "default": "http://127.0.0.1:32766/gpushare-scheduler"},
    "health_url": {"type": "str", "default": "http://127.0.0.1:32766/healthz"},
    "health_ca": {"type": "path"},
    "tls_dir": {"type": "path", "default": ""},
    "percentage_of_nodes_to_score": {"type": "int", "default": -1},
    "weight": {"type": "int", "default": 10},
    "http_timeout": {"type": "str", "default": "1s"},
    "managed_resources": {
        "type": "list",
        "elements": "str",
        "default": ["aliyun.com/gpu-mem", "aliyun.com/gpu-count", "aliyun.com/gpu-core.percentage"],
    },
    "preemption": {"type": "bool", "default": True},
    "lease": {"type": "str", "default": ""},
    "control_planes": {"type": "int", "default": 1},
    "timeout": {"type": "int", "default": 180},
    "plan": {"type": "dict"},
}


def look(module: AnsibleModule) -> apply.SchedulerFound:
    """Read what a plan is made from."""
    params = module.params
    host, tools = _tools(module)
    found = apply.read(host, tools.kubectl, params["config"], params["tls_dir"], params["plan"]["read"])
    if params["state"] == "present" and found.files[params["manifest"]] is None:
        module.fail_json(
            msg=f"{params['manifest']} does not exist: this host has no kube-scheduler as a static pod; take it out of the "
            "group of control planes, or set gpushare_scheduler_manifest"
        )
    settings = apply.SchedulerSettings(**{option.name: params[option.name] for option in fields(apply.SchedulerSettings)})
    return apply.SchedulerFound(**vars(found), settings=settings)


def extender(module: AnsibleModule) -> apply.SchedulerDone:
    """Carry a plan out, or try it."""
    params, plan = module.params, module.params["plan"]
    host, tools = _tools(module)
    if plan.get("trial"):
        return apply.SchedulerDone(False, apply.trial(tools, plan))
    result = apply.apply(host, tools, plan, params["managed_resources"][0], params["tls_dir"], params["state"])
    for warning in result.pop("warnings"):
        module.warn(warning)
    return apply.SchedulerDone(True, **result)


def _tools(module: AnsibleModule) -> tuple:
    """(the host, the means that act on it)."""
    params = module.params
    where = (params["manifest"], params["health_url"], params["timeout"], params["health_ca"])
    host, kubectl = SchedulerHost(os.uname().nodename, params["node_name"], *where), cluster_kubectl.for_module(module)
    return host, apply.Tools(kubectl, module.run_command, host_host.Host().program("ctr"), module.tmpdir)


def read_files(module: AnsibleModule) -> before_join.SchedulerRead:
    """The files of a control plane that has joined."""
    return before_join.SchedulerRead(False, before_join.read(module.params["manifest"]))


def write_files(module: AnsibleModule) -> before_join.SchedulerWritten:
    """Write those that this host lacks."""
    transaction = Transaction(apply.OWNER)
    kept = before_join.plan(transaction, module.params["files"])
    changed, diff = bool(transaction.changes), transaction.diff()
    if changed and not module.check_mode:
        transaction.apply()
    return before_join.SchedulerWritten(changed, list(kept), diff)


OPERATIONS = {"extender": extender, "read_files": read_files, "write_files": write_files}


def main() -> None:
    module = AnsibleModule(
        argument_spec=dict(cluster_kubectl.ARGUMENTS, **OPTIONS),
        required_if=[("what", "extender", ["node_name"]), ("what", "write_files", ["files"])],
        supports_check_mode=True,
    )
    what = module.params["what"]
    if what == "extender" and module.params["plan"] is None:
        module.fail_json(msg="kube_scheduler_extender was run without its action plugin; call it by its full name gpushare.kubernetes.…")
    with changing(module):
        plans = what == "extender" and "files" not in module.params["plan"]
        result = look(module) if plans else OPERATIONS[what](module)
    module.exit_json(**answer_of(result))


if __name__ == "__main__":
    main()
