#!/usr/bin/python
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpushare_host_runtime
short_description: "Private: import images into the runtime of kubelet, and make k3s or RKE2 see NVIDIA's runtime"
version_added: 0.1.0
description:
  - The role C(in_cluster) uses this module. Its options may change in any release.
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
  what:
    description:
      - V(images) asks the container runtime of kubelet which images it has, and imports those of O(bundle) for the host's architecture that
        it lacks. An archive travels to the host only then.
      - V(rancher) is for k3s and RKE2, which search for C(nvidia-container-runtime) when they start, and write the configuration of their
        containerd. If that configuration does not say what the host has, restarts the service once, and waits until it does. Containers
        go on meanwhile. Places O(archive) where the distribution imports archives whenever it starts, so that the image stays whatever
        kubelet removes. Imports it by the distribution's own C(ctr), if its containerd does not have O(image). Changes no file of the
        distribution.
    type: str
    choices: [images, rancher]
    required: true
  bundle: {description: The bundle on the controller. V(images) requires it., type: str}
  wanted:
    description: The images of the bundle. This module's action plugin on the controller sets it, not users.
    type: list
    elements: dict
  distribution: {description: The distribution. V(rancher) requires it., type: str, choices: [k3s, rke2]}
  state:
    description: With V(absent), V(rancher) accepts that the runtime is gone, and removes the archive. containerd keeps the image.
    type: str
    choices: [present, absent]
    default: present
  image: {description: Name of the image that V(rancher) wants. Empty for none., type: str, default: ""}
  archive: {description: "Archive with this image, on the controller. Empty for none.", type: str, default: ""}
  sha256: {description: "Hash of O(archive). This module's action plugin on the controller sets it, not users.", type: str, default: ""}
  timeout: {description: Seconds within which the service of the distribution must have restarted., type: int, default: 180}
"""

EXAMPLES = r"""
- name: Import the images
  gpushare.kubernetes.gpushare_host_runtime:
    what: images
    bundle: /srv/gpushare-bundle-0.1.0.tar
"""

RETURN = r"""
imported: {description: "The images that were imported (in check mode, would be).", returned: success, type: list, elements: str}
restarted:
  description: The service that was restarted (in check mode, that would be), or nothing.
  returned: with O(what=rancher)
  type: str
"""

import os
from functools import partial
from typing import List

from ansible.module_utils.basic import AnsibleModule

from ..module_utils._facts import kubernetes
from ..module_utils._formats.answers import answer_of
from ..module_utils._host import command
from ..module_utils._host.answering import changing
from ..module_utils._host.host import Host
from ..module_utils._host.rancher import KINDS
from ..module_utils._host.received import BUNDLE_KEY, RECEIVED, unpacked
from ..module_utils._runtimes.images import ImagesError, ImagesImported, importer, lacking, listed, unlisted
from ..module_utils._runtimes.rancher import PROGRAMS, Rancher, RancherAnswer, RancherError, RancherState

MACHINES = {"x86_64": "amd64", "aarch64": "arm64"}


def images(module: AnsibleModule) -> ImagesImported:
    """Import what is missing of the bundle. ImagesError, ReceivedError or OSError."""
    host, received = Host(), module.params["received"]
    found = kubernetes.kubelet(host, kubernetes.distribution(host))
    if not found.running or not found.endpoint:
        raise ImagesError("no kubelet runs on this host, expected a node of the cluster; nothing was imported: start it")
    wanted = [image for image in module.params["wanted"] if image["architecture"] == MACHINES.get(host.machine)]
    missing = lacking(wanted, listed(found.endpoint))
    names = sorted({name for image in missing for name in image["references"]})
    if not missing or module.check_mode:
        return ImagesImported(bool(missing), names)
    program = importer(found.runtime, found.endpoint, host.program)
    files = sorted({image["file"] for image in missing})
    if not received:
        return ImagesImported(False, [], files)
    with unpacked(received["path"], received["sha256"]) as folder:
        for file in files:
            status, out, err = module.run_command([*program, os.path.join(folder, file.rpartition("/")[2])])
            if status != 0:
                raise ImagesError(f"{program[0]} cannot import {file}: {(err or out).strip()[-300:]}")
    left = unlisted(missing, partial(listed, found.endpoint))
    if left:
        raise ImagesError(f"the container runtime does not have {left[0]['references'][0]} after its import: see its log")
    return ImagesImported(True, names)


def rancher(module: AnsibleModule) -> RancherAnswer:
    """Let the distribution see the runtime or that it is gone, and have the image and its archive or not. RancherError or OSError."""
    there = Rancher(Host(), module.params["distribution"], command.run)
    return (_bring if module.params["state"] == "present" else _take_away)(module, there)


def _bring(module: AnsibleModule, there: Rancher) -> RancherAnswer:
    params, check = module.params, module.check_mode
    state, sha256 = there.state(params["image"]), params["sha256"]
    # In check mode the packages that would bring it are not there.
    if not state.program and not check:
        raise RancherError(
            f"found no {' or '.join(PROGRAMS)}; expected NVIDIA's container toolkit. Install it, set gpushare_toolkit_state: "
            "managed, or let the GPU Operator bring it"
        )
    comes = state.has_image is False
    if comes and not sha256:
        raise RancherError(
            f"found no image {params['image'][:80]} in containerd; expected it. Name the archive of `make image` in gpushare_image_archive"
        )
    placed = bool(sha256) and there.archived() != sha256
    if placed and not check and not params["received"]:
        return RancherAnswer(False, [], "", missing=True)
    if not check:
        if placed:
            there.archive(params["received"]["path"], sha256)
        if state.is_due:
            there.restart(state.unit, bool(state.program), params["timeout"])
        if comes:
            there.bring()
    return _done(state, placed or comes, [params["image"]] if comes else [])


def _take_away(module: AnsibleModule, there: Rancher) -> RancherAnswer:
    state, placed = there.state(), there.has_archive()
    if not module.check_mode:
        there.remove_archive()
        if state.is_due:
            there.restart(state.unit, bool(state.program), module.params["timeout"])
    return _done(state, placed, [])


def _done(state: RancherState, changed: bool, imported: List[str]) -> RancherAnswer:
    return RancherAnswer(changed or state.is_due, imported, state.unit if state.is_due else "")


OPERATIONS = {"images": images, "rancher": rancher}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "what": {"type": "str", "choices": list(OPERATIONS), "required": True},
            "bundle": {"type": "str"},
            "bundle_key": BUNDLE_KEY,
            "wanted": {"type": "list", "elements": "dict"},
            "distribution": {"type": "str", "choices": sorted(KINDS)},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "image": {"type": "str", "default": ""},
            "archive": {"type": "str", "default": ""},
            "sha256": {"type": "str", "default": ""},
            "received": RECEIVED,
            "timeout": {"type": "int", "default": 180},
        },
        required_if=[("what", "images", ["bundle"]), ("what", "rancher", ["distribution"])],
        supports_check_mode=True,
    )
    params = module.params
    without_action = {"images": params["wanted"] is None, "rancher": bool(params["archive"]) and not params["sha256"]}
    if without_action[params["what"]]:
        module.fail_json(msg="gpushare_host_runtime was run without its action plugin; call it by its full name gpushare.kubernetes.…")
    with changing(module):
        result = OPERATIONS[params["what"]](module)
    module.exit_json(**answer_of(result))


if __name__ == "__main__":
    main()
