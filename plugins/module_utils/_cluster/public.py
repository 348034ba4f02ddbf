# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The facts that every user of the cluster may read of gpushare: where Prometheus is, for `kubectl gpushare top`.

Pure. Of the namespace kube-public users may read by default only what Kubernetes itself has there, so the right to read this one ConfigMap
goes with it.
"""

from __future__ import annotations

import re
from typing import Any, Dict, List, Mapping

PUBLIC = "kube-public"
NAME = "gpushare-info"
_URL = re.compile(r"https?://[A-Za-z0-9.:\[\]/_~%-]{1,300}")
_RBAC_GROUP = "rbac.authorization.k8s.io"


def public(prometheus: str) -> List[Dict[str, Any]]:
    """The ConfigMap and the right to read it; none without an address. ValueError for text that is not a URL."""
    if not prometheus:
        return []
    if not _URL.fullmatch(prometheus):
        raise ValueError(f"gpushare_prometheus: found {prometheus[:80]!r}; expected a URL such as http://prometheus.monitoring:9090")
    metadata = {"name": NAME, "namespace": PUBLIC}
    rule = {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["get"], "resourceNames": [NAME]}
    everybody = {"kind": "Group", "apiGroup": _RBAC_GROUP, "name": "system:authenticated"}
    role = {"apiGroup": _RBAC_GROUP, "kind": "Role", "name": NAME}
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"prometheus": prometheus}},
        {"apiVersion": f"{_RBAC_GROUP}/v1", "kind": "Role", "metadata": metadata, "rules": [rule]},
        {"apiVersion": f"{_RBAC_GROUP}/v1", "kind": "RoleBinding", "metadata": metadata, "roleRef": role, "subjects": [everybody]},
    ]


def is_public(item: Mapping[str, Any]) -> bool:
    """Whether it is one of these objects, and nothing else."""
    address = str((item.get("data") or {}).get("prometheus", "http://any"))
    return bool(_URL.fullmatch(address)) and item in public(address)
