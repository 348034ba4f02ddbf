# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The API server of a lab as raw JSON, with the administrator's client certificate from a kubeconfig."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import yaml

Json = dict[str, Any]

_PATCH = "application/merge-patch+json"


class ApiError(Exception):
    """The server rejected; status: HTTP status, and the server's words."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{message} ({status})")
        self.status = status


class Api:
    """One request per connection: nothing here is hot, and a control plane that restarts needs no care."""

    def __init__(self, kubeconfig: Path, headers: Mapping[str, str] | None = None, *, certificate: bool = True) -> None:
        """headers: sent with each request, such as those that say who asks; certificate: whether the administrator's is shown."""
        self._headers = dict(headers or {})
        config = yaml.safe_load(kubeconfig.read_text())
        context = _named(config["contexts"], config["current-context"])["context"]
        cluster = _named(config["clusters"], context["cluster"])["cluster"]
        user = _named(config["users"], context["user"])["user"]
        address = urlsplit(cluster["server"])
        self._host, self._port = address.hostname or "", address.port or 443
        self._tls = ssl.create_default_context(cadata=base64.b64decode(cluster["certificate-authority-data"]).decode())
        if certificate:
            with tempfile.NamedTemporaryFile() as pem:
                for key in ("client-certificate-data", "client-key-data"):
                    pem.write(base64.b64decode(user[key]) + b"\n")
                pem.flush()
                self._tls.load_cert_chain(pem.name)

    def get(self, path: str, **query: str) -> Json:
        return self._request("GET", path, query=query)

    def items(self, path: str, **query: str) -> list[Json]:
        """The items of a list."""
        return list(self.get(path, **query)["items"])

    def watch(self, path: str, seconds: int) -> Iterator[Json]:
        """Each object of a list as it is, and then after each change, for so long."""
        connection = http.client.HTTPSConnection(self._host, self._port, timeout=seconds + 30, context=self._tls)
        query = urlencode({"watch": "true", "timeoutSeconds": seconds, "resourceVersion": "0"})
        try:
            connection.request("GET", f"{path}?{query}", None, {"Accept": "application/json", **self._headers})
            for line in connection.getresponse():
                event = json.loads(line)
                if event.get("type") == "ERROR" or "object" not in event:
                    raise ApiError(event.get("object", event).get("code", 0), str(event)[:200])
                yield event["object"]
        except http.client.HTTPException as error:
            raise ConnectionError(f"watch {path}: {error!r}") from error
        finally:
            connection.close()

    def create(self, path: str, body: Json, **query: str) -> Json:
        return self._request("POST", path, body, query)

    def patch(self, path: str, body: Json, **query: str) -> Json:
        """A merge patch: None removes a field."""
        return self._request("PATCH", path, body, query)

    def delete(self, path: str, **query: str) -> Json:
        return self._request("DELETE", path, query=query)

    def _request(self, method: str, path: str, body: Json | None = None, query: dict[str, str] | None = None) -> Json:
        connection = http.client.HTTPSConnection(self._host, self._port, timeout=30, context=self._tls)
        headers = {"Accept": "application/json", "Content-Type": _PATCH if method == "PATCH" else "application/json", **self._headers}
        try:
            connection.request(method, f"{path}?{urlencode(query or {})}", None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            value: Json = json.loads(answer.read())
        except http.client.HTTPException as error:
            # Its host died in the middle of an answer: no OSError, and for us the same.
            raise ConnectionError(f"{method} {path}: {error!r}") from error
        finally:
            connection.close()
        if answer.status >= 400:
            raise ApiError(answer.status, str(value.get("message")))
        return value


def _named(entries: list[Json], name: str) -> Json:
    return next(entry for entry in entries if entry["name"] == name)
