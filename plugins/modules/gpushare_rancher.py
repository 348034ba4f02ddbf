#!/usr/bin/python
# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpushare_rancher
short_description: Make k3s or RKE2 see NVIDIA's runtime, and import an image
version_added: 0.1.0
description:
  - The role C(in_cluster) uses this module. Its options may change in any release.
  - k3s and RKE2 search for C(nvidia-container-runtime) when they start, and write the configuration of their containerd. If that
    configuration does not say what the host has, restarts the service once, and waits until it does. Containers go on meanwhile.
  - Imports O(archive) by the distribution's own C(ctr), if its containerd does not have O(image).
  - Changes no file of the distribution.
author: gpushare.kubernetes contributors (@gpushare)
extends_documentation_fragment:
  - gpushare.kubernetes.attributes
  - gpushare.kubernetes.attributes.changes
options:
  distribution:
    description: The distribution.
    type: str
    choices: [k3s, rke2]
    required: true
  state:
    description: With V(absent), the runtime may be gone, and no image is imported.
    type: str
    choices: [present, absent]
    default: present
  image:
    description: Name of the image. Empty for none.
    type: str
    default: ""
  archive:
    description: Archive with the image, on this host.
    type: path
    default: ""
  timeout:
    description: Seconds within which the service must have restarted.
    type: int
    default: 180
"""

EXAMPLES = r"""
- name: Let k3s see NVIDIA's runtime
  gpushare.kubernetes.gpushare_rancher:
    distribution: k3s
"""

RETURN = r"""
restarted:
  description: The service that was restarted (in check mode, that would be), or nothing.
  returned: success
  type: str
imported:
  description: Whether the image was imported.
  returned: success
  type: bool
images:
  description: Folder from which the distribution imports archives when it starts.
  returned: success
  type: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host import command, lock
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.host import Host
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes.rancher import KINDS, PROGRAMS, Rancher, RancherError


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "distribution": {"type": "str", "choices": sorted(KINDS), "required": True},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "image": {"type": "str", "default": ""},
            "archive": {"type": "path", "default": ""},
            "timeout": {"type": "int", "default": 180},
        },
        supports_check_mode=True,
    )
    params, check = module.params, module.check_mode
    present = params["state"] == "present"
    rancher = Rancher(Host("/"), params["distribution"], command.run)
    with lock.for_module(module):
        try:
            state = rancher.state(params["image"] if present else "")
            # In check mode the packages that would bring it are not there.
            if present and not state.program and not check:
                raise RancherError(
                    f"found no {' or '.join(PROGRAMS)}; expected NVIDIA's container toolkit; install it, set gpushare_toolkit_state: "
                    "managed, or let the GPU Operator bring it"
                )
            comes = present and state.has_image is False
            if comes and not params["archive"]:
                raise RancherError(
                    f"found no image {params['image'][:80]} in containerd; expected it; name the archive of `make image` in "
                    "gpushare_image_archive"
                )
            due = state.is_due
            if not check:
                if due:
                    rancher.restart(state.unit, bool(state.program), params["timeout"])
                if comes:
                    rancher.bring(params["archive"])
        except RancherError as error:
            module.fail_json(msg=str(error))
    module.exit_json(changed=due or comes, restarted=state.unit if due else "", imported=comes, images=rancher.kind.images)


if __name__ == "__main__":
    main()
