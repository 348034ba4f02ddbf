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
  - Places O(archive) where the distribution imports archives whenever it starts, so that the image stays whatever kubelet removes.
    Imports it by the distribution's own C(ctr), if its containerd does not have O(image).
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
    description: With V(absent), the runtime may be gone, and the archive goes. containerd keeps the image.
    type: str
    choices: [present, absent]
    default: present
  image:
    description: Name of the image. Empty for none.
    type: str
    default: ""
  archive:
    description: Archive with the image, on the controller. Empty for none.
    type: str
    default: ""
  received:
    description: The archive on the host. This module's action plugin on the controller sets it, not users.
    type: dict
    suboptions:
      sha256:
        description: Its hash.
        type: str
        required: true
      path:
        description: Where it lies. Without it, the module says whether it is missing.
        type: path
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
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host import command, lock
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.host import Host
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes.rancher import (
    KINDS,
    PROGRAMS,
    Rancher,
    RancherError,
    RancherState,
)


def bring(module: AnsibleModule, rancher: Rancher) -> None:
    """Let it see the runtime, import the image, and answer. RancherError or OSError."""
    params, check = module.params, module.check_mode
    state, received = rancher.state(params["image"]), params["received"]
    # In check mode the packages that would bring it are not there.
    if not state.program and not check:
        raise RancherError(
            f"found no {' or '.join(PROGRAMS)}; expected NVIDIA's container toolkit. Install it, set gpushare_toolkit_state: "
            "managed, or let the GPU Operator bring it"
        )
    comes = state.has_image is False
    if comes and not received:
        raise RancherError(
            f"found no image {params['image'][:80]} in containerd; expected it. Name the archive of `make image` in gpushare_image_archive"
        )
    placed = bool(received) and rancher.archived() != received["sha256"]
    if placed and not check and not received["path"]:
        module.exit_json(changed=False, restarted="", imported=False, missing=True)
    if not check:
        if placed:
            rancher.archive(received["path"], received["sha256"])
        if state.is_due:
            rancher.restart(state.unit, bool(state.program), params["timeout"])
        if comes:
            rancher.bring()
    _done(module, state, placed or comes, comes)


def take_away(module: AnsibleModule, rancher: Rancher) -> None:
    """Remove the archive, let it see that the runtime is gone, and answer. RancherError or OSError."""
    state, placed = rancher.state(), rancher.has_archive()
    if not module.check_mode:
        rancher.remove_archive()
        if state.is_due:
            rancher.restart(state.unit, bool(state.program), module.params["timeout"])
    _done(module, state, placed, False)


def _done(module: AnsibleModule, state: RancherState, changed: bool, imported: bool) -> None:
    module.exit_json(changed=changed or state.is_due, restarted=state.unit if state.is_due else "", imported=imported)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "distribution": {"type": "str", "choices": sorted(KINDS), "required": True},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "image": {"type": "str", "default": ""},
            "archive": {"type": "str", "default": ""},
            "received": {"type": "dict", "options": {"sha256": {"type": "str", "required": True}, "path": {"type": "path"}}},
            "timeout": {"type": "int", "default": 180},
        },
        supports_check_mode=True,
    )
    if module.params["archive"] and not module.params["received"]:
        module.fail_json(msg="gpushare_rancher was run without its action plugin; call it by its full name gpushare.kubernetes.…")
    rancher = Rancher(Host("/"), module.params["distribution"], command.run)
    with lock.for_module(module):
        try:
            (bring if module.params["state"] == "present" else take_away)(module, rancher)
        except (RancherError, OSError) as error:
            module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
