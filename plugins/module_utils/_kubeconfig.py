# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The kubeconfig of one of our daemons, from its token Secret.

Private to this collection. Pure.
"""

from __future__ import annotations

import base64
import json
from typing import Any, Mapping, Optional


class NoClusterError(ValueError):
    """A kubeconfig does not say where the API server is."""


def kubeconfig(secret: Mapping[str, Any], server: str, user: str) -> Optional[str]:
    """A kubeconfig (JSON, which is YAML) with the Secret's token and CA; None while the Secret has none yet."""
    data = secret.get("data") or {}
    if not data.get("token") or not data.get("ca.crt"):
        return None
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "cluster", "cluster": {"server": server, "certificate-authority-data": data["ca.crt"]}}],
        "users": [{"name": user, "user": {"token": base64.b64decode(data["token"]).decode()}}],
        "contexts": [{"name": "default", "context": {"cluster": "cluster", "user": user}}],
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
