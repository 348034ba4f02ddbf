# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
name: subjects
short_description: Return what the table of the collection's subjects says about a host
version_added: 0.1.0
description:
  - The playbooks and roles of this collection use this lookup. Its options may change in any release.
  - A subject is what a role brings to a host, such as the configuration of the container runtime. The table is in
    C(plugins/module_utils/_change/subjects.py).
author: gpushare.kubernetes contributors (@gpushare)
options:
  _terms:
    description:
      - The question. C(together) are the names of the plans that this host makes while its facts are gathered. C(plans) are the entry
        points of roles that plan on it alone. C(batch) are those that a batch of GPU nodes includes. C(followers) are those that run again
        after a change of the driver. C(removal) are those that take the subjects out of a GPU node. Each but the first is a dictionary with
        C(role) and C(tasks).
      - C(answer), with the name of a subject after it, is what its role has answered on this host in this run. C(strategy) is the answer
        that has the device strategy. Both are an empty dictionary before there is an answer.
      - C(changed) are the subjects that roles have changed on O(hosts) in this run. C(strategies) are the device strategies of O(hosts).
        C(done), with the name of a subject after it, are those of O(hosts) on which its role has ended without an error.
      - C(restored) has the files that were restored on this host, and notes about them.
    type: list
    elements: str
    required: true
  facts:
    description: For C(plans), the facts that preflight has read of this host.
    type: dict
    default: {}
  hosts:
    description: Hosts of the run.
    type: list
    elements: str
    default: []
  besides:
    description: For C(strategy), a role whose own answer does not count.
    type: str
    default: ""
  always:
    description: For C(batch), whether to return the entry points although preflight has planned no change.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Print what the removal would include
  ansible.builtin.debug:
    msg: "{{ query('gpushare.kubernetes.subjects', 'removal') }}"
"""

RETURN = r"""
_raw:
  description: Names, or dictionaries, as the question says.
  type: list
  elements: raw
"""

from collections.abc import Mapping
from typing import Any

from ansible.errors import AnsibleLookupError
from ansible.plugins.lookup import LookupBase

from ..plugin_utils._subjects import rows

_QUESTIONS = ("together", "plans", "batch", "followers", "removal", "answer", "strategy", "changed", "strategies", "done", "restored")
_ABOUT_ONE = ("answer", "done")


class LookupModule(LookupBase):
    def run(self, terms: Any, variables: Any = None, **kwargs: Any) -> list[Any]:
        self.set_options(var_options=variables, direct=kwargs)
        known: Mapping[str, Any] = variables or {}
        question, *about = map(str, terms)
        if question not in _QUESTIONS or len(about) != (question in _ABOUT_ONE):
            raise AnsibleLookupError(f"found the terms {list(terms)!r:.80}; expected one of {', '.join(_QUESTIONS)}, some with a subject")
        if about and about[0] not in rows.answers():
            raise AnsibleLookupError(f"found the subject {about[0]:.80}; expected one of the table: {', '.join(rows.answers())}")
        theirs = [known["hostvars"][host] for host in self.get_option("hosts")]
        read = rows.read_plans(known)
        answers = {
            "together": lambda: rows.together(known["groups"], known["inventory_hostname"], self._set(known)),
            "plans": lambda: rows.plans(self.get_option("facts"), known["groups"], known["inventory_hostname"], self._set(known)),
            "batch": lambda: rows.batch(read, self._setting(known), self.get_option("always")),
            "followers": lambda: rows.followers(self._setting(known)),
            "removal": rows.removal,
            "answer": lambda: [read(rows.register(about[0])) or {}],
            "strategy": lambda: [rows.strategy(read, self.get_option("besides"))],
            "changed": lambda: list(dict.fromkeys(name for each in theirs for name in rows.changed(each.get))),
            "strategies": lambda: list(
                dict.fromkeys(found["strategy"] for each in theirs if (found := rows.strategy(rows.read_plans(each))))
            ),
            "done": lambda: [each["inventory_hostname"] for each in theirs if rows.is_done(each.get, about[0])],
            "restored": lambda: [rows.restored(known.get)],
        }
        return list(answers[question]())

    def _set(self, known: Mapping[str, Any]) -> rows.Read:
        """As `_setting`, of a variable that must be set: a role that is never due would be left out without a word."""

        def value(name: str) -> Any:
            if name not in known:
                raise AnsibleLookupError(
                    f"found no variable {name}, on which a plan depends; expected it in the defaults of the role preflight"
                )
            return self._setting(known)(name)

        return value

    def _setting(self, known: Mapping[str, Any]) -> rows.Read:
        """A variable of the inventory or of the role around this task, with the values in it."""
        return lambda name: self._templar.template(known[name]) if name in known else None
