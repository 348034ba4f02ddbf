#!/usr/bin/python
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpushare_packages
short_description: "Private: install a set of packages at exact versions from a signed repository, and hold them there"
version_added: 0.1.0
description:
  - The roles C(nvidia_container_toolkit) and C(nvidia_driver) use this module. Its options may change in any release.
  - Works with apt (Debian, Ubuntu), dnf 4 (RHEL and its rebuilds) and zypper (SUSE).
  - Before anything is changed, fetches the repository with its key into a scratch folder and lets the package manager resolve the packages
    there. Rejects a plan that would remove a package that O(replaces) does not name.
  - Writes the repository and its key, installs the packages, and holds them. Records in the host's journal how each file and each package
    was before.
  - If all packages are as required, connects to no repository.
  - The scripts of packages call C(systemctl daemon-reload). If that would take the GPUs from a running container, the module rejects a
    change of packages. With O(state=absent) the packages stay then, and RV(left) has them.
author: gpushare.kubernetes contributors (@gpushare)
extends_documentation_fragment:
  - gpushare.kubernetes.attributes
  - gpushare.kubernetes.attributes.changes
  - gpushare.kubernetes.bundle
  - gpushare.kubernetes.bundle.received
options:
  owner:
    description: Name under which the journal records the changes, usually the role. With O(state=absent), empty for all of them.
    type: str
    default: ""
  state:
    description:
      - With V(absent), restores the files, releases the packages, and removes those that were not there before.
      - A package that was there before returns to its old version if a repository of the host still has it.
    type: str
    choices: [present, absent]
    default: present
  packages:
    description: The packages.
    type: list
    elements: dict
    default: []
    suboptions:
      name: {description: Name of the package., type: str, required: true}
      version: {description: "Version, whole or without revision, such as V(1.17.8-1) or V(1.17.8). Empty for any.", type: str, default: ""}
  version: {description: Version of those packages that have none of their own., type: str, default: ""}
  minimum:
    description: The oldest version that is accepted of any of the packages, without epoch and revision. Empty for any.
    type: str
    default: ""
  repository:
    description: The repository of the packages. By default the repositories that the host has.
    type: dict
    suboptions:
      name: {description: "Name of its files, in small letters.", type: str, required: true}
      url: {description: "Its address. For dnf it may hold dnf's variables.", type: str, required: true}
      suite: {description: "For apt, its suite, or a path that ends in C(/).", type: str, default: /}
      components: {description: "For apt, its components; none for a path.", type: list, elements: str, default: []}
      key: {description: "The public keys, as text, or the URL or absolute path of their file.", type: str, required: true}
      fingerprints:
        description:
          - The whole fingerprints of all keys that O(repository.key) may hold, and of those of their subkeys that are trusted.
          - A subkey that is not named is left out.
        type: list
        elements: str
        required: true
      package_signatures:
        description: For dnf and zypper, whether each package must be signed, too. The metadata must always be.
        type: bool
        default: true
      replaces:
        description: Addresses of repositories on the host that this one takes the place of.
        type: list
        elements: str
        default: []
      version:
        description:
          - For apt, the upstream version that it prefers for every package, in a file below C(/etc/apt/preferences.d). Without it, apt
            takes the newest version of packages that the named ones need, and does not find an older set. Empty for none.
        type: str
        default: ""
      modules:
        description: For dnf, the modules of the repository that are disabled, so that an installation enables none of their streams.
        type: list
        elements: str
        default: []
  folder:
    description:
      - Folder on the host with package files, which are used before those of a repository. Only root may write them and their folders.
    type: str
    default: ""
  bundle:
    description:
      - A bundle on the controller with package files for the host's distribution. The host gets them if it lacks a package, and they are
        used before those of a repository.
    type: str
    default: ""
  replaces: {description: Packages that may be removed because they conflict with the packages., type: list, elements: str, default: []}
  hold: {description: Whether upgrades of the host pass the packages over., type: bool, default: true}
  yields:
    description: Whether to change nothing on a host whose container toolkit someone else manages.
    type: bool
    default: false
  keep: {description: "With O(state=absent), whether the packages stay in the versions that they have.", type: bool, default: false}
  allow_daemon_reload:
    description: Whether packages may change although their C(systemctl daemon-reload) takes the GPUs from running containers.
    type: bool
    default: false
  timeout: {description: Seconds within which the package manager must finish a step., type: int, default: 1800}
"""

EXAMPLES = r"""
- name: Install the toolkit
  gpushare.kubernetes.gpushare_packages:
    owner: nvidia_container_toolkit
    packages:
      - name: nvidia-container-toolkit
        version: 1.17.8
    repository:
      name: nvidia-container-toolkit
      url: https://nvidia.github.io/libnvidia-container/stable/deb/amd64
      key: https://nvidia.github.io/libnvidia-container/gpgkey
      fingerprints: [C95B321B61E88C1809C4F759DDCAE044F796ECB0]
"""

RETURN = r"""
manager: {description: The package manager., returned: success, type: str, sample: apt}
versions: {description: "The version of each package, by name; null for a package that is not installed.", returned: success, type: dict}
steps:
  description: The packages that were changed (in check mode, would be), also those that others need.
  returned: success
  type: list
  elements: dict
  contains:
    name: {description: Name of the package., type: str}
    before: {description: "Its version before, null if it was not installed.", type: str}
    after: {description: "Its version after, null if it was removed.", type: str}
