#!/usr/bin/python
# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: kube_scheduler_extender
short_description: Point a kubeadm kube-scheduler at the gpushare extender
version_added: 0.1.0
description:
  - Merges the extender into the KubeSchedulerConfiguration that the static pod's manifest names, or into a new one, and C(--config)
    with its volume into the manifest. Everything else in both files stays, comments included.
  - Before anything is written, the kube-scheduler of the manifest's own image reads the candidate (on hosts with containerd).
  - The manifest is edited as a copy outside the manifests folder and renamed in. kubelet restarts the scheduler, also when only the
    configuration changes, because the manifest carries its hash.
  - Ends when the new scheduler runs, holds its lease (or stands by for another one that does) and has called the extender. Otherwise
    both files are put back and the scheduler's own log is the error message. A run that was killed on the way is proven by the next.
author: gpushare.kubernetes contributors (@gpushare)
extends_documentation_fragment:
  - gpushare.kubernetes.attributes
  - gpushare.kubernetes.attributes.changes
  - gpushare.kubernetes.kubectl
options:
  node_name:
    description: Name of the Kubernetes node that this host is.
    type: str
    required: true
  manifest:
    description: The static pod's manifest.
    type: path
    default: /etc/kubernetes/manifests/kube-scheduler.yaml
  config:
    description: The configuration file to make if the manifest names none.
    type: path
    default: /etc/kubernetes/gpushare/kube-scheduler.yaml
  url_prefix:
    description: Where kube-scheduler calls the extender.
    type: str
    default: http://127.0.0.1:32766/gpushare-scheduler
  health_url:
    description: The extender's health report, which says whether it is in sync and counts the calls of filter.
    type: str
    default: http://127.0.0.1:32766/healthz
  weight:
    description: Weight of the extender's scores among those of the scheduler's own plugins.
    type: int
    default: 1
  http_timeout:
    description: How long the scheduler waits for the extender, as Go writes durations.
    type: str
    default: 1s
  managed_resources:
    description: The extended resources for which kube-scheduler calls the extender. The first is the one that the probe names.
    type: list
    elements: str
    default: [aliyun.com/gpu-mem, aliyun.com/gpu-count]
  timeout:
    description: How many seconds the changed scheduler has for its proof, and the former one to come back.
    type: int
    default: 180
  plan:
    description: What to read, or to write and to prove. Filled in by this module's action plugin on the controller, not by users.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Point kube-scheduler at the extender
  gpushare.kubernetes.kube_scheduler_extender:
    node_name: "{{ node.node_name }}"
"""

RETURN = r"""
candidate:
  description: What the candidate check said, or why it was not possible.
  returned: when changed outside check mode
  type: str
holder:
  description: Identity of the scheduler that holds the lease after the change, empty without leader election.
  returned: when changed outside check mode
  type: str
standby:
  description:
    - Whether another host's scheduler holds the lease. Then this one runs with the new configuration, but its call of the extender
      cannot be shown before it becomes active.
  returned: when changed outside check mode
  type: bool
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpushare.kubernetes.plugins.module_utils import _candidate, _kube_scheduler, _kubectl
from ansible_collections.gpushare.kubernetes.plugins.module_utils._files import digest, read_state
from ansible_collections.gpushare.kubernetes.plugins.module_utils._health import fetch_json, unhealthy
from ansible_collections.gpushare.kubernetes.plugins.module_utils._scheduler_service import Expected, Host, SchedulerService
from ansible_collections.gpushare.kubernetes.plugins.module_utils._transaction import Transaction, TransactionError


def text(path: str):
    """A file's text, None if there is none."""
    state = read_state(path)
    return None if state is None else state.content.decode()


