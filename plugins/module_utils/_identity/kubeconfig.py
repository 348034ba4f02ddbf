# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The kubeconfig of one of our daemons: where the API server is and how to know it. No secret: the daemon has its token apart.

Pure.
"""

from __future__ import annotations

import base64
import json
from typing import Any, Mapping, Optional, Tuple

from .._formats.failure import Failure


class NoClusterError(Failure, ValueError):
    """A kubeconfig does not say where the API server is, or the cluster not what its certificate authority is."""


def daemon_kubeconfig(server: str, ca: str) -> str:
    """A kubeconfig (JSON, which is YAML) for the API server at that URL; ca: its certificate authority, PEM."""
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [
            {"name": "cluster", "cluster": {"server": server, "certificate-authority-data": base64.b64encode(ca.encode()).decode()}}
        ],
        "users": [{"name": "daemon", "user": {}}],
        "contexts": [{"name": "default", "context": {"cluster": "cluster", "user": "daemon"}}],
        "current-context": "default",
    }
    return json.dumps(content, indent=2) + "\n"


def api_server(view: Mapping[str, Any]) -> str:
    """The API server's URL in what `kubectl config view --minify -o json` prints."""
    clusters = view.get("clusters") or []
    server = clusters[0].get("cluster", {}).get("server") if clusters else None
    if not server:
        raise NoClusterError("the administrator's kubeconfig names no API server; set gpushare_api_server to its https:// address")
    return str(server)


def root_ca(config_map: Optional[Mapping[str, Any]]) -> str:
    """The PEM in the ConfigMap kube-root-ca.crt, which the cluster puts into every namespace."""
    found = ((config_map or {}).get("data") or {}).get("ca.crt")
    if not found:
        raise NoClusterError(
            "the cluster has no ConfigMap kube-system/kube-root-ca.crt with its certificate authority; "
            "kube-controller-manager makes it: is it running?"
        )
    return str(found)


def where(text: Optional[str]) -> Optional[Tuple[str, str]]:
    """(the API server's URL, its certificate authority as PEM) in a kubeconfig of ours; None if it is none."""
    try:
        cluster = json.loads(text or "")["clusters"][0]["cluster"]
        return str(cluster["server"]), base64.b64decode(cluster["certificate-authority-data"]).decode()
    except (IndexError, KeyError, TypeError, ValueError):
        return None
