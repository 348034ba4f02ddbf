# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: batches
short_description: Return how a play divides the GPU nodes into batches
version_added: 0.1.0
description:
  - The playbooks of this collection use this lookup. Its options may change in any release.
  - Keywords of a play see no variables of hosts. So this takes the variable of the first host of the group, or the variable's default.
    Preflight rejects an inventory whose hosts do not agree on it.
author: gpushare.kubernetes contributors (@gpushare)
options:
  _terms:
    description: The keyword, C(serial) or C(max_fail_percentage), whose variable has C(gpushare_) before it.
    type: list
    elements: str
    required: true
  group:
    description: Group of the hosts of the play.
    type: str
    default: gpushare_gpu_nodes
"""

EXAMPLES = r"""
- name: Do something to GPU nodes, batch by batch
  hosts: gpushare_gpu_nodes
  serial: "{{ lookup('gpushare.kubernetes.batches', 'serial') }}"
"""

RETURN = r"""
_raw:
  description: The value of the keyword.
  type: list
  elements: raw
"""

from typing import Any

from ansible.plugins.lookup import LookupBase

from ..plugin_utils._preflight.variables import PREFIX
from ..plugin_utils._preflight.variables import variables as options


class LookupModule(LookupBase):
    def run(self, terms: Any, variables: Any = None, **kwargs: Any) -> list[Any]:
        self.set_options(var_options=variables, direct=kwargs)
        hosts = variables["groups"].get(self.get_option("group")) or ()
        names = [PREFIX + str(term) for term in terms]
        known = variables["hostvars"][hosts[0]] if hosts else {}
        return [known.get(name, options()[name].spec["default"]) for name in names]
