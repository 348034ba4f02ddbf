# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The options of modules that reach the API server through the host's own kubectl."""

from __future__ import annotations


class ModuleDocFragment:
    """kubectl and the kubeconfig that it uses."""

    DOCUMENTATION = r"""
options:
  kubectl: {description: "Name or path of the host's kubectl.", type: str, default: kubectl}
  kubeconfig:
    description: Path on the host of a kubeconfig that may do what the module does, usually the administrator's.
    type: path
    default: /etc/kubernetes/admin.conf
"""
