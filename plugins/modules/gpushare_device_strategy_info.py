#!/usr/bin/python
# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpushare_device_strategy_info
short_description: Choose the device strategy of a host
version_added: 0.1.0
description:
  - The role C(device_plugin) uses this module. Its options may change in any release.
  - Reads kubelet, the running container runtime and the present device plugin of the host. Returns the strategy that
    C(gpushare_device_strategy) means there, and why the host cannot have it.
author: gpushare.kubernetes contributors (@gpushare)
extends_documentation_fragment:
  - gpushare.kubernetes.attributes
  - gpushare.kubernetes.attributes.info
options:
  asked:
    description: Value of C(gpushare_device_strategy).
    type: str
    choices: [auto, cdi, volume-mounts, envvar]
    default: auto
  toolkit:
    description: Whether to compare the configuration of NVIDIA's container toolkit with the strategy.
    type: bool
    default: true
  brings_spec:
    description: Whether this run writes a CDI spec before the device plugin starts, so that it need not be there yet.
    type: bool
    default: false
  brings_runtime:
    description: Whether this run configures the container runtime before the device plugin starts, so that CDI may still be off in it.
    type: bool
    default: false
  root:
    description: Folder that stands for the host's V(/), for tests.
    type: path
    default: /
"""

EXAMPLES = r"""
- name: Choose the device strategy
  gpushare.kubernetes.gpushare_device_strategy_info:
    asked: auto
  register: chosen
"""

RETURN = r"""
strategy:
  description: The strategy.
  returned: success
  type: str
  sample: cdi
kept:
  description: The stricter strategy that V(auto) will mean as soon as no pod of the host has GPUs. Empty for none.
  returned: success
  type: str
obstacles:
  description: Why the host cannot have the strategy, a sentence each.
  returned: success
  type: list
  elements: str
cdi:
  description: Why kubelet and the container runtime do not pass CDI devices on. Empty for the one that does.
  returned: success
  type: dict
  contains:
    kubelet: {description: Of kubelet., type: str}
    runtime: {description: Of the container runtime., type: str}
    spec: {description: Why no CDI spec names the GPUs. Empty if one does., type: str}
    "off": {description: Whether the container runtime only has CDI switched off., type: bool}
    reader: {description: Why the container runtime reads no specs of version 0.7.0. Empty if it does., type: str}
    newer: {description: Whether the spec in place is of version 0.7.0 or newer., type: bool}
mps:
  description: UUIDs of the GPUs that have a service with an MPS control daemon.
  returned: success
  type: list
  elements: str
"""

import os
from dataclasses import asdict

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpushare.kubernetes.plugins.module_utils._daemon.mps import Place, present
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts.device_strategy import (
    AUTO,
    STRATEGIES,
    Brings,
    choose,
    obstacles,
)
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts.node import gather
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.host import Host
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.systemd import UNITS


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "asked": {"type": "str", "choices": [AUTO, *STRATEGIES], "default": AUTO},
            "toolkit": {"type": "bool", "default": True},
            "brings_spec": {"type": "bool", "default": False},
            "brings_runtime": {"type": "bool", "default": False},
            "root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    facts = gather(Host(module.params["root"]), ["runtimes", "sharing"])
    asked, found, now = module.params["asked"], facts.cdi, facts.sharing
    if found is None or now is None:
        raise AssertionError("not gathered")
    brings = Brings(spec=module.params["brings_spec"], runtime=module.params["brings_runtime"])
    reasons = obstacles(asked, found, facts.toolkit if module.params["toolkit"] else None, now.strategy, now.holders, brings)
    module.exit_json(
        changed=False,
        obstacles=[f"found {seen}; expected {expected}; {cure}" for seen, expected, cure in reasons],
        cdi=asdict(found),
        mps=present(Place(os.path.join(module.params["root"], UNITS.lstrip("/")))),
        **asdict(choose(asked, found, now.strategy, now.holders, brings)),
    )


if __name__ == "__main__":
    main()
