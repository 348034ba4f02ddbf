# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Runs on a control plane: the extender's certificate as it would be had it run out yesterday, signed by the same authority."""

from __future__ import annotations

import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey


def main() -> None:
    folder = Path(sys.argv[1])
    old = x509.load_pem_x509_certificate((folder / "extender.crt").read_bytes())
    authority = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    if not isinstance(key, EllipticCurvePrivateKey):
        sys.exit(f"{folder}/ca.key must be an elliptic curve's, found {type(key).__name__}")
    yesterday = datetime.now(timezone.utc) - timedelta(days=1)
    builder = (
        x509.CertificateBuilder()
        .subject_name(old.subject)
        .issuer_name(authority.subject)
        .public_key(old.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(yesterday - timedelta(days=90))
        .not_valid_after(yesterday)
    )
    for extension in old.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    (folder / "extender.crt").write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))


main()
