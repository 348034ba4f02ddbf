#!/usr/bin/python
# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpushare_cluster_info
short_description: Read the cluster's facts for preflight from the API server
version_added: 0.1.0
description:
  - The role C(preflight) uses this module. Its options may change in any release.
  - Returns the version of the API server, the names of the nodes, and whether this kubeconfig may make the accounts of the daemons.
author: gpushare.kubernetes contributors (@gpushare)
extends_documentation_fragment:
  - gpushare.kubernetes.attributes
  - gpushare.kubernetes.attributes.info
  - gpushare.kubernetes.kubectl
"""

EXAMPLES = r"""
- name: Ask the API server
  gpushare.kubernetes.gpushare_cluster_info:
  register: cluster
"""

RETURN = r"""
version:
  description: Version of the API server.
  returned: success
  type: str
  sample: v1.36.3
nodes:
  description: Names of the nodes.
  returned: success
  type: list
  elements: str
  sample: [cp1, gpu1]
authorities:
  description: SHA-256 of each certificate authority of the cluster, as this host has them.
  returned: success
  type: list
  elements: str
in_cluster:
  description: The DaemonSets of gpushare's device plugin, if the cluster has it as pods.
  returned: success
  type: list
  elements: str
  sample: [gpushare-system/gpushare-device-plugin]
gpu_operator:
  description: NVIDIA's GPU Operator, its ClusterPolicy and the nodes that it serves.
  returned: success
  type: dict
may_grant:
  description: Whether this kubeconfig may make roles and bind them.
  returned: success
  type: bool
"""

import json
from typing import List

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster import kubectl as cluster_kubectl
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.names import PLUGIN
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts.authority import authorities
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.host import Host
from ansible_collections.gpushare.kubernetes.plugins.module_utils._removal.cluster import ours
from ansible_collections.gpushare.kubernetes.plugins.module_utils._takeover import operator as gpu_operator

KUBELET_CONFIG = "/var/lib/kubelet/config.yaml"


def main() -> None:
    module = AnsibleModule(argument_spec=dict(cluster_kubectl.ARGUMENTS), supports_check_mode=True)
    kubectl = cluster_kubectl.for_module(module)
    try:
        version = str(json.loads(kubectl.text(["get", "--raw", "/version"])).get("gitVersion"))
        nodes = [line.partition("/")[2] for line in kubectl.text(["get", "nodes", "--output=name"]).split()]
        in_cluster = _in_cluster(kubectl)
        operator = gpu_operator.facts(kubectl)
    except (cluster_kubectl.KubectlError, ValueError, AttributeError) as error:
        module.fail_json(msg=str(error))
    known = authorities(Host(), KUBELET_CONFIG)
    asked = {"may_grant": _may_grant(kubectl), "in_cluster": in_cluster, "gpu_operator": operator}
    module.exit_json(changed=False, version=version[:80], nodes=nodes, authorities=list(known), **asked)


def _in_cluster(kubectl: cluster_kubectl.Kubectl) -> List[str]:
    """Ours alone: the original's DaemonSet may have the same name."""
    named = ["--field-selector", f"metadata.name={PLUGIN}", "--show-managed-fields"]
    found = ours(kubectl.items(["get", "daemonsets.apps", "--all-namespaces", *named]), "apps/v1", "DaemonSet")
    return [f"{one.namespace}/{one.name}" for one in found]


def _may_grant(kubectl: cluster_kubectl.Kubectl) -> bool:
    try:
        # It prints "no", and ends with 1, where the answer is no.
        return kubectl.text(["auth", "can-i", "create", "clusterrolebindings.rbac.authorization.k8s.io"]).strip() == "yes"
    except cluster_kubectl.KubectlError:
        return False


if __name__ == "__main__":
    main()
