# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: cluster_objects
short_description: Return the objects in the cluster that gpushare's daemons on the hosts need
version_added: 0.1.0
description:
  - The role C(cluster_objects) uses this lookup. Its options may change in any release.
author: gpushare.kubernetes contributors (@gpushare)
options:
  _terms:
    description: Roles whose objects are returned, of C(admission), C(extender), C(device_plugin) and C(dashboard). Also C(closed), the
      policy that rejects pods with GPUs while the mode changes.
    type: list
    elements: str
    required: true
  writers:
    description: More users that may write gpushare's annotations.
    type: list
    elements: str
    default: []
  token_seconds:
    description: Validity of the daemons' tokens in seconds.
    type: int
    default: 604800
  lease:
    description: Namespace and name of kube-scheduler's Lease, or V(none).
    type: str
    default: kube-system/kube-scheduler
  evict:
    description: Whether the extender evicts pods that use more memory than their units.
    type: bool
    default: false
  nodes:
    description: Names of the nodes with a device plugin.
    type: list
    elements: str
    default: []
  prometheus:
    description: URL of Prometheus for C(kubectl gpushare top), empty for none.
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Print the policies
  ansible.builtin.debug:
    msg: "{{ query('gpushare.kubernetes.cluster_objects', 'admission') }}"
"""

RETURN = r"""
_raw:
  description: Kubernetes objects, those that others need first.
  type: list
  elements: dict
"""

from typing import Any

from ansible.errors import AnsibleLookupError
from ansible.plugins.lookup import LookupBase

from ..plugin_utils._manifests.on_hosts import OnHosts, objects


class LookupModule(LookupBase):
    def run(self, terms: Any, variables: Any = None, **kwargs: Any) -> list[dict[str, Any]]:
        self.set_options(var_options=variables, direct=kwargs)
        names = ("writers", "token_seconds", "lease", "evict", "nodes", "prometheus")
        values = OnHosts(**{name: self.get_option(name) for name in names})
        try:
            return [wanted for role in terms for wanted in objects(str(role), values)]
        except ValueError as error:
            raise AnsibleLookupError(str(error)) from error
