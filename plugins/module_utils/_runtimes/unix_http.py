# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""One HTTP request over a unix socket."""

from __future__ import annotations

import http.client
import socket
import time
from typing import Any

from .plan import SilentError

_LIMIT = 4 * 1024 * 1024


def get(address: str, path: str, timeout: float) -> bytes:
    """The body of a good answer. SilentError if there is none, or none within that many seconds."""
    connection = _Connection(address, timeout)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read(_LIMIT + 1)
    except (OSError, http.client.HTTPException) as error:
        raise SilentError(f"the container runtime at {address} does not answer: {error}") from error
    finally:
        connection.close()
    if len(body) > _LIMIT:
        raise SilentError(f"the container runtime at {address} answers {path} with more than {_LIMIT} bytes")
    if response.status != 200:
        raise SilentError(f"the container runtime at {address} answers {response.status}: {body[:200].decode('utf-8', 'replace')}")
    return body


class _Connection(http.client.HTTPConnection):
    def __init__(self, address: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._address = address

    def connect(self) -> None:
        self.sock = _Socket(self.timeout or 0.0)
        self.sock.connect(self._address)


class _Socket(socket.socket):
    """Its timeout is that of all that is read together: one that sends a byte now and then does not hold it up."""

    def __init__(self, timeout: float) -> None:
        super().__init__(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self._deadline = time.monotonic() + timeout
        self.settimeout(timeout)

    def recv_into(self, *arguments: Any, **named: Any) -> int:
        self.settimeout(max(0.001, self._deadline - time.monotonic()))
        return super().recv_into(*arguments, **named)
