# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Make and judge the certificates of a host's own CA: its own, a server's, kube-scheduler's. No files, no clock."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from ipaddress import ip_address, ip_network
from typing import Final, Literal

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat, load_pem_private_key
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from gpushare_runtime.errors import GpushareError

Role = Literal["ca", "server", "client"]

LIFE: Final[dict[Role, timedelta]] = {"ca": timedelta(days=3650), "server": timedelta(days=90), "client": timedelta(days=90)}
CLIENT_NAME: Final = "gpushare-scheduler"
_USAGES: Final[dict[Role, x509.ObjectIdentifier]] = {"server": ExtendedKeyUsageOID.SERVER_AUTH, "client": ExtendedKeyUsageOID.CLIENT_AUTH}
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")
# A clock that is set back by a little after the certificate was made does no harm.
_BEFORE: Final = timedelta(hours=1)


class Broken(GpushareError, ValueError):
    """Bytes that are not the certificate or key expected; says what they are."""


@dataclass(frozen=True)
class Pair:
    """A certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def certificate_pem(self) -> bytes:
        return self.certificate.public_bytes(Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        return self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


@dataclass(frozen=True)
class Server:
    """A server and its authority. name, authority: common names; names: host names and addresses by which clients call the server.

    constrained: whether the authority can sign for these names only. So it must be where people add it to their browsers.
    """

    name: str
    authority: str
    names: tuple[str, ...] = _LOOPBACK
    constrained: bool = False

    def common_name(self, role: Role) -> str:
        """Of one of the certificates."""
        return {"ca": self.authority, "server": self.name, "client": CLIENT_NAME}[role]

    def alternative_names(self) -> x509.SubjectAlternativeName:
        return x509.SubjectAlternativeName(
            [x509.IPAddress(ip_address(name)) if _is_ip(name) else x509.DNSName(name) for name in self.names]
        )

    def constraints(self) -> x509.NameConstraints:
        return x509.NameConstraints(
            [x509.IPAddress(ip_network(name)) if _is_ip(name) else x509.DNSName(name) for name in self.names], excluded_subtrees=None
        )


EXTENDER: Final = Server("gpushare-extender", "gpushare")


def dashboard(names: Iterable[str]) -> Server:
    """The dashboard, which people call by these names and addresses, and by those of the loopback interface."""
    return Server("gpushare-dashboard", "gpushare dashboard", tuple(dict.fromkeys((*_LOOPBACK, *names))), constrained=True)


def issue(role: Role, ca: Pair | None, now: datetime, key: ec.EllipticCurvePrivateKey | None = None, server: Server = EXTENDER) -> Pair:
    """A new certificate, signed by ca, or by itself when that is None. key: to keep, None for a new one.

    A CA issued again with its key replaces the old one without a gap: each verifies what the other has signed.
    """
    key = key or ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, server.common_name(role))])
    signing = ca.key if ca else key
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(ca.certificate.subject if ca else subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BEFORE)
        .not_valid_after(now + LIFE[role])
        .add_extension(x509.BasicConstraints(ca=role == "ca", path_length=0 if role == "ca" else None), critical=True)
        .add_extension(_key_usage(role), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signing.public_key()), critical=False)
    )
    if role != "ca":
        builder = builder.add_extension(x509.ExtendedKeyUsage([_USAGES[role]]), critical=False)
    if role == "server":
        builder = builder.add_extension(server.alternative_names(), critical=False)
    if role == "ca" and server.constrained:
        builder = builder.add_extension(server.constraints(), critical=True)
    return Pair(builder.sign(signing, SHA256()), key)


def read_certificate(data: bytes) -> x509.Certificate:
    """The certificate in PEM. It raises Broken if it is not one."""
    try:
        return x509.load_pem_x509_certificate(data)
    except ValueError:
        raise Broken("is not a certificate in PEM") from None


def read_key(data: bytes) -> ec.EllipticCurvePrivateKey:
    """The private key in PEM. It raises Broken if it is not one of ours."""
    try:
        key = load_pem_private_key(data, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise Broken("is not a private key in PEM") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise Broken("is not a private key on an elliptic curve")
    return key


def belongs(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> bool:
    """Whether the certificate is that key's."""
    return _public(certificate.public_key()) == _public(key.public_key())


def fault(role: Role, certificate: x509.Certificate, ca: x509.Certificate, now: datetime, server: Server = EXTENDER) -> str:
    """Why no peer would take the certificate, to be read after its name; "" when it is good. ca: for a CA, itself."""
    try:
        certificate.verify_directly_issued_by(ca)
    except (ValueError, TypeError, InvalidSignature):
        return "is not signed by ca.crt"
    if certificate.not_valid_before_utc > now:
        return f"is not valid before {stamp(certificate.not_valid_before_utc)}, and it is {stamp(now)}"
    if certificate.not_valid_after_utc <= now:
        return f"has expired at {stamp(certificate.not_valid_after_utc)}"
    if _purpose(certificate) != _purpose_of(role, server):
        return f"is not made for the purpose ({role})"
    return ""


def left(certificate: x509.Certificate, now: datetime) -> float:
    """The part of its life that is left: 1 when it is new, 0 and less when it has expired."""
    return (certificate.not_valid_after_utc - now) / (certificate.not_valid_after_utc - certificate.not_valid_before_utc)


def stamp(time: datetime) -> str:
    """2027-02-19T10:00:00Z."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ")


def _public(key: object) -> bytes:
    encoded: bytes = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)  # type: ignore[attr-defined]
    return encoded


def _purpose(certificate: x509.Certificate) -> list[x509.ExtensionType]:
    kinds = (x509.BasicConstraints, x509.ExtendedKeyUsage, x509.SubjectAlternativeName, x509.NameConstraints)
    return [extension.value for extension in certificate.extensions if isinstance(extension.value, kinds)]


def _purpose_of(role: Role, server: Server) -> list[x509.ExtensionType]:
    if role == "ca":
        authority: list[x509.ExtensionType] = [x509.BasicConstraints(ca=True, path_length=0)]
        return [*authority, server.constraints()] if server.constrained else authority
    usage: list[x509.ExtensionType] = [x509.BasicConstraints(ca=False, path_length=None), x509.ExtendedKeyUsage([_USAGES[role]])]
    return [*usage, server.alternative_names()] if role == "server" else usage


def _is_ip(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _key_usage(role: Role) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=role != "ca",
        key_cert_sign=role == "ca",
        crl_sign=role == "ca",
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
