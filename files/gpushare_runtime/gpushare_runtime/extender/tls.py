# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The extender's side of TLS: its own certificate, and the CA whose client certificates it believes."""

from __future__ import annotations

import asyncio
import logging
import ssl
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Final, NoReturn

from gpushare_runtime.daemon.runner import FatalError

log = logging.getLogger(__name__)

LOOK_SECONDS: Final = 60.0
"""Between two looks at the files: in a pod nobody sends a signal once they are renewed."""
_BEGIN: Final = "-----BEGIN CERTIFICATE-----"
_END: Final = "-----END CERTIFICATE-----"
_UTC_TIME: Final = 0x17


@dataclass(frozen=True)
class TlsFiles:
    """PEM files: the server's certificate and key, and the CA of the clients."""

    certificate: Path
    key: Path
    client_ca: Path

    def stamps(self) -> list[tuple[int, int]]:
        """The files that differ after a file was replaced; nothing where one is not there."""
        try:
            return [(found.st_ino, found.st_mtime_ns) for found in (path.stat() for path in (self.certificate, self.key, self.client_ca))]
        except OSError:
            return []

    def context(self) -> ssl.SSLContext:
        """A server's context that asks for a client certificate, and does without. FatalError if the files are not good."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        # kube-scheduler has it since 1.14; what is older cannot call us anyway.
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.verify_mode = ssl.CERT_OPTIONAL
        # Go's client in kube-scheduler keeps no sessions: tickets would be made, encrypted and sent for nothing.
        context.num_tickets = 0
        for path in (self.certificate, self.key, self.client_ca):
            try:
                path.read_bytes()
            except OSError as error:
                raise FatalError(f"{path}: {error.strerror}; expected PEM. `gpushare-pki ensure` makes the certificates") from None
        try:
            context.load_cert_chain(self.certificate, self.key, password=lambda: b"")
        except ssl.SSLError as error:
            raise FatalError(
                f"{self.certificate} and {self.key}: {error.reason or error}; expected a certificate and its key in PEM. "
                "`gpushare-pki status` says what is wrong, `gpushare-pki ensure` makes new ones"
            ) from None
        try:
            context.load_verify_locations(self.client_ca)
        except ssl.SSLError as error:
            raise FatalError(
                f"{self.client_ca}: {error.reason or error}; expected the CA of the scheduler's certificate in PEM. "
                "`gpushare-pki status` says what is wrong, `gpushare-pki ensure` makes a new one"
            ) from None
        return context


class Tls:
    """A context for a listening socket that follows its files. FatalError if they are not good at first."""

    def __init__(self, files: TlsFiles) -> None:
        self.files = files
        self.context = self._newest = files.context()
        self._certificate_ends = _end_of(files.certificate)
        # OpenSSL calls it for each handshake, with or without a server name.
        self.context.sni_callback = self._choose

    def ends(self) -> tuple[float | None, float | None]:
        """When the certificate in use and the newest CA of clients expire, Unix time in seconds; None for what cannot be read."""
        authorities = [
            ssl.cert_time_to_seconds(str(authority["notAfter"])) for authority in self._newest.get_ca_certs() if "notAfter" in authority
        ]
        return self._certificate_ends, max(authorities, default=None)

    def reload(self) -> None:
        """Read the files again for the handshakes to come. FatalError if they are not good now: then what was read before stays."""
        self._newest = self.files.context()
        self._certificate_ends = _end_of(self.files.certificate)

    async def follow(self, reload: asyncio.Event, seconds: float = LOOK_SECONDS) -> NoReturn:
        """Read the files again whenever `reload` is set, or they are others after so many seconds. Never returns; cancel it."""
        while True:
            before = self.files.stamps()
            try:
                await asyncio.wait_for(reload.wait(), seconds)
            except asyncio.TimeoutError:
                if self.files.stamps() == before:
                    continue
            reload.clear()
            try:
                self.reload()
            except FatalError as error:
                log.error("not reloaded, the certificate read before stays in use: %s", error)
            else:
                log.info("reloaded %s and %s for new connections", self.files.certificate, self.files.client_ca)

    def _choose(self, connection: ssl.SSLSocket | ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        if context is not self._newest:
            connection.context = self._newest


def _end_of(file: Path) -> float | None:
    """When the first certificate of a PEM file expires; None if that cannot be read.

    The module `ssl` shows the times of other certificates only, and `cryptography` takes 15 MB of the daemon's memory.
    """
    try:
        _, found, rest = file.read_text("ascii").partition(_BEGIN)
        body = rest.partition(_END)[0]
        der = ssl.PEM_cert_to_DER_cert(f"{_BEGIN}{body}{_END}\n") if found else b""
        signed = _value(_value(der, 0), 0)
        # The version [0] is there in every certificate of version 3; then serial number, algorithm, issuer, validity.
        at = 0
        for _ in range(5 if signed[:1] == b"\xa0" else 4):
            before, at = at, _after(signed, at)
        validity = _value(signed, before)
        last = _after(validity, 0)
        text = _value(validity, last).decode("ascii")
        style = "%y%m%d%H%M%SZ" if validity[last] == _UTC_TIME else "%Y%m%d%H%M%SZ"
        return datetime.strptime(text, style).replace(tzinfo=timezone.utc).timestamp()
    except (OSError, ValueError, IndexError):
        return None


def _bounds(der: bytes, at: int) -> tuple[int, int]:
    """Where the value of the DER element at a position begins and ends. IndexError, ValueError if it has none."""
    length, begin = der[at + 1], at + 2
    if length & 0x80:
        size = length & 0x7F
        length, begin = int.from_bytes(der[begin : begin + size], "big"), begin + size
    if begin + length > len(der):
        raise ValueError("cut short")
    return begin, begin + length


def _value(der: bytes, at: int) -> bytes:
    begin, end = _bounds(der, at)
    return der[begin:end]


def _after(der: bytes, at: int) -> int:
    return _bounds(der, at)[1]
