#!/usr/bin/python
# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpushare_preflight
short_description: Find every reason why a host must not be changed
version_added: 0.1.0
description:
  - The role C(preflight) uses this module. Its options may change in any release.
  - Gathers the facts of a host with M(gpushare.kubernetes.gpu_node_info), in one call, and judges them and the host's C(gpushare_*)
    variables on the controller.
  - Never fails because of the host. Each problem of the host, even an unreachable one, is a reason in the result.
    M(gpushare.kubernetes.gpushare_preflight_verdict) gathers the reasons of all hosts.
author: gpushare.kubernetes contributors (@gpushare)
extends_documentation_fragment:
  - gpushare.kubernetes.attributes
  - gpushare.kubernetes.attributes.info
options:
  gpu_node:
    description: Whether the host's GPUs are to be shared.
    type: bool
    required: true
  control_plane:
    description: Whether the host's kube-scheduler is to call the extender.
    type: bool
    required: true
  node_name:
    description:
      - Name that the node must have. By default the host's name in the inventory or its C(ansible_host), with or without domain.
      - A host that reports another name is rejected.
    type: str
    default: ""
  install_dir:
    description: Folder of the runtime.
    type: path
    default: /opt/gpushare
  python:
    description: Name or path of the Python for the runtime. By default the distribution's own or the newest.
    type: str
    default: ""
  kubectl:
    description: Name or path of kubectl.
    type: str
    default: kubectl
  kubeconfig:
    description: The administrator's kubeconfig.
    type: path
    default: /etc/kubernetes/admin.conf
  scheduler_manifest:
    description: Manifest of kube-scheduler's static pod.
    type: path
    default: /etc/kubernetes/manifests/kube-scheduler.yaml
  target_kubernetes:
    description: Version of Kubernetes for the next upgrade. Reports the feature gates of kubelet that this version no longer takes.
    type: str
    default: ""
  take_over:
    description: Whether this run moves other device plugins aside. Then an active one is a warning.
    type: bool
    default: false
  root:
    description: Folder that stands for the host's V(/), for tests.
    type: path
    default: /
"""

EXAMPLES = r"""
- name: Look at a GPU node
  gpushare.kubernetes.gpushare_preflight:
    gpu_node: true
    control_plane: false
  register: found
"""

RETURN = r"""
host:
  description: The host's name in the inventory.
  returned: always
  type: str
node_name:
  description: Name of its Kubernetes node, null for an unreachable host.
  returned: always
  type: str
reasons:
  description: The reasons against changing the host.
  returned: always
  type: list
  elements: dict
  contains:
    host: {description: The host's name in the inventory., type: str}
    check: {description: A word for the kind of reason., type: str, sample: GPUs}
    severity: {description: V(error) or V(warning)., type: str}
    found: {description: The state that was found., type: str}
    expected: {description: The required state., type: str}
    cure: {description: The action to take., type: str}
facts:
  description: Result of M(gpushare.kubernetes.gpu_node_info), empty for an unreachable host.
  returned: always
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "gpu_node": {"type": "bool", "required": True},
            "control_plane": {"type": "bool", "required": True},
            "node_name": {"type": "str", "default": ""},
            "install_dir": {"type": "path", "default": "/opt/gpushare"},
            "python": {"type": "str", "default": ""},
            "kubectl": {"type": "str", "default": "kubectl"},
            "kubeconfig": {"type": "path", "default": "/etc/kubernetes/admin.conf"},
            "scheduler_manifest": {"type": "path", "default": "/etc/kubernetes/manifests/kube-scheduler.yaml"},
            "target_kubernetes": {"type": "str", "default": ""},
            "take_over": {"type": "bool", "default": False},
            "root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    module.fail_json(msg="gpushare_preflight works on the controller; call it by its full name gpushare.kubernetes.gpushare_preflight")


if __name__ == "__main__":
    main()
