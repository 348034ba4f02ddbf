# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The extender's side of TLS: its own certificate, and the CA whose client certificates it believes."""

from __future__ import annotations

import asyncio
import logging
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from gpushare_runtime.daemon.runner import FatalError

log = logging.getLogger(__name__)


class TlsError(FatalError):
    """Files that make no TLS server; the text has the file, what was found and what was expected. Fatal only at the start."""


@dataclass(frozen=True)
class TlsFiles:
    """PEM files: the server's certificate and key, and the CA of the clients."""

    certificate: Path
    key: Path
    client_ca: Path

    def context(self) -> ssl.SSLContext:
        """A server's context that asks for a client certificate, and does without. TlsError if the files are not good."""
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
                raise TlsError(f"{path}: {error.strerror}; expected PEM; `gpushare-pki ensure` makes the certificates") from None
        try:
            context.load_cert_chain(self.certificate, self.key, password=lambda: b"")
        except ssl.SSLError as error:
            raise TlsError(
                f"{self.certificate} and {self.key}: {error.reason or error}; expected a certificate and its key in PEM; "
                "`gpushare-pki status` says what is wrong, `gpushare-pki ensure` makes new ones"
            ) from None
        try:
            context.load_verify_locations(self.client_ca)
        except ssl.SSLError as error:
            raise TlsError(
                f"{self.client_ca}: {error.reason or error}; expected the CA of the scheduler's certificate in PEM; "
                "`gpushare-pki status` says what is wrong, `gpushare-pki ensure` makes a new one"
            ) from None
        return context


class Tls:
    """A context for a listening socket that follows its files. TlsError if they are not good at first."""

    def __init__(self, files: TlsFiles) -> None:
        self.files = files
        self.context = self._newest = files.context()
        # OpenSSL calls it for each handshake, with or without a server name.
        self.context.sni_callback = self._choose

    def reload(self) -> None:
        """Read the files again for the handshakes to come. TlsError if they are not good now: then what was read before stays."""
        self._newest = self.files.context()

    async def follow(self, reload: asyncio.Event) -> NoReturn:
        """Read the files again whenever `reload` is set. Never returns; cancel it."""
        while True:
            await reload.wait()
            reload.clear()
            try:
                self.reload()
            except TlsError as error:
                log.error("not reloaded, the certificate read before stays in use: %s", error)
            else:
                log.info("reloaded %s and %s for new connections", self.files.certificate, self.files.client_ca)

    def _choose(self, connection: ssl.SSLSocket | ssl.SSLObject, name: str | None, context: ssl.SSLContext) -> None:
        if context is not self._newest:
            connection.context = self._newest
