#!/usr/bin/python
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpushare_runtime_env
short_description: "Private: install the gpushare runtime into a versioned virtual environment"
version_added: 0.1.0
description:
  - The role C(python_environment) uses this module. Its options may change in any release.
  - Builds a wheel from the runtime's sources on the controller, with the same bytes every time. Installs it with its locked dependencies
    into O(root)/E(VERSION)-E(HASH) on the host.
  - The hash is over the wheel, the locked requirements and the version of Python, so a complete environment never changes.
  - The daemons' units name their environment, so a failed daemon is rolled back together with its environment. The link O(root)/current
    is for people and for kubectl. With O(link) the module switches it, and then removes unused environments.
  - The wheel travels to the host only if the host does not have the environment yet.
author: gpushare.kubernetes contributors (@gpushare)
extends_documentation_fragment:
  - gpushare.kubernetes.attributes
  - gpushare.kubernetes.attributes.changes
  - gpushare.kubernetes.bundle
options:
  source:
    description: Folder on the controller with the runtime's C(pyproject.toml), locked requirements and sources.
    type: path
    required: true
  extra:
    description:
      - The extra of the runtime that the host needs. V(kubectl) adds the packages that only kubectl's plugin needs.
    type: str
    choices: ["", kubectl]
    default: ""
  root: {description: Folder on the host that holds the environments and the link C(current)., type: path, default: /opt/gpushare}
  python:
    description:
      - Python of the host to build with, 3.10 or newer, by name or path.
      - By default the distribution's C(python3), or the newest other one if that is too old.
    type: str
    default: ""
  pip_extra_args:
    description:
      - More arguments for C(pip install) of the dependencies, such as V(--index-url) and its value.
      - By default the host's own configuration of pip decides where packages come from.
    type: list
    elements: str
    default: []
  bundle: {description: A bundle on the controller that has the dependencies. No package index is asked then., type: str, default: ""}
  link:
    description: Whether O(root)/current is to lead to the environment. Set it last, after all daemons of the environment have been
      verified.
    type: bool
    default: true
  comes:
    description: Whether the run installs a Python where the host has none, so that check mode can say what follows.
    type: bool
    default: false
  artifact:
    description: The artifact to install. This module's action plugin on the controller sets it, not users.
    type: dict
    suboptions:
      version: {description: Version of the runtime., type: str, required: true}
      wheel_sha256: {description: Hash of the wheel., type: str, required: true}
      requirements_sha256: {description: Hash of the locked requirements., type: str, required: true}
      pip_extra_args: {description: The value of O(pip_extra_args) as JSON; it is not shown., type: str}
      wheel_path: {description: "Where the wheel lies on the host, once it has been sent.", type: path}
      requirements_path: {description: "Where the locked requirements lie on the host, once they have been sent.", type: path}
      wheels_path: {description: "Where the archive with the wheels of a bundle lies on the host, once it has been sent.", type: path}
      wheels_sha256: {description: Hash of that archive., type: str, default: ""}
"""

EXAMPLES = r"""
- name: Install the runtime
  gpushare.kubernetes.gpushare_runtime_env:
    source: "{{ role_path }}/../../files/gpushare_runtime"
"""

RETURN = r"""
environment:
  description: Path of the environment (in check mode, where it would be).
  returned: success
  type: str
  sample: /opt/gpushare/0.1.0-3f2a9c0d1e4b
linked: {description: "Whether O(root)/current leads to the environment, and did before.", returned: success, type: bool}
python: {description: Path of the Python that it is built with., returned: success, type: str, sample: /usr/bin/python3}
removed:
  description: Names of environments that were removed, since nothing ran from them and no unit named them.
  returned: when the link was switched
  type: list
  elements: str
"""

from ansible.module_utils.basic import AnsibleModule

from ..module_utils._formats.answers import answer_of
from ..module_utils._host.received import BUNDLE_KEY
from ..module_utils._operations.environment import ARGUMENTS, answer

OPERATIONS = {"": answer}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "source": {"type": "path", "required": True},
            "extra": {"type": "str", "choices": ["", "kubectl"], "default": ""},
            "pip_extra_args": {"type": "list", "elements": "str", "default": []},
            "bundle": {"type": "str", "default": ""},
            "bundle_key": BUNDLE_KEY,
            **ARGUMENTS,
        },
        supports_check_mode=True,
    )
    module.exit_json(**answer_of(answer(module)))


if __name__ == "__main__":
    main()
