#!/usr/bin/python
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpushare_sharing
short_description: "Private: plan how a host shares its GPUs, choose its device strategy, and run an MPS control daemon for each GPU"
version_added: 0.1.0
description:
  - Roles for GPU nodes use this module. Its options may change in any release.
author: gpushare.kubernetes contributors (@gpushare)
extends_documentation_fragment:
  - gpushare.kubernetes.attributes
  - gpushare.kubernetes.attributes.changes
options:
  what:
    description:
      - V(strategy) reads kubelet, the running container runtime, the loaded driver and the present device plugin of the host, with the
        claims of its token. Returns the strategy that C(gpushare_device_strategy) means there. Changes nothing.
      - V(plans) gathers facts as M(gpushare.kubernetes.gpu_node_info) does. Then runs modules of this collection in check mode, one after
        the other, as far as the host is fit for them. Changes nothing.
      - V(mps) writes a systemd service for each GPU in O(gpus), starts it, and waits until its control daemon answers. Removes the services
        of other GPUs. Fails if pods have GPUs and a service would have to be added or removed. A service of an older release keeps running
        as long as pods have GPUs. If a daemon does not start, restores the previous files and returns the daemon's own log.
    type: str
    choices: [plans, strategy, mps]
    required: true
  asked: {description: Value of C(gpushare_device_strategy)., type: str, choices: [auto, cdi, volume-mounts, envvar], default: auto}
  toolkit: {description: "Whether to compare the configuration of NVIDIA's container toolkit with the strategy.", type: bool, default: true}
  required: {description: Whether to fail if the host cannot have the strategy., type: bool, default: false}
  token_path: {description: "Where the device plugin stores its token. Without it, V(strategy) reads none.", type: path}
  kubeconfig_path: {description: "The device plugin's kubeconfig, for O(token_path).", type: path}
  brings_spec:
    description: Whether this run writes a CDI spec before the device plugin starts, so that it need not be there yet.
    type: bool
    default: false
  brings_runtime:
    description: Whether this run configures the container runtime before the device plugin starts, so that CDI may still be off in it.
    type: bool
    default: false
  root: {description: "Folder that stands for the host's V(/), for tests of V(strategy).", type: path, default: /}
  gpus:
    description: UUIDs of the GPUs that get a control daemon. An empty list removes all services. V(mps) requires it.
    type: list
    elements: str
  unit:
    description: Content of the unit file, with C(@gpu@) for the UUID of the GPU. Empty only if O(gpus) is empty.
    type: str
    default: ""
  settings_dir: {description: "Folder for the settings of the services, one file each.", type: path, default: /etc/gpushare}
  timeout: {description: Seconds within which a control daemon must answer., type: int, default: 60}
  gather: {description: "Facts for V(plans), as in M(gpushare.kubernetes.gpu_node_info).", type: list, elements: str, default: []}
  install_dir: {description: Folder of the runtime., type: path, default: /opt/gpushare}
  plans:
    description: The plans of V(plans). The options that another plan decides are added on the host.
    type: list
    elements: dict
    default: []
    suboptions:
      name: {description: Name of the subject., type: str, required: true}
      arguments: {description: Options of its module., type: dict, required: true}
"""

EXAMPLES = r"""
- name: Choose the device strategy
  gpushare.kubernetes.gpushare_sharing:
    what: strategy
    asked: auto
  register: chosen
"""

RETURN = r"""
strategy: {description: The strategy., returned: with O(what=strategy), type: str, sample: cdi}
now: {description: "The strategy of the device plugin that is installed, empty for none.", returned: with O(what=strategy), type: str}
driver: {description: "Version of the loaded driver, empty for none.", returned: with O(what=strategy), type: str}
own: {description: As in M(gpushare.kubernetes.gpushare_daemon)., returned: with O(what=strategy), type: dict}
cdi: {description: As in M(gpushare.kubernetes.gpu_node_info)., returned: with O(what=strategy), type: dict}
mps: {description: UUIDs of the GPUs that have an MPS control daemon., returned: with O(what=strategy), type: list, elements: str}
facts: {description: As M(gpushare.kubernetes.gpu_node_info) returns them., returned: with O(what=plans), type: dict}
answers: {description: "The result of each plan, by its name.", returned: with O(what=plans), type: dict}
waiting:
  description: Services that run on with an older release or other settings, because pods have GPUs.
  returned: with O(what=mps)
  type: list
  elements: str
"""


import os
from typing import Any, Dict, Mapping

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator

from ..module_utils._change.engine import converge
from ..module_utils._change.undo import Rejected
from ..module_utils._daemon.daemon_reload import exposed
from ..module_utils._daemon.mps import MpsAnswer, MpsDaemons, Place, present
from ..module_utils._daemon.service import SystemdError, read_environ
from ..module_utils._facts.node import SUBSETS, described, gather
from ..module_utils._formats.answers import answer_of
from ..module_utils._host.answering import changing
from ..module_utils._host.host import Host
from ..module_utils._operations.device_strategy import ARGUMENTS, answer
from ..module_utils._operations.table import PlansAnswer, WrongArguments, plan


def validated(options: Mapping[str, Any], arguments: Mapping[str, Any]) -> Dict[str, Any]:
    """As AnsibleModule does it. WrongArguments."""
    found = ArgumentSpecValidator(options).validate(dict(arguments))
    if found.error_messages:
        raise WrongArguments("; ".join(found.error_messages))
    return dict(found.validated_parameters)


def plans(module: AnsibleModule) -> PlansAnswer:
    """Gather facts and plan, in check mode."""
    params = module.params
    facts = described(gather(Host(params["root"]), params["gather"], params["install_dir"]))
    return PlansAnswer(False, facts, plan(params["plans"], answer_of(facts), validated, module.run_command))


def mps(module: AnsibleModule) -> MpsAnswer:
    """Run the control daemons."""
    params, run = module.params, module.run_command
    place = Place(settings=params["settings_dir"])
    if not params["gpus"] and not present(place):
        return MpsAnswer(False, [], [])

    def hurt() -> "str | None":
        return exposed(run)

    with changing(module):
        sharing = gather(Host("/"), ["sharing"]).sharing
        holders = list(sharing.holders) if sharing else []
        try:
            subject = MpsDaemons(params["gpus"], params["unit"], holders, run, read_environ, params["timeout"], place, hurt)
            done = converge(subject, False, module.check_mode)
        except (SystemdError, OSError) as error:
            raise Rejected(f"{error}; nothing was changed") from error
        for warning in done.warnings:
            module.warn(warning)
        return MpsAnswer(done.changed, [os.path.basename(path) for path in done.left], done.diff)


OPERATIONS = {"plans": plans, "strategy": answer, "mps": mps}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "what": {"type": "str", "choices": list(OPERATIONS), "required": True},
            **ARGUMENTS,
            "gpus": {"type": "list", "elements": "str"},
            "unit": {"type": "str", "default": ""},
            "settings_dir": {"type": "path", "default": "/etc/gpushare"},
            "timeout": {"type": "int", "default": 60},
            "gather": {"type": "list", "elements": "str", "choices": list(SUBSETS), "default": []},
            "install_dir": {"type": "path", "default": "/opt/gpushare"},
            "plans": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {"name": {"type": "str", "required": True}, "arguments": {"type": "dict", "required": True}},
            },
        },
        required_if=[("what", "mps", ["gpus"])],
        required_together=[("token_path", "kubeconfig_path")],
        supports_check_mode=True,
    )
    module.exit_json(**answer_of(OPERATIONS[module.params["what"]](module)))


if __name__ == "__main__":
    main()
