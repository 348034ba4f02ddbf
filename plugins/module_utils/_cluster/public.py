# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The facts that every user of the cluster may read of gpushare: the sizes of the GPUs, and where Prometheus is.

Pure. Of the namespace kube-public users may read by default only what Kubernetes itself has there, so the right to read these ConfigMaps
goes with them. They are two, because the extender writes the sizes: it must not choose the Prometheus to which people send their tokens.
"""

from __future__ import annotations

import re
from typing import Any, Dict, List, Mapping, Sequence

from .._formats.credentials import without_credentials
from .names import EXTENDER, NAMESPACE

PUBLIC = "kube-public"
NAME = "gpushare-info"
SIZES = "gpushare-gpus"
EXPECTED = "a URL such as http://prometheus.monitoring:9090"
_LABELS = {"app.kubernetes.io/part-of": "gpushare"}
_SCHEDULER = "gpushare-scheduler"
_URL = re.compile(r"https?://[A-Za-z0-9.:\[\]/_~%-]{1,300}")
_RBAC_GROUP = "rbac.authorization.k8s.io"


def is_address(prometheus: str) -> bool:
    """Whether a text is empty or a URL."""
    return not prometheus or _URL.fullmatch(prometheus) is not None


def public(prometheus: str, account: str, namespace: str) -> List[Dict[str, Any]]:
    """The ConfigMaps and the rights to them; of Prometheus none without an address. ValueError for text that is not a URL.

    account, namespace: of the ServiceAccount that writes the sizes. Its values stay when these objects are applied again.
    """
    if not is_address(prometheus):
        raise ValueError(f"gpushare_prometheus: found {without_credentials(prometheus)[:80]!r}; expected {EXPECTED}")
    info = [{"apiVersion": "v1", "kind": "ConfigMap", "metadata": _metadata(NAME), "data": {"prometheus": prometheus}}]
    readers = {"kind": "Group", "apiGroup": _RBAC_GROUP, "name": "system:authenticated"}
    writer = {"kind": "ServiceAccount", "name": account, "namespace": namespace}
    return [
        # Without a field of ours the API server would not know whose it is.
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {**_metadata(SIZES), "labels": _LABELS}},
        *(info if prometheus else []),
        *_right(NAME, "get", [NAME, SIZES], readers),
        *_right(SIZES, "patch", [SIZES], writer),
    ]


def _metadata(name: str) -> Dict[str, str]:
    return {"name": name, "namespace": PUBLIC}


def _right(name: str, verb: str, config_maps: Sequence[str], subject: Mapping[str, str]) -> List[Dict[str, Any]]:
    rule = {"apiGroups": [""], "resources": ["configmaps"], "verbs": [verb], "resourceNames": list(config_maps)}
    role = {"apiGroup": _RBAC_GROUP, "kind": "Role", "name": name}
    return [
        {"apiVersion": f"{_RBAC_GROUP}/v1", "kind": "Role", "metadata": _metadata(name), "rules": [rule]},
        {
            "apiVersion": f"{_RBAC_GROUP}/v1",
            "kind": "RoleBinding",
            "metadata": _metadata(name),
            "roleRef": role,
            "subjects": [dict(subject)],
        },
    ]


def is_public(item: Mapping[str, Any], pods_namespace: str = "") -> bool:
    """Whether it is one of these objects, and nothing else. pods_namespace: of daemons that are pods, "" for none."""
    address = str((item.get("data") or {}).get("prometheus", "http://any"))
    if not address or not _URL.fullmatch(address):
        return False
    writers = [(account, pods_namespace) for account in (EXTENDER, _SCHEDULER)] if pods_namespace else [(EXTENDER, NAMESPACE)]
    return any(item in public(address, *writer) for writer in writers)
