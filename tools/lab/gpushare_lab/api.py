# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Questions to an instance's API server while it is waited for: kubectl takes as much time to start as some nodes take to be Ready."""

from __future__ import annotations

import base64
import http.client
import json
import re
import ssl
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

_TIMEOUT_S = 10.0


class Api:
    """The API server that an administrator's kubeconfig names."""

    def __init__(self, kubeconfig: Path) -> None:
        text = kubeconfig.read_text()
        server = urlsplit(_value(text, "server"))
        self._host, self._port = server.hostname or "", server.port
        self._context = ssl.create_default_context(cadata=_decoded(text, "certificate-authority-data"))
        # ssl reads a key from a file only.
        with tempfile.NamedTemporaryFile("w") as pem:
            pem.write(_decoded(text, "client-certificate-data") + _decoded(text, "client-key-data"))
            pem.flush()
            self._context.load_cert_chain(pem.name)

    def ready(self) -> bool:
        """Whether it says that it is ready."""
        return self._ask("GET", "/readyz") == b"ok"

    def get(self, path: str) -> dict[str, Any]:
        """An object; {} if there is none, or no answer."""
        return dict(json.loads(self._ask("GET", path) or b"{}"))

    def items(self, path: str) -> list[dict[str, Any]] | None:
        """The objects of a list; None if there is no answer."""
        found = self.get(path)
        return list(found["items"] or []) if "items" in found else None

    def patch(self, path: str, operations: Sequence[dict[str, object]]) -> bool:
        """Change an object by a JSON patch; says whether it was changed."""
        return self._ask("PATCH", path, json.dumps(operations), {"Content-Type": "application/json-patch+json"}) is not None

    def _ask(self, method: str, path: str, body: str | None = None, headers: dict[str, str] | None = None) -> bytes | None:
        """The body of a good answer, None if there is no such answer."""
        connection = http.client.HTTPSConnection(self._host, self._port, timeout=_TIMEOUT_S, context=self._context)
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            said = answer.read()
            return said if answer.status == 200 else None
        except (OSError, http.client.HTTPException):
            return None
        finally:
            connection.close()


def _value(kubeconfig: str, key: str) -> str:
    found = re.search(rf"^\s*{key}: (\S+)$", kubeconfig, re.MULTILINE)
    if not found:
        raise ValueError(f"the kubeconfig has no {key}")
    return found[1]


def _decoded(kubeconfig: str, key: str) -> str:
    return base64.b64decode(_value(kubeconfig, key)).decode()
