#!/usr/bin/python
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: container_runtime
short_description: "Private: make the nvidia runtime the default of containerd, docker or CRI-O, or let containerd pass CDI devices on"
version_added: 0.1.0
description:
  - The role C(container_runtime) uses this module. Its options may change in any release.
  - Adds the runtime C(nvidia) to the configuration of the container runtime and makes it the default. Everything else in the files
    stays, order and indentation included.
  - For containerd, writes its own file if containerd merges such files (2.x with configuration version 3 or newer), otherwise changes
    the effective file. Configuration version 1 is rejected. The new entry has the options of the low-level runtime.
  - For docker, changes C(daemon.json). A default runtime on the command line of dockerd stays if it is C(nvidia). Any other one is
    rejected, because dockerd accepts an option in one of the two places only.
  - For CRI-O, writes its own file into the folder of drop-ins that this CRI-O reads. The new entry has the options of the low-level
    runtime.
  - Before anything is written, the host's own containerd, dockerd or crio reads the candidate in a scratch folder.
  - Restarts the container runtime only if the running process has another configuration. dockerd reloads its configuration without a
    restart if that suffices. If the process is not as ready as before within O(timeout), the files are restored and its own log is the
    error message.
author: gpushare.kubernetes contributors (@gpushare)
extends_documentation_fragment:
  - gpushare.kubernetes.attributes
  - gpushare.kubernetes.attributes.changes
options:
  state:
    description:
      - With V(absent), unchanged files get their old bytes back. From files that others have changed since, the module removes exactly
        its own part.
    type: str
    choices: [present, absent]
    default: present
  runtime:
    description:
      - The container runtime to configure. With V(auto), the one that kubelet's endpoint names.
      - With O(state=absent), every container runtime that was configured by this module.
    type: str
    choices: [auto, containerd, docker, cri-o]
    default: auto
  default_runtime:
    description:
      - With V(nvidia), the runtime C(nvidia) becomes the default.
      - With V(unchanged), it is added only, and the default runtime stays.
      - V(auto) means V(nvidia), and that no runtime is added where the strategy in O(chosen) is C(cdi).
    type: str
    choices: [auto, nvidia, unchanged]
    default: auto
  chosen:
    description:
      - The device strategy of the host, by its C(strategy) and C(cdi) as M(gpushare.kubernetes.gpushare_sharing) returns them. For C(cdi),
        the module sets C(enable_cdi) where containerd 1.7 needs it to pass CDI devices on. Where nothing is needed, and
        O(default_runtime=auto), it changes nothing.
    type: dict
    default: {}
  program: {description: "Path on the host of NVIDIA's container runtime.", type: path, default: /usr/bin/nvidia-container-runtime}
  program_comes:
    description: Whether packages that were only predicted bring the program, so that it need not be there yet.
    type: bool
    default: false
  unit:
    description: The systemd service of the container runtime. Empty for C(containerd.service), C(docker.service) or C(crio.service).
    type: str
    default: ""
  config:
    description: The main configuration file. By default the one that the service's command line names.
    type: path
    default: ""
  timeout: {description: Seconds within which the container runtime must become healthy after a restart or reload., type: int, default: 60}
  allow_container_kill:
    description: Whether the container runtime may be restarted although that ends the containers of this host.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Make nvidia the default runtime
  gpushare.kubernetes.container_runtime:
"""

RETURN = r"""
restarted:
  description: Whether the container runtime was restarted or reloaded (in check mode, would be).
  returned: success
  type: bool
restarted_at: {description: "Unix time of the host's clock after the restart.", returned: success, type: float}
why_restart: {description: Settings that the running process lacked; empty if it had all., returned: success, type: str}
files: {description: "The files that were changed (in check mode, would be).", returned: success, type: list, elements: str}
notes:
  description: Remarks for people, for example about a file that others have changed since.
  returned: success
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils._formats.answers import answer_of
from ..module_utils._operations.container_runtime import ARGUMENTS, answer

OPERATIONS = {"": answer}


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    module.exit_json(**answer_of(answer(module)))


if __name__ == "__main__":
    main()
