#!/usr/bin/python
# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpushare_verify_verdict
short_description: One verdict over all evidence of gpushare
version_added: 0.1.0
description:
  - The role C(verify) uses this module. Its options may change in any release.
  - Judges the results of M(gpushare.kubernetes.gpushare_verify_host), M(gpushare.kubernetes.gpushare_verify_cluster) and
    M(gpushare.kubernetes.gpushare_probe). Fails with every finding if one of them is an error. A finding caused by another one refers to
    it.
  - Each finding has a stable code, and states what was found, what was expected, and what to do.
  - Works on the controller and reaches no host. Use it with C(run_once).
author: gpushare.kubernetes contributors (@gpushare)
extends_documentation_fragment:
  - gpushare.kubernetes.attributes
  - gpushare.kubernetes.attributes.info
options:
  hosts:
    description: The hosts of the run, usually V(ansible_play_hosts_all), so that the verdict lists lost ones as well.
    type: list
    elements: str
    required: true
  source:
    description: Folder on the controller with the runtime's sources, from which the hash of its wheel is computed.
    type: path
    required: true
  seen:
    description: Name of the variable with each host's registered evidence.
    type: str
    required: true
  cluster:
    description: Name of the variable with the cluster's registered evidence.
    type: str
    required: true
  probed:
    description: Name of the variable with each host's second evidence, from during the probe. By default there is none.
    type: str
    default: ""
  probes:
    description: Result of M(gpushare.kubernetes.gpushare_probe). By default there was no probe.
    type: dict
    default: {}
  unproven:
    description: RV(unproven) of an earlier call.
    type: dict
    default: {}
  probe:
    description: Whether to place probe pods. Only with O(final=false).
    type: bool
    default: false
  image:
    description: The image of the probe pods. By default one that each node has for its pod sandboxes.
    type: str
    default: ""
  final:
    description: With V(false), never fails, and returns the probe pods to place.
    type: bool
    default: true
  report:
    description: Path on the controller for the report as JSON. By default none is written.
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Give the verdict
  gpushare.kubernetes.gpushare_verify_verdict:
    hosts: "{{ ansible_play_hosts_all }}"
    source: "{{ role_path }}/../../files/gpushare_runtime"
    seen: seen
    cluster: cluster
  run_once: true
"""

RETURN = r"""
report:
  description: The verdict. With an error it is on the screen, and in O(report) for programs.
  returned: with O(final=true) and without an error
  type: dict
  contains:
    v: {description: Version of this form., type: int, sample: 1}
    ok: {description: Whether no finding is an error., type: bool}
    looked_at: {description: Numbers of verified items., type: dict}
    findings:
      description: Errors first, causes before what follows from them.
      type: list
      elements: dict
      contains:
        host: {description: Name in the inventory. Empty for the cluster., type: str}
        check: {description: The stable code of the kind of finding., type: str, sample: extender_down}
        severity: {description: "V(error), V(warning) or V(note).", type: str}
        found: {description: The state that was found., type: str}
        expected: {description: The required state., type: str}
        cure: {description: The action to take., type: str}
        because: {description: Code of the finding that it follows from. Empty for a cause., type: str}
nodes:
  description: Node to the image of the probe pod that is to be placed on it.
  returned: with O(final=false)
  type: dict
unproven:
  description: Node to why no probe pod can be placed on it.
  returned: with O(final=false)
  type: dict
left_behind:
  description: Probe pods that a killed run has left behind.
  returned: with O(final=false)
  type: list
  elements: str
scheduler_name:
  description: The scheduler that probe pods are for.
  returned: with O(final=false)
  type: str
ok:
  description: Whether nothing is wrong so far.
  returned: with O(final=false)
  type: bool
"""

from ansible.module_utils.basic import AnsibleModule


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "hosts": {"type": "list", "elements": "str", "required": True},
            "source": {"type": "path", "required": True},
            "seen": {"type": "str", "required": True},
            "cluster": {"type": "str", "required": True},
            "probed": {"type": "str", "default": ""},
            "probes": {"type": "dict", "default": {}},
            "unproven": {"type": "dict", "default": {}},
            "probe": {"type": "bool", "default": False},
            "image": {"type": "str", "default": ""},
            "final": {"type": "bool", "default": True},
            "report": {"type": "str", "default": ""},
        },
        supports_check_mode=True,
    )
    module.fail_json(
        msg="gpushare_verify_verdict works on the controller; call it by its full name gpushare.kubernetes.gpushare_verify_verdict"
    )


if __name__ == "__main__":
    main()
