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

_KEY = "authentication.x509.clientCAFile"
_USUAL = ("/etc/kubernetes/pki/ca.crt", "/var/lib/rancher/rke2/agent/client-ca.crt", "/var/lib/rancher/k3s/agent/client-ca.crt")


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
    return tuple(sorted({hashlib.sha256(content).hexdigest() for content in certificates(pem)}))
