#!/usr/bin/python
# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpushare_images
short_description: Import container images of a bundle into the runtime of kubelet
version_added: 0.1.0
description:
  - The role C(in_cluster) uses this module. Its options may change in any release.
  - Asks the container runtime of kubelet which images it has, and imports those of the bundle for the host's architecture that it lacks.
    An archive travels to the host only then.
author: gpushare.kubernetes contributors (@gpushare)
extends_documentation_fragment:
  - gpushare.kubernetes.attributes
  - gpushare.kubernetes.bundle
  - gpushare.kubernetes.bundle.received
attributes:
  check_mode:
    support: full
  diff_mode:
    support: none
  idempotent:
    support: full
options:
  bundle:
    description: The bundle on the controller.
    type: str
    required: true
  wanted:
    description: The images of the bundle. This module's action plugin on the controller sets it, not users.
    type: list
    elements: dict
"""

EXAMPLES = r"""
- name: Import the images
  gpushare.kubernetes.gpushare_images:
    bundle: /srv/gpushare-bundle-0.1.0.tar
"""

RETURN = r"""
imported:
  description: The images that were imported (in check mode, would be).
  returned: success
  type: list
  elements: str
"""

import os

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts import kubernetes
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host import lock
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.host import Host
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.received import BUNDLE_KEY, RECEIVED, ReceivedError, unpacked
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes.images import ImagesError, importer, lacking, listed

MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


def bring(module: AnsibleModule, host: Host) -> None:
    """Import what is missing, and answer. ImagesError, ReceivedError or OSError."""
    found = kubernetes.kubelet(host, kubernetes.distribution(host))
    if not found.running or not found.endpoint:
        raise ImagesError("no kubelet runs on this host, expected a node of the cluster; nothing was imported: start it")
    wanted = [one for one in module.params["wanted"] or () if one["architecture"] == MACHINES.get(host.machine)]
    missing = lacking(wanted, listed(found.endpoint))
    names = sorted({name for one in missing for name in one["references"]})
    if not missing or module.check_mode:
        module.exit_json(changed=bool(missing), imported=names)
    command = importer(found.runtime, found.endpoint, host.program)
    files = sorted({one["file"] for one in missing})
    if not module.params["received"]:
        module.exit_json(changed=False, imported=[], missing=files)
    with unpacked(module.params["received"]["path"], module.params["received"]["sha256"]) as folder:
        for file in files:
            status, out, err = module.run_command([*command, os.path.join(folder, file.rpartition("/")[2])])
            if status != 0:
                raise ImagesError(f"{command[0]} cannot import {file}: {(err or out).strip()[-300:]}")
    left = lacking(missing, listed(found.endpoint))
    if left:
        raise ImagesError(f"the container runtime does not have {left[0]['references'][0]} after its import: see its log")
    module.exit_json(changed=True, imported=names)


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "bundle": {"type": "str", "required": True},
            "bundle_key": BUNDLE_KEY,
            "wanted": {"type": "list", "elements": "dict"},
            "received": RECEIVED,
        },
        supports_check_mode=True,
    )
    if module.params["wanted"] is None:
        module.fail_json(msg="gpushare_images was run without its action plugin; call it by its full name gpushare.kubernetes.…")
    with lock.for_module(module):
        os.umask(0o022)
        try:
            bring(module, Host())
        except (ImagesError, ReceivedError, OSError) as error:
            module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
