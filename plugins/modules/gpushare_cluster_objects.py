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
  - The roles C(cluster_objects), C(in_cluster) and C(kubelet) use this module. Its options may change in any release.
  - Applies objects by server-side apply through the host's own kubectl, but only if the server's dry run shows a change. Fields of
    these objects that others have changed are reset.
  - Rejects every object with a kind or name that this collection does not create. Of nodes it accepts only gpushare's labels.
  - Puts the taint C(gpushare.kubernetes/gpu:PreferNoSchedule) on nodes, or takes it away. Other taints stay.
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
  create:
    description: Whether missing objects may be created. If not, they are left out and listed in RV(missing).
    type: bool
    default: true
  unserved:
    description:
      - Action for objects of kinds that this API server does not have, such as policies before Kubernetes 1.30. V(skip) leaves them out
        and lists them in RV(unserved).
    type: str
    choices: [fail, skip]
    default: fail
  namespace:
    description: The namespace of daemons that are pods. Without it, only objects of daemons on hosts are accepted.
    type: str
    default: ""
  taints:
    description: Name of a node to whether it has the taint. Nodes that are not there are left out.
    type: dict
    default: {}
  field_manager:
    description: The field manager's name for the fields of this collection.
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
unserved:
  description: The objects that this API server does not have.
  returned: success
  type: list
  elements: str
missing:
  description: With O(create=false), the objects that are not there.
  returned: success
  type: list
  elements: str
  sample: [Node gpu1]
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster import kubectl
from ansible_collections.gpushare.kubernetes.plugins.module_utils._cluster.objects import ForeignError, WantedObjects, check_ours, converge


def main() -> None:
    module = AnsibleModule(
        argument_spec=dict(
            kubectl.ARGUMENTS,
            objects={"type": "list", "elements": "dict", "required": True},
            create={"type": "bool", "default": True},
            unserved={"type": "str", "choices": ["fail", "skip"], "default": "fail"},
            namespace={"type": "str", "default": ""},
            field_manager={"type": "str", "default": "gpushare.kubernetes"},
            taints={"type": "dict", "default": {}},
        ),
        supports_check_mode=True,
    )
    params = module.params
    wanted = WantedObjects(
        apply=params["objects"],
        create=params["create"],
        skip_unserved=params["unserved"] == "skip",
        field_manager=params["field_manager"],
        namespace=params["namespace"],
        taints={str(name): module.boolean(value) for name, value in params["taints"].items()},
    )
    try:
        check_ours(wanted)
        result = converge(kubectl.for_module(module), wanted, module.check_mode)
    except (kubectl.KubectlError, ForeignError) as error:
        module.fail_json(msg=str(error))
    module.exit_json(**result)


if __name__ == "__main__":
    main()
