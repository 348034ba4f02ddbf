#!/usr/bin/python
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpushare_toolkit
short_description: "Private: configure NVIDIA's container toolkit"
version_added: 0.1.0
description:
  - The role C(nvidia_container_toolkit) uses this module. Its options may change in any release.
  - Chooses the device strategy of the host. A node whose pods have GPUs keeps its own until they end.
  - Sets what containers may request in C(/etc/nvidia-container-runtime/config.toml). Except with V(envvar), containers without privileges
    get GPUs from the device plugin only. Their environment is ignored then, and volume mounts below
    C(/var/run/nvidia-container-devices) are accepted. All other settings and comments stay.
  - Before the file is written, the host's own C(nvidia-ctk) reads the candidate.
  - Rejects a toolkit that is older than O(minimum). Changes nothing on DGX OS, and where the GPU Operator manages the toolkit.
author: gpushare.kubernetes contributors (@gpushare)
extends_documentation_fragment:
  - gpushare.kubernetes.attributes
  - gpushare.kubernetes.attributes.changes
options:
  state: {description: "With V(absent), restores C(config.toml).", type: str, choices: [present, absent], default: present}
  asked: {description: Value of C(gpushare_device_strategy)., type: str, choices: [auto, cdi, volume-mounts, envvar], default: auto}
  minimum: {description: The oldest version that is accepted., type: str, default: 1.19.1}
  cdi:
    description:
      - Whether to write the CDI spec now, at boot, and after a change of driver or toolkit. Uses the toolkit's own unit
        C(nvidia-cdi-refresh) where it exists.
    type: bool
    default: false
  comes:
    description: Whether packages that were only predicted bring the toolkit. Its version and its units are not checked then.
    type: bool
    default: false
  root: {description: "Folder that stands for the host's V(/), for tests.", type: path, default: /}
"""

EXAMPLES = r"""
- name: Ignore the environment of containers
  gpushare.kubernetes.gpushare_toolkit:
    asked: volume-mounts
"""

RETURN = r"""
strategy: {description: As in M(gpushare.kubernetes.gpushare_sharing)., returned: with O(state=present), type: str}
now: {description: As in M(gpushare.kubernetes.gpushare_sharing)., returned: with O(state=present), type: str}
cdi: {description: As in M(gpushare.kubernetes.gpushare_sharing)., returned: with O(state=present), type: dict}
mps: {description: As in M(gpushare.kubernetes.gpushare_sharing)., returned: with O(state=present), type: list, elements: str}
files: {description: "The files that were changed (in check mode, would be).", returned: success, type: list, elements: str}
notes: {description: Remarks for people., returned: success, type: list, elements: str}
"""


from ansible.module_utils.basic import AnsibleModule

from ..module_utils._formats.answers import answer_of
from ..module_utils._operations.toolkit import ARGUMENTS, answer

OPERATIONS = {"": answer}


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENTS, supports_check_mode=True)
    module.exit_json(**answer_of(answer(module)))


if __name__ == "__main__":
    main()
