# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: collection_root
short_description: Return the folder of the collection that Ansible has loaded
version_added: 0.1.0
description:
  - Returns the folder of the collection C(gpushare.kubernetes) that is in use. It may be in the collection paths, beside a playbook, or
    among Python's packages. Links are followed.
author: gpushare.kubernetes contributors (@gpushare)
"""

EXAMPLES = r"""
- name: Say where it lies
  ansible.builtin.debug:
    msg: "{{ lookup('gpushare.kubernetes.collection_root') }}"
"""

RETURN = r"""
_raw:
  description: The folder.
  type: list
  elements: str
"""

from pathlib import Path
from typing import Any

from ansible.plugins.lookup import LookupBase


class LookupModule(LookupBase):
    def run(self, terms: Any, variables: Any = None, **kwargs: Any) -> list[str]:
        return [str(Path(__file__).resolve().parents[2])]
