# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which cluster a host belongs to: the certificate authorities that its kubelet believes, by their hashes.

Read-only. Every cluster has an authority of its own, and node names are the same in many clusters.
"""

from __future__ import annotations

import hashlib
from typing import Iterator, Optional, Tuple

from .._formats.certificate import certificates
from .._formats.yaml_scalars import scalars
from .._host.host import Host
from .._host.rancher import KINDS, service

_KEY = "authentication.x509.clientCAFile"
_USUAL = "/etc/kubernetes/pki/ca.crt"


def authorities(host: Host, config: Optional[str]) -> Tuple[str, ...]:
    """SHA-256 (hexadecimal) of each certificate authority that kubelet believes, sorted. config: kubelet's configuration file.

    Empty on a host that has joined no cluster.
    """
    named = scalars(host.text(config) or "").get(_KEY) if config else None
    return next(filter(None, (hashes(host.text(path) or "") for path in _paths(host, named))), ())


def _paths(host: Host, named: Optional[str]) -> Iterator[str]:
    yield from (path for path in (named, _USUAL) if path)
    # systemd is asked where those two are not there.
    for name in KINDS:
        rancher = service(host, name)
        if rancher is not None:
            yield f"{rancher.data}/agent/client-ca.crt"


def hashes(pem: str) -> Tuple[str, ...]:
    """Of the certificates in this text, in DER."""
    return tuple(sorted({hashlib.sha256(content).hexdigest() for content in certificates(pem)}))
