#!/usr/bin/python
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpushare_verify_host
short_description: "Private: gather everything of gpushare on a host"
version_added: 0.1.0
description:
  - The role C(verify) uses this module. Its options may change in any release.
  - Gathers the evidence whether a host shares its GPUs, in one call. It covers the driver, the running container runtime, CDI specs,
    and the GPUs that running containers really have. It also covers the runtime of the daemons, the answer of its program
    C(gpushare-doctor), and the files of kube-scheduler.
  - Returns evidence only. M(gpushare.kubernetes.gpushare_judge) judges it, together with that of the other hosts and the API.
author: gpushare.kubernetes contributors (@gpushare)
extends_documentation_fragment:
  - gpushare.kubernetes.attributes
  - gpushare.kubernetes.attributes.info
options:
  gpu_node: {description: "Whether the host's GPUs are shared.", type: bool, required: true}
  control_plane: {description: "Whether the host's kube-scheduler calls the extender.", type: bool, required: true}
  dashboard: {description: Whether the host serves the dashboard., type: bool, default: false}
  only:
    description: The parts to gather, which change while a probe pod runs. By default all parts.
    type: list
    elements: str
    choices: [containers, extender]
  install_dir: {description: Folder of the runtime., type: path, default: /opt/gpushare}
  pki_dir: {description: Folder of the certificates. Empty where the extender speaks plain http., type: str, default: ""}
  extender_port: {description: Port on 127.0.0.1 where the extender listens., type: int, default: 32766}
  extender_weight: {description: "The required weight of the extender's scores.", type: int, default: 10}
  extender_http_timeout:
    description: The required timeout of the scheduler's calls of the extender, as a Go duration.
    type: str
    default: 1s
  preemption: {description: Whether kube-scheduler asks the extender before it evicts pods., type: bool, default: true}
  memory_unit: {description: The required unit of memory., type: str, default: ""}
  minimum_driver: {description: The oldest accepted version of the driver., type: str, default: "384.81"}
  expect_gpus: {description: The required number of GPUs. 0 for any., type: int, default: 0}
  expect_memory_mib: {description: The smallest accepted memory of a GPU in MiB. 0 for any., type: int, default: 0}
  metrics_plugin:
    description: Address and port where the device plugin is to serve its metrics. Empty for nowhere.
    type: str
    default: ""
  metrics_extender: {description: Address and port where the extender is to serve its metrics. Empty for nowhere., type: str, default: ""}
  runtime_name:
    description:
      - The container runtime that the collection configures. With V(auto), the one that kubelet's endpoint names. Empty for none.
    type: str
    default: auto
  device_strategy: {description: The required device strategy., type: str, default: auto}
  runtime_default: {description: "With V(unchanged), the runtime C(nvidia) need not be the default.", type: str, default: auto}
  runtime_unit: {description: The systemd service of the container runtime. Empty for its usual one., type: str, default: ""}
  runtime_config:
    description: Main configuration file of the container runtime. By default the one that its command line names.
    type: str
    default: ""
  scheduler_manifest:
    description: Manifest of kube-scheduler's static pod.
    type: path
    default: /etc/kubernetes/manifests/kube-scheduler.yaml
  scheduler_config:
    description: The configuration file that is made if the manifest names none.
    type: path
    default: /etc/kubernetes/gpushare/kube-scheduler.yaml
  root: {description: "Folder that stands for the host's V(/), for tests.", type: path, default: /}
"""

EXAMPLES = r"""
- name: Look at a GPU node
  gpushare.kubernetes.gpushare_verify_host:
    gpu_node: true
    control_plane: false
  register: seen
"""

RETURN = r"""
seen: {description: "The evidence, for M(gpushare.kubernetes.gpushare_judge).", returned: success, type: dict}
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils._evidence.host import ARGUMENTS, again, answer
from ..module_utils._formats.answers import answer_of

OPERATIONS = {"": answer}


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    module.exit_json(**answer_of(answer(module) if module.params["only"] is None else again(module)))


if __name__ == "__main__":
    main()
