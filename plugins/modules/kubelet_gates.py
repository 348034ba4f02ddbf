#!/usr/bin/python
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: kubelet_gates
short_description: "Private: switch on the feature gates of kubelet that device plugins need"
version_added: 0.1.0
description:
  - The role C(kubelet) uses this module. Its options may change in any release.
  - Switches a gate on if the host's kubelet has it, it can be switched, and it is off. A gate that is on by default is not written,
    because a later kubelet that no longer has it would not start.
  - Writes where the host keeps its gates. If kubelet has a C(--feature-gates), that one gets them, in an environment file or in a file
    of the unit. Otherwise C(featureGates) of the KubeletConfiguration, from Kubernetes 1.10 on. Otherwise C(KUBELET_EXTRA_ARGS) in the
    environment file that the unit reads, in its C(Environment=), or in a drop-in.
  - Other gates, comments and order stay. A file of a package is not changed.
  - Calls C(systemctl daemon-reload) only if a file of the unit was changed, and not while a container uses a GPU.
  - Before anything is written, the host's own kubelet must list the gate.
  - Restarts kubelet only if the running process lacks a gate. If it is not healthy within O(timeout), or the API server has no heartbeat
    and C(Ready) from after the restart, the files are restored.
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
  gates:
    description: The gates that must be on, if the host's kubelet has them.
    type: list
    elements: str
    choices: [Accelerators, DevicePlugins]
    default: [Accelerators, DevicePlugins]
  unit: {description: The systemd service of kubelet., type: str, default: kubelet.service}
  timeout: {description: Seconds within which kubelet must become healthy after a restart., type: int, default: 120}
  allow_daemon_reload:
    description: Whether systemd may read its units again although containers of this host use a GPU.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Switch on the gates
  gpushare.kubernetes.kubelet_gates:
"""

RETURN = r"""
version:
  description: Major and minor version of the host's kubelet. Empty if there was nothing to do for O(state=absent).
  returned: success
  type: str
  sample: "1.9"
feature_gates: {description: "The gates that the files give to kubelet, before the change in check mode.", returned: success, type: dict}
files: {description: "The files that were changed (in check mode, would be).", returned: success, type: list, elements: str}
restarted_at: {description: "Unix time of the host's clock before the restart, null without one.", returned: success, type: float}
notes:
  description: Remarks for people, for example about a file that others have changed since.
  returned: success
  type: list
  elements: str
"""


from ansible.module_utils.basic import AnsibleModule

from ..module_utils._formats.answers import answer_of
from ..module_utils._host.answering import changing
from ..module_utils._kubelet.converge import GatesAnswer, WantedGates, converge
from ..module_utils._kubelet.gates import WANTED


def answer(module: AnsibleModule) -> GatesAnswer:
    """Set them, or take them back."""
    with changing(module):
        done = converge(WantedGates(**module.params), module.check_mode)
        return GatesAnswer(done.changed, done.release, done.given, done.files, done.restarted_at, done.notes, done.diff)


OPERATIONS = {"": answer}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "gates": {"type": "list", "elements": "str", "choices": list(WANTED), "default": list(WANTED)},
            "unit": {"type": "str", "default": "kubelet.service"},
            "timeout": {"type": "int", "default": 120},
            "allow_daemon_reload": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    module.exit_json(**answer_of(answer(module)))


if __name__ == "__main__":
    main()
