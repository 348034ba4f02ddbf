# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One HTTP request over a unix socket. No Ansible here."""

from __future__ import annotations

import http.client
import socket

from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes.plan import SilentError

_LIMIT = 4 * 1024 * 1024


def get(address: str, path: str, timeout: float) -> bytes:
    """The body of a good answer. SilentError if there is none."""
    connection = _Connection(address, timeout)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read(_LIMIT)
    except (OSError, http.client.HTTPException) as error:
        raise SilentError(f"the container runtime at {address} does not answer: {error}") from error
    finally:
        connection.close()
    if response.status != 200:
        raise SilentError(f"the container runtime at {address} answers {response.status}: {body[:200].decode('utf-8', 'replace')}")
    return body


class _Connection(http.client.HTTPConnection):
    def __init__(self, address: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._address = address

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._address)
