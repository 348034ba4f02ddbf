#!/usr/bin/python
# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: container_runtime
short_description: Make the nvidia runtime the default of containerd
version_added: 0.1.0
description:
  - The role C(container_runtime) uses this module. Its options may change in any release.
  - Adds the runtime C(nvidia) to containerd's configuration, with the options of the low-level runtime that pods have now, and makes
    it the default. Everything else in the files stays, comments included.
  - Writes a file of its own where containerd merges those (2.x with configuration version 3 or newer), otherwise into the file that
    decides. Configuration version 1 is refused.
  - Before anything is written, the host's containerd reads the candidate in a scratch folder. What it makes of it must be what it
    makes of the present files, with this change and no other.
  - Restarts containerd only if the running process has another configuration, which its CRI status tells. If it is not as ready as
    before within O(timeout), the files are put back and its own log is the error message.
author: gpushare.kubernetes contributors (@gpushare)
extends_documentation_fragment:
  - gpushare.kubernetes.attributes
  - gpushare.kubernetes.attributes.changes
options:
  state:
    description:
      - With V(absent), files that still are as this module left them get their old bytes back. From files that others have changed
        since, exactly our part is taken out.
    type: str
    choices: [present, absent]
    default: present
  program:
    description: Path on the host of NVIDIA's container runtime.
    type: path
    default: /usr/bin/nvidia-container-runtime
  unit:
    description: The systemd service that is kubelet's containerd.
    type: str
    default: containerd.service
  config:
    description: The main configuration file. By default the one that the service's command line names.
    type: path
  timeout:
    description: How many seconds containerd has to become healthy after a restart.
    type: int
    default: 60
  allow_container_kill:
    description: Whether containerd may be restarted although its unit would end the shims of all containers with it.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Make nvidia the default runtime
  gpushare.kubernetes.container_runtime:
"""

RETURN = r"""
restarted:
  description: Whether containerd was restarted (in check mode, would be).
  returned: success
  type: bool
restarted_at:
  description: When it was done, as Unix time of the host's clock; a restart was before that.
  returned: success
  type: float
why_restart:
  description: What the running containerd lacked; empty if nothing.
  returned: success
  type: str
files:
  description: The files that were changed (in check mode, would be).
  returned: success
  type: list
  elements: str
notes:
  description: What a person should know, such as a file that somebody else has changed since.
  returned: success
  type: list
  elements: str
"""

import os
import time

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.journal import JournalError
from ansible_collections.gpushare.kubernetes.plugins.module_utils._change.transaction import TransactionError
from ansible_collections.gpushare.kubernetes.plugins.module_utils._formats.toml import TomlError
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host import lock
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes.containerd_config import Refused
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes.default_runtime import Wanted, converge


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "program": {"type": "path", "default": "/usr/bin/nvidia-container-runtime"},
            "unit": {"type": "str", "default": "containerd.service"},
            "config": {"type": "path"},
            "timeout": {"type": "int", "default": 60},
            "allow_container_kill": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    with lock.for_module(module):
        os.umask(0o022)
        try:
            result = converge(Wanted(**module.params), module.check_mode)
        except (Refused, TomlError, JournalError, TransactionError, OSError) as error:
            module.fail_json(msg=str(error))
        # By this host's clock, as is the heartbeat of its kubelet.
        restarted_at = time.time()
        for warning in result.warnings:
            module.warn(warning)
        module.exit_json(
            changed=result.changed,
            restarted=bool(result.why_restart),
            restarted_at=restarted_at,
            why_restart=result.why_restart,
            files=result.files,
            notes=result.notes,
            diff=result.diff,
        )


if __name__ == "__main__":
    main()
