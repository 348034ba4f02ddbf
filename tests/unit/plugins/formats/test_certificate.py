# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The end of a certificate, as another reader of X.509 has it."""

from __future__ import annotations

import base64
from datetime import datetime, timezone

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._formats.certificate import certificates, client_life_of, life_of
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import NameOID
from hypothesis import given
from hypothesis import strategies as st

KEY = ec.generate_private_key(ec.SECP256R1())
BEGIN = datetime(2026, 1, 1, tzinfo=timezone.utc)


def made(end: datetime, key: ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey = KEY, organization: str = "system:nodes") -> str:
    name = x509.Name(
        [x509.NameAttribute(NameOID.ORGANIZATION_NAME, organization), x509.NameAttribute(NameOID.COMMON_NAME, "system:node:a")]
    )
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), BEGIN, end)
    return builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM).decode()


def end_of(pem: str) -> float | None:
    life = life_of(pem)
    return None if life is None else life[1]


WHOLE = certificates(made(datetime(2027, 1, 2, tzinfo=timezone.utc)))[0]


@pytest.mark.parametrize(
    "end", [datetime(2027, 11, 29, 23, 59, 58), datetime(2049, 12, 31, 23, 59, 59), datetime(2050, 1, 1), datetime(9999, 12, 31)]
)
def test_the_end_of_a_certificate_in_both_forms_of_time(end: datetime) -> None:
    assert end_of(made(end.replace(tzinfo=timezone.utc))) == end.replace(tzinfo=timezone.utc).timestamp()


def test_the_first_certificate_of_a_file_with_its_key_and_its_chain_counts() -> None:
    """As kubelet keeps both in kubelet-client-current.pem."""
    first, second = datetime(2027, 1, 2, tzinfo=timezone.utc), datetime(2036, 1, 2, tzinfo=timezone.utc)
    key = KEY.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
    ).decode()
    rsa_key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    chain = made(first, rsa_key, "x" * 64) + made(second) + key
    assert end_of(chain) == first.timestamp()
    assert len(certificates(chain)) == 2
    assert life_of(chain) == (BEGIN.timestamp(), first.timestamp())
    assert end_of(key) is end_of("") is None


@pytest.mark.parametrize(
    "form", ["    client-certificate-data: {}\n", '  "client-certificate-data":"{}",\n', "- {{client-certificate-data: '{}'}}\n"]
)
def test_the_client_certificate_in_a_kubeconfig(form: str) -> None:
    end = datetime(2027, 1, 2, tzinfo=timezone.utc)
    data = base64.b64encode(made(end).encode()).decode()
    authority = f"    certificate-authority-data: {base64.b64encode(made(BEGIN.replace(year=2036)).encode()).decode()}\n"
    assert client_life_of(authority + form.format(data)) == (BEGIN.timestamp(), end.timestamp())
    assert client_life_of(authority) is client_life_of("") is client_life_of(form.format("no===")) is None
    assert client_life_of("client-certificate: /var/lib/kubelet/pki/kubelet-client-current.pem\n") is None


@given(st.binary(min_size=1, max_size=200))
def test_whatever_else_stands_between_the_lines_has_no_end(content: bytes) -> None:
    pem = f"-----BEGIN CERTIFICATE-----\n{base64.b64encode(content).decode()}\n-----END CERTIFICATE-----\n"
    assert end_of(pem) is None


@given(st.data())
def test_a_damaged_certificate_gives_an_end_or_none_and_never_fails(data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(WHOLE) - 1))
    content = WHOLE[:at] + data.draw(st.binary(max_size=3)) + WHOLE[at + data.draw(st.integers(0, 3)) :]
    found = end_of(f"-----BEGIN CERTIFICATE-----\n{base64.b64encode(content).decode()}\n-----END CERTIFICATE-----")
    assert found is None or isinstance(found, float)
