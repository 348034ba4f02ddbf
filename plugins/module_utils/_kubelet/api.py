# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The facts that the API server knows of this host's node, asked with kubelet's own credentials. Reads two objects, writes nothing.

A node may read itself and its lease. Needs no kubectl, which a worker may not have.
"""

from __future__ import annotations

import base64
import http.client
import json
import os
import re
import ssl
import tempfile
import urllib.error
import urllib.request
from dataclasses import dataclass
from typing import Any, Mapping, Optional

from .._cluster.node_ready import not_ready
from .._formats.failure import Failure
from .._host.host import Host

_KEYS = (
    "server",
    "certificate-authority",
    "certificate-authority-data",
    "client-certificate",
    "client-certificate-data",
    "client-key",
    "client-key-data",
)
_LARGEST = 4 * 1024 * 1024
_TIMEOUT = 5.0


class ApiError(Failure):
    """The API server could not be asked; says why."""


@dataclass(frozen=True)
class NodeApi:
    """The API server as kubelet reaches it. context: with kubelet's certificate."""

    server: str
    context: ssl.SSLContext
    node: str

    def not_ready(self, since: float) -> Optional[str]:
        """None if the node is Ready, by a heartbeat from after `since` (Unix time); what is missing. Never raises."""
        try:
            node = self._get(f"/api/v1/nodes/{self.node}")
            lease = self._get(f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{self.node}")
        except ApiError as error:
            return str(error)
        return not_ready(node, lease, since)

    def _get(self, path: str) -> Optional[Mapping[str, Any]]:
        """The object, None if there is none, or this API server has no such kind. ApiError if it cannot be asked."""
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=self.context))
        try:
            with opener.open(self.server + path, timeout=_TIMEOUT) as reply:
                found = json.loads(reply.read(_LARGEST))
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise ApiError(f"{self.server}{path} answers {error.code}: {error.read(200)!r}") from error
        except (OSError, ValueError, http.client.HTTPException) as error:
            raise ApiError(f"{self.server}{path} cannot be read: {error}") from error
        if not isinstance(found, dict):
            raise ApiError(f"{self.server}{path} must answer an object")
        return found


def node_api(host: Host, kubeconfig: Optional[str], node: str) -> Optional[NodeApi]:
    """How kubelet reaches its API server, by its kubeconfig as kubeadm writes it; None if it has none, or one of another form."""
    text = host.text(kubeconfig) if kubeconfig else None
    if text is None:
        return None
    values = {}
    for key in _KEYS:
        found = re.findall(rf"^[ \t-]*{key}:[ \t]*[\"']?([^\s\"']+)[\"']?[ \t]*$", text, re.MULTILINE)
        if len(found) > 1:
            return None
        if found:
            values[key] = found[0]
    if not values.get("server", "").startswith("https://"):
        return None
    try:
        context = ssl.create_default_context(cadata=_pem(host, values, "certificate-authority"))
        certificate, secret = _pem(host, values, "client-certificate"), _pem(host, values, "client-key")
        if certificate is None or secret is None:
            return None
        # Python takes a certificate from a file only: this one is its owner's alone, and gone at once.
        descriptor, scratch = tempfile.mkstemp(prefix="gpushare-kubelet-")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as stream:
                stream.write(f"{certificate}\n{secret}\n")
            context.load_cert_chain(scratch)
        finally:
            os.unlink(scratch)
    except (OSError, ValueError):
        return None
    return NodeApi(values["server"].rstrip("/"), context, node)


def _pem(host: Host, values: Mapping[str, str], key: str) -> Optional[str]:
    data, path = values.get(f"{key}-data"), values.get(key)
    if data is not None:
        return base64.b64decode(data).decode()
    return host.text(path) if path is not None else None
