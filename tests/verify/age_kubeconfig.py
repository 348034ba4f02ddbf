# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Runs on a control plane: the client certificate in a kubeconfig as it would be some days before its end, by the cluster's authority.

Arguments: the kubeconfig, the folder of the authority, the days, below zero for a certificate that has ended.
"""

from __future__ import annotations

import base64
import re
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey

FIELD = re.compile(r"(client-certificate-data: *)(\S+)")


def main() -> None:
    kubeconfig, folder, days = Path(sys.argv[1]), Path(sys.argv[2]), float(sys.argv[3])
    text = kubeconfig.read_text()
    found = FIELD.search(text)
    if found is None:
        sys.exit(f"{kubeconfig} has no client-certificate-data; expected a kubeconfig of kubeadm")
    old = x509.load_pem_x509_certificate(base64.b64decode(found[2]))
    authority = x509.load_pem_x509_certificate((folder / "ca.crt").read_bytes())
    key = serialization.load_pem_private_key((folder / "ca.key").read_bytes(), None)
    if not isinstance(key, EllipticCurvePrivateKey | RSAPrivateKey):
        sys.exit(f"{folder}/ca.key must be of an elliptic curve or RSA, found {type(key).__name__}")
    end = datetime.now(timezone.utc) + timedelta(days=days)
    builder = (
        x509.CertificateBuilder()
        .subject_name(old.subject)
        .issuer_name(authority.subject)
        .public_key(old.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(end - timedelta(days=365))
        .not_valid_after(end)
    )
    for extension in old.extensions:
        builder = builder.add_extension(extension.value, extension.critical)
    pem = builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    kubeconfig.write_text(FIELD.sub(lambda match: match[1] + base64.b64encode(pem).decode(), text))


main()
