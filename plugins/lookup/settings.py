# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: settings
short_description: Return the fields of a daemon's file of settings on a host
version_added: 0.1.0
description:
  - The roles of this collection use this lookup. Its options may change in any release.
  - Each field follows a variable of the role. C(gpushare_runtime/settings/) of the runtime says which.
author: gpushare.kubernetes contributors (@gpushare)
options:
  _terms:
    description: The role of the daemon, such as C(device_plugin).
    type: list
    elements: str
    required: true
  decided:
    description: Fields whose values the role decides, by their keys. An empty one is left out.
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: Print the settings of the device plugin
  ansible.builtin.debug:
    msg: "{{ lookup('gpushare.kubernetes.settings', 'device_plugin', decided={'nodeName': 'gpu1'}) }}"
"""

RETURN = r"""
_raw:
  description: The fields with their values, and the kind of the document.
  type: list
  elements: dict
"""

from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleLookupError
from ansible.plugins.lookup import LookupBase

from ..plugin_utils._preflight.variables import of_type
from ..plugin_utils._preflight.variables import variables as options
from ..plugin_utils._settings.table import DAEMONS


class LookupModule(LookupBase):
    def run(self, terms: Any, variables: Any = None, **kwargs: Any) -> list[Any]:
        self.set_options(var_options=variables, direct=kwargs)
        known: Mapping[str, Any] = variables or {}
        if len(terms) != 1 or terms[0] not in DAEMONS:
            raise AnsibleLookupError(f"found the terms {list(terms)!r:.80}; expected one of {', '.join(DAEMONS)}")

        def value(name: str) -> Any:
            if name not in known:
                raise AnsibleLookupError(f"found no variable {name}; expected it in the defaults of the role {terms[0]}")
            typed, wrong = of_type(name, self._templar.template(known[name]), options()[name].spec)
            if wrong:
                raise AnsibleLookupError(f"{name}: {wrong}; correct it in the inventory")
            return typed

        return [DAEMONS[terms[0]].on_host(value, self.get_option("decided"))]
