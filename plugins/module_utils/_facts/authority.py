# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which cluster a host belongs to: the certificate authorities that its kubelet believes, by their hashes.

Read-only. Every cluster has an authority of its own, and node names are the same in many clusters.
"""

from __future__ import annotations

import hashlib
from typing import Optional, Tuple

from .._formats.certificate import certificates
from .._formats.yaml_scalars import scalars
from .._host.host import Host
from .._host.rancher import RancherService

_KEY = "authentication.x509.clientCAFile"
_USUAL = "/etc/kubernetes/pki/ca.crt"


def authorities(host: Host, config: Optional[str], rancher: Optional[RancherService] = None) -> Tuple[str, ...]:
    """SHA-256 (hexadecimal) of each certificate authority that kubelet believes, sorted. config: kubelet's configuration file. rancher: the
    host's k3s or RKE2.

    Empty on a host that has joined no cluster.
    """
    named = scalars(host.text(config) or "").get(_KEY) if config else None
    for path in (named, _USUAL, None if rancher is None else f"{rancher.data}/agent/client-ca.crt"):
        found = hashes(host.text(path) or "") if path else ()
        if found:
            return found
    return ()


def hashes(pem: str) -> Tuple[str, ...]:
    """Of the certificates in this text, in DER."""
    return tuple(sorted({hashlib.sha256(content).hexdigest() for content in certificates(pem)}))
