#!/usr/bin/python
# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpushare_openshift_policy
short_description: Add an extender to the scheduler of OpenShift up to 4.9
version_added: 0.1.0
description:
  - The role C(scheduler) uses this module. Its options may change in any release.
  - Merges the extender into the policy of the ConfigMap in C(openshift-config) that C(Scheduler/cluster) names. If it names none, uses
    C(scheduler-policy), and names that. Other predicates, priorities and extenders stay.
  - With O(state=absent), restores both objects as they were. If others have changed the policy since, removes the extender alone.
  - Rejects a Kubernetes after 1.22, whose scheduler reads no policy.
author: gpushare.kubernetes contributors (@gpushare)
extends_documentation_fragment:
  - gpushare.kubernetes.attributes
  - gpushare.kubernetes.attributes.changes
  - gpushare.kubernetes.kubectl
options:
  state:
    description: The required state.
    type: str
    choices: [present, absent]
    default: present
  url_prefix:
    description: URL of the extender, as kube-scheduler reaches it on its host.
    type: str
    default: http://127.0.0.1:32766/gpushare-scheduler
  weight:
    description: Weight of the extender's scores.
    type: int
    default: 1
  http_timeout:
    description: Timeout of the calls, as a Go duration.
    type: str
    default: 1s
  preemption:
    description: Whether kube-scheduler calls the extender before it evicts pods of lower priority.
    type: bool
    default: true
"""

EXAMPLES = r"""
- name: Add the extender
  gpushare.kubernetes.gpushare_openshift_policy:
    kubeconfig: ~/.kube/config
"""

RETURN = r"""
notes:
  description: Remarks for people, for example about a policy that others have changed since.
  returned: success
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster import kubectl as cluster_kubectl
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.names import RESOURCES
from ansible_collections.gpushare.kubernetes.plugins.module_utils._scheduler import openshift
from ansible_collections.gpushare.kubernetes.plugins.module_utils._scheduler.config import ExtenderEntry
from ansible_collections.gpushare.kubernetes.plugins.module_utils._scheduler.manifest import SchedulerError


def main() -> None:
    module = AnsibleModule(
        argument_spec=dict(
            cluster_kubectl.ARGUMENTS,
            state={"type": "str", "choices": ["present", "absent"], "default": "present"},
            url_prefix={"type": "str", "default": "http://127.0.0.1:32766/gpushare-scheduler"},
            weight={"type": "int", "default": 1},
            http_timeout={"type": "str", "default": "1s"},
            preemption={"type": "bool", "default": True},
        ),
        supports_check_mode=True,
    )
    params = module.params
    kubectl = cluster_kubectl.for_module(module)
    extender = ExtenderEntry(params["url_prefix"], params["weight"], params["http_timeout"], RESOURCES, "", params["preemption"])
    try:
        found = openshift.read(kubectl)
        steps, notes = (openshift.present(found, extender), []) if params["state"] == "present" else openshift.absent(found, extender)
        if not module.check_mode:
            openshift.apply(kubectl, steps)
    except (SchedulerError, cluster_kubectl.KubectlError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=bool(steps), notes=notes, diff=[step.diff() for step in steps])


if __name__ == "__main__":
    main()
