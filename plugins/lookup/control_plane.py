# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: control_plane
short_description: Select the control plane for tasks about the cluster
version_added: 0.1.0
description:
  - Returns the control plane that tasks about the cluster are delegated to, and the kubectl and kubeconfig there. These come from that
    host's variables, not from those of the changed host.
  - Takes the first one by name that has answered in this run, or else the first one.
  - Reads C(gpushare_control_plane_group), C(gpushare_kubectl) and C(gpushare_admin_kubeconfig) of the changed host, if that host does not
    set the last two.
author: gpushare.kubernetes contributors (@gpushare)
options:
  answered:
    description: The hosts that have answered in this run. If there are none, those that have answered preflight.
    type: list
    elements: str
"""

EXAMPLES = r"""
- name: Count the nodes
  ansible.builtin.command:
    argv: ["{{ asked.kubectl }}", "--kubeconfig={{ asked.kubeconfig }}", get, nodes, --output=name]
  vars:
    asked: "{{ lookup('gpushare.kubernetes.control_plane') }}"
  delegate_to: "{{ asked.host }}"
  run_once: true
"""

RETURN = r"""
_raw:
  description: One dictionary with C(host), C(kubectl) and C(kubeconfig).
  type: list
  elements: dict
"""

from typing import Any

from ansible.errors import AnsibleLookupError
from ansible.plugins.lookup import LookupBase

from ..plugin_utils._settings.table import SHARED

_DEFAULTS = {each.variable: each.default for each in SHARED}
_GROUP, _KUBECTL, _KUBECONFIG = "gpushare_control_plane_group", "gpushare_kubectl", "gpushare_admin_kubeconfig"


class LookupModule(LookupBase):
    def run(self, terms: Any, variables: Any = None, **kwargs: Any) -> list[dict[str, str]]:
        self.set_options(var_options=variables, direct=kwargs)
        known = variables or {}

        def value(name: str) -> Any:
            return self._templar.template(known[name]) if name in known else _DEFAULTS[name]

        group = value(_GROUP)
        # Those of this run, as inventory.yml has sorted them; a run that is limited to GPU nodes asks another one all the same.
        planes = sorted(known["groups"].get("gpushare_control_planes") or known["groups"].get(group) or [])
        if not planes:
            raise AnsibleLookupError(f"no host in the group {group!r}; name the group of the control planes in {_GROUP}")
        answered = self.get_option("answered")
        if not answered:
            answered = [answer["item"] for answer in (known.get("__preflight_api") or {}).get("results") or [] if "nodes" in answer]
        host = next((plane for plane in planes if plane in answered), planes[0])
        theirs = known["hostvars"][host]
        kubectl, kubeconfig = (theirs[name] if name in theirs else value(name) for name in (_KUBECTL, _KUBECONFIG))
        return [{"host": host, "kubectl": kubectl, "kubeconfig": kubeconfig}]