held: {description: "The packages that were put on hold, or with O(state=absent) released.", returned: success, type: list, elements: str}
files: {description: "The files that were changed (in check mode, would be).", returned: success, type: list, elements: str}
left:
  description: With O(state=absent), the items that stay, and why.
  returned: success
  type: list
  elements: dict
  contains:
    what: {description: A package or a file., type: str}
    why: {description: The reason as a message., type: str}
notes: {description: Further remarks for people., returned: success, type: list, elements: str}
"""

import os
from contextlib import nullcontext
from typing import Any, Optional

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.urls import open_url

from ..module_utils._change.undo import Rejected
from ..module_utils._daemon.daemon_reload import exposed
from ..module_utils._facts.system import system
from ..module_utils._formats.answers import answer_of
from ..module_utils._host import command
from ..module_utils._host.answering import changing
from ..module_utils._host.host import Host
from ..module_utils._host.others import toolkit_manager
from ..module_utils._host.received import BUNDLE_KEY, RECEIVED, unpacked
from ..module_utils._packages import openpgp
from ..module_utils._packages.converge import PackagesAnswer, PackagesResult, absent, lacks, manager_of, owners, present, together
from ..module_utils._packages.model import STEP_SECONDS, Package, PackageSet, Repository

REPOSITORY = {
    "name": {"type": "str", "required": True},
    "url": {"type": "str", "required": True},
    "suite": {"type": "str", "default": "/"},
    "components": {"type": "list", "elements": "str", "default": []},
    "key": {"type": "str", "required": True, "no_log": False},
    "fingerprints": {"type": "list", "elements": "str", "required": True},
    "package_signatures": {"type": "bool", "default": True},
    "replaces": {"type": "list", "elements": "str", "default": []},
    "version": {"type": "str", "default": ""},
    "modules": {"type": "list", "elements": "str", "default": []},
}
_KEY_SECONDS = 30
BOOTED = "/run/systemd/system"


def repository_of(params: "Optional[dict[str, Any]]") -> Optional[Repository]:
    """The repository, with its keys read and compared. It raises Rejected if they are not those that are expected."""
    if params is None:
        return None
    try:
        data = openpgp.key_file(params["key"], lambda url: bytes(open_url(url, timeout=_KEY_SECONDS).read(openpgp.LIMIT + 1)))
        keys = openpgp.pinned(openpgp.read_keys(data), params["fingerprints"])
    except openpgp.PublicKeyError as error:
        raise Rejected(f"the key of the repository {params['name'][:80]} is not trusted: {error}; nothing was changed") from error
    return Repository(
        params["name"],
        params["url"],
        tuple(keys),
        params["suite"],
        tuple(params["components"]),
        params["package_signatures"],
        tuple(params["replaces"]),
        params["version"],
        tuple(params["modules"]),
    )


def answer(module: AnsibleModule) -> PackagesAnswer:
    """Install, hold or remove them."""
    params = module.params
    others = toolkit_manager(Host()) if params["yields"] and params["state"] == "present" else ""
    if others:
        return PackagesAnswer(notes=[f"{others} manages these packages on this host: nothing was changed"])

    def hurt() -> Optional[str]:
        # Where systemd does not run, the scripts do not ask it.
        return exposed(module.run_command) if os.path.isdir(BOOTED) and not params["allow_daemon_reload"] else None

    with changing(module):
        if params["state"] == "absent":
            named = [params["owner"]] if params["owner"] else owners()
            result = PackagesResult()
            # A host whose packages have not been changed may have a package manager that is not known here.
            if named:
                manager = manager_of(command.run, params["timeout"], Host())
                result = together([absent(owner, manager, module.check_mode, params["keep"], exposed=hurt) for owner in named])
        else:
            manager = manager_of(command.run, params["timeout"], Host())
            packages = tuple(Package(package["name"], package["version"] or params["version"]) for package in params["packages"])
            received = params["received"]
            if params["bundle"] and not received and lacks(packages, manager):
                return PackagesAnswer(missing=True, system=system(Host()))
            with unpacked(received["path"], received["sha256"]) if received else nullcontext(params["folder"]) as folder:
                wanted = PackageSet(
                    params["owner"],
                    packages,
                    repository_of(params["repository"]),
                    folder,
                    tuple(params["replaces"]),
                    params["hold"],
                    params["minimum"],
                )
                result = present(wanted, manager, module.check_mode, exposed=hurt)
        return PackagesAnswer(**vars(result))


OPERATIONS = {"": answer}


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "owner": {"type": "str", "default": ""},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "packages": {
                "type": "list",
                "elements": "dict",
                "default": [],
                "options": {"name": {"type": "str", "required": True}, "version": {"type": "str", "default": ""}},
            },
            "version": {"type": "str", "default": ""},
            "minimum": {"type": "str", "default": ""},
            "repository": {"type": "dict", "options": REPOSITORY},
            "folder": {"type": "str", "default": ""},
            "bundle": {"type": "str", "default": ""},
            "bundle_key": BUNDLE_KEY,
            "received": RECEIVED,
            "replaces": {"type": "list", "elements": "str", "default": []},
            "hold": {"type": "bool", "default": True},
            "yields": {"type": "bool", "default": False},
            "keep": {"type": "bool", "default": False},
            "allow_daemon_reload": {"type": "bool", "default": False},
            "timeout": {"type": "int", "default": STEP_SECONDS},
        },
        required_if=[("state", "present", ["owner", "packages"])],
        supports_check_mode=True,
    )
    module.exit_json(**answer_of(answer(module)))


if __name__ == "__main__":
    main()
