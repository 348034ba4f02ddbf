# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which cluster a host belongs to: the certificate authorities that its kubelet believes, by their hashes.

Read-only. Every cluster has an authority of its own, and node names are the same in many clusters.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from typing import Optional, Tuple

from .._formats.yaml_scalars import scalars
from .._host.host import Host

_KEY = "authentication.x509.clientCAFile"
_USUAL = ("/etc/kubernetes/pki/ca.crt", "/var/lib/rancher/rke2/agent/client-ca.crt", "/var/lib/rancher/k3s/agent/client-ca.crt")
_PEM = re.compile(r"-----BEGIN CERTIFICATE-----([A-Za-z0-9+/=\s]{1,20000})-----END CERTIFICATE-----")
#: While an authority is exchanged there are two.
_MOST = 8


def authorities(host: Host, config: Optional[str]) -> Tuple[str, ...]:
    """SHA-256 (hexadecimal) of each certificate authority that kubelet believes, sorted. config: kubelet's configuration file.

    Empty on a host that has joined no cluster.
    """
    named = scalars(host.text(config) or "").get(_KEY) if config else None
    for path in (named, *_USUAL):
        found = hashes(host.text(path) or "") if path else ()
        if found:
            return found
    return ()


def hashes(pem: str) -> Tuple[str, ...]:
    """Of the certificates in this text, in DER."""
    found = set()
    for match in list(_PEM.finditer(pem))[:_MOST]:
        try:
            content = base64.b64decode("".join(match.group(1).split()), validate=True)
        except (binascii.Error, ValueError):
            continue
        if content:
            found.add(hashlib.sha256(content).hexdigest())
    return tuple(sorted(found))
