#!/usr/bin/python
# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpushare_cluster_objects
short_description: Apply gpushare's objects to the cluster
version_added: 0.1.0
description:
  - Applies objects by server-side apply through the host's own kubectl, and only if the server's dry run says that one of them
    would change.
  - Fields of these objects that somebody else has changed are taken back.
author: gpushare.kubernetes contributors (@gpushare)
extends_documentation_fragment:
  - gpushare.kubernetes.attributes
  - gpushare.kubernetes.attributes.changes
  - gpushare.kubernetes.kubectl
options:
  objects:
    description: Complete Kubernetes objects, those that others need first.
    type: list
    elements: dict
    required: true
  field_manager:
    description: The name under which the API server remembers which fields are ours.
    type: str
    default: gpushare.kubernetes
"""

EXAMPLES = r"""
- name: Apply the extender's account and rights
  gpushare.kubernetes.gpushare_cluster_objects:
    objects: "{{ lookup('ansible.builtin.file', 'rbac.yml') | from_yaml_all | list }}"
  delegate_to: "{{ groups['kube_control_plane'] | first }}"
  run_once: true
"""

RETURN = r"""
objects:
  description: The objects that were created or changed (in check mode, would be).
  returned: success
  type: list
  elements: str
  sample: [ClusterRole gpushare-extender]
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpushare.kubernetes.plugins.module_utils import _cluster_objects, _kubectl


def main() -> None:
    module = AnsibleModule(
        argument_spec=dict(
            _kubectl.ARGUMENTS,
            objects={"type": "list", "elements": "dict", "required": True},
            field_manager={"type": "str", "default": "gpushare.kubernetes"},
        ),
        supports_check_mode=True,
    )
    kubectl = _kubectl.for_module(module)
    document = _kubectl.as_list(module.params["objects"])
    apply = ["apply", "--server-side", "--force-conflicts", f"--field-manager={module.params['field_manager']}", "-f", "-"]
    try:
        live = kubectl.items(["get", "--ignore-not-found", "-f", "-"], document)
        found = _cluster_objects.changes(live, kubectl.items([*apply, "--dry-run=server"], document))
        if found and not module.check_mode:
            kubectl.text(apply, document)
    except _kubectl.KubectlError as error:
        module.fail_json(msg=str(error))
    module.exit_json(changed=bool(found), objects=[change.title for change in found], diff=_cluster_objects.diff(found))


if __name__ == "__main__":
    main()
