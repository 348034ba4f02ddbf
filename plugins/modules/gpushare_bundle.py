# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpushare_bundle
short_description: "Private: make one archive with all that hosts without a network need"
version_added: 0.1.0
description:
  - The role C(bundle) uses this module. Its options may change in any release.
  - Writes C(gpushare-bundle-VERSION.tar) with this collection, the runtime's wheel, its locked dependencies for each version of Python
    and architecture, container images, the Helm chart, packages, a bill of materials and checksums.
  - The same input makes the same bytes, except for the signature.
  - Works on the controller and reaches no host. Needs pip and a package index.
author: gpushare.kubernetes contributors (@gpushare)
extends_documentation_fragment:
  - gpushare.kubernetes.attributes
attributes:
  check_mode:
    support: partial
    details: Says that there would be a change, because what is downloaded decides.
  diff_mode:
    support: none
  idempotent:
    support: full
options:
  folder: {description: Folder for the bundle., type: path, required: true}
  pythons:
    description: Versions of Python that get wheels. By default all that the runtime supports.
    type: list
    elements: str
    choices: ["3.10", "3.11", "3.12", "3.13", "3.14"]
    default: []
  architectures:
    description: Architectures that get wheels. By default both.
    type: list
    elements: str
    choices: [x86_64, aarch64]
    default: []
  images: {description: Archives of container images., type: list, elements: path, default: []}
  packages:
    description: The administrator's packages.
    type: list
    elements: dict
    default: []
    suboptions:
      system: {description: "Distribution of the hosts that get them, such as V(debian-12).", type: str, required: true}
      architecture: {description: Architecture of these hosts., type: str, choices: [x86_64, aarch64], default: x86_64}
      names: {description: "Names of packages to download by apt-get, dnf or zypper.", type: list, elements: str, default: []}
      folder: {description: Folder with files of packages., type: path, default: ""}
  sign: {description: Key of gpg that signs the checksums. Empty for no signature., type: str, default: ""}
  pip_extra_args: {description: More arguments for C(pip download)., type: list, elements: str, default: []}
"""

EXAMPLES = r"""
- name: Make the bundle
  gpushare.kubernetes.gpushare_bundle:
    folder: /srv
"""

RETURN = r"""
bundle: {description: The bundle., returned: outside check mode, type: str, sample: /srv/gpushare-bundle-0.1.0.tar}
sha256: {description: Its SHA-256., returned: outside check mode, type: str}
bytes: {description: Its bytes., returned: outside check mode, type: int}
files: {description: How many files it has., returned: outside check mode, type: int}
"""
