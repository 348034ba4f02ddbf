# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""OpenShift admits our pods by these objects: SecurityContextConstraints of the device plugin, and the rights to use them.

Pure. The fields are those of openshift/api, security/v1/types.go (read on 2026-11-25), all of which that type requires.
"""

from __future__ import annotations

from ...module_utils._cluster.names import DASHBOARD
from . import accounts
from .policies import PLUGIN, SCHEDULER, Json

GROUP = "security.openshift.io"
KIND = "SecurityContextConstraints"
#: OpenShift's own, for pods with a user of their choice that is not root; from 4.11 on.
NONROOT = "nonroot-v2"
#: Without it OpenShift replaces the labels for pod security of a namespace, by what its accounts may use.
NAMESPACE_LABELS = {"security.openshift.io/scc.podSecurityLabelSync": "false"}


def constraints() -> Json:
    """The rights of the device plugin's pod, no more: root without capabilities, folders and processes of the host, any SELinux type."""
    return {
        "apiVersion": f"{GROUP}/v1",
        "kind": KIND,
        "metadata": {"name": PLUGIN},
        "allowHostDirVolumePlugin": True,
        "allowHostIPC": False,
        "allowHostNetwork": False,
        "allowHostPID": True,
        "allowHostPorts": False,
        "allowPrivilegeEscalation": False,
        "allowPrivilegedContainer": False,
        "allowedCapabilities": [],
        "defaultAddCapabilities": [],
        "fsGroup": {"type": "RunAsAny"},
        "priority": None,
        "readOnlyRootFilesystem": True,
        "requiredDropCapabilities": ["ALL"],
        "runAsUser": {"type": "RunAsAny"},
        "seLinuxContext": {"type": "RunAsAny"},
        "seccompProfiles": ["runtime/default"],
        "supplementalGroups": {"type": "RunAsAny"},
        # The account's token is a projected volume.
        "volumes": ["hostPath", "projected"],
    }


def objects(namespace: str, dashboard: bool = False) -> list[Json]:
    """The objects, those first that others need. Scheduler and dashboard take OpenShift's own constraints for pods without root."""
    found = [constraints()]
    for account, constraint in ((PLUGIN, PLUGIN), (SCHEDULER, NONROOT), *(((DASHBOARD, NONROOT),) if dashboard else ())):
        name = f"{account}-scc"
        rules = [accounts.rule(GROUP, ["securitycontextconstraints"], ["use"], [constraint])]
        found += [accounts.role_of(name, rules, namespace), accounts.role_binding(name, name, account, namespace, namespace)]
    return found