def read(module: AnsibleModule, scheduler: SchedulerService) -> None:
    """Answer the action plugin: the files that the plan needs, and whether the running scheduler is another one than they say."""
    params = module.params
    manifest = text(params["manifest"])
    if manifest is None:
        module.fail_json(
            msg=f"{params['manifest']} does not exist: this host has no kube-scheduler as a static pod; take it out of the group "
            "of control planes, or set gpushare_scheduler_manifest"
        )
    paths = {params["config"], *_kube_scheduler.config_paths(manifest), *params["plan"]["read"]}
    files = {params["manifest"]: manifest, **{path: text(path) for path in sorted(paths)}}
    module.exit_json(changed=False, files=files, due=scheduler.is_due(), settings=dict(params, plan=None))


def check_candidate(module: AnsibleModule, plan) -> str:
    """Have the manifest's own kube-scheduler read the candidate; fails the module if it refuses."""
    ctr = module.get_bin_path("ctr")
    if ctr is None:
        return "not checked: this host has no ctr (containerd)"
    path = os.path.join(module.tmpdir, "gpushare-candidate.yaml")
    with open(path, "w", encoding="utf-8") as stream:
        stream.write(plan["files"][0]["content"])
    mounts = [(path, _kube_scheduler.CANDIDATE_PATH), *((source, target) for source, target in plan["mounts"] if os.path.exists(source))]
    try:
        return _candidate.check(module.run_command, ctr, plan["image"], mounts, plan["command"]) or f"accepted by {plan['image']}"
    except _candidate.CandidateError as error:
        module.fail_json(msg=f"kube-scheduler refuses the configuration, so nothing was written. It says:\n{error}")
    finally:
        os.unlink(path)


def plan_files(module: AnsibleModule, plan) -> Transaction:
    """The transaction; fails the module unless the extender is in sync and the files are those that the plan was made from."""
    reason = unhealthy(*fetch_json(module.params["health_url"]), "synced")
    if reason is not None:
        module.fail_json(msg=f"the extender must be in sync before a scheduler is pointed at it, so nothing was changed: {reason}")
    transaction = Transaction("scheduler")
    for one in plan["files"]:
        state = read_state(one["path"])
        if digest(None if state is None else state.content) != one["sha256_before"]:
            module.fail_json(msg=f"{one['path']} has been changed by somebody else just now, so nothing was changed: run again")
        transaction.write(one["path"], one["content"].encode())
    return transaction


def main() -> None:
    module = AnsibleModule(
        argument_spec=dict(
            _kubectl.ARGUMENTS,
            node_name={"type": "str", "required": True},
            manifest={"type": "path", "default": "/etc/kubernetes/manifests/kube-scheduler.yaml"},
            config={"type": "path", "default": "/etc/kubernetes/gpushare/kube-scheduler.yaml"},
            url_prefix={"type": "str", "default": "http://127.0.0.1:32766/gpushare-scheduler"},
            health_url={"type": "str", "default": "http://127.0.0.1:32766/healthz"},
            weight={"type": "int", "default": 1},
            http_timeout={"type": "str", "default": "1s"},
            managed_resources={"type": "list", "elements": "str", "default": ["aliyun.com/gpu-mem", "aliyun.com/gpu-count"]},
            timeout={"type": "int", "default": 180},
            plan={"type": "dict", "required": True},
        ),
        supports_check_mode=True,
    )
    os.umask(0o022)
    params, plan = module.params, module.params["plan"]
    host = Host(os.uname().nodename, params["node_name"], params["manifest"], params["health_url"], params["timeout"])
    kubectl = _kubectl.for_module(module)
    try:
        if "files" not in plan:
            read(module, SchedulerService(host, kubectl))
        transaction = plan_files(module, plan)
        candidate = check_candidate(module, plan)
        expected = Expected(plan["lease"], plan["scheduler_name"], plan["image"], params["managed_resources"][0])
        scheduler = SchedulerService(host, kubectl, expected)
        scheduler.begin()
        transaction.apply(scheduler)
        scheduler.end()
    except TransactionError as error:
        if error.restored:
            scheduler.end()
        module.fail_json(msg=str(error))
    except (_kubectl.KubectlError, OSError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=True, candidate=candidate, **scheduler.proof)


if __name__ == "__main__":
    main()
