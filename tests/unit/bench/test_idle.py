# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The yardstick answers as an extender does, whatever pieces its requests come in."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from bench.scheduling.idle import Connection
from gpushare_runtime.kube.client import KubeError

ARGUMENTS = {"PodName": "w", "PodNamespace": "team", "PodUID": "u-1", "Node": "n2"}


class Server:
    """An API server. error: its answer to each Binding, None for success."""

    def __init__(self, error: KubeError | None = None) -> None:
        self.error = error
        self.bound: list[tuple[str, Any]] = []

    async def create(self, path: str, body: Any) -> dict[str, Any]:
        if self.error:
            raise self.error
        self.bound.append((path, body))
        return {}


class Wire:
    def __init__(self) -> None:
        self.sent = b""

    def write(self, data: bytes) -> None:
        self.sent += data


def request(verb: str, body: object) -> bytes:
    text = orjson.dumps(body)
    return f"POST /gpushare-scheduler/{verb} HTTP/1.1\r\nHost: x\r\nContent-Length: {len(text)}\r\n\r\n".encode() + text


def answered(requests: bytes, pieces: int, server: Server) -> list[Any]:
    async def go() -> bytes:
        wire, connection = Wire(), Connection(server)  # type: ignore[arg-type]
        connection.connection_made(wire)  # type: ignore[arg-type]
        for start in range(0, len(requests), pieces):
            connection.data_received(requests[start : start + pieces])
        for _turn in range(3):
            await asyncio.sleep(0)
        return wire.sent

    return [orjson.loads(part.partition(b"\r\n\r\n")[2]) for part in asyncio.run(go()).split(b"HTTP/1.1 200 OK")[1:]]


@pytest.mark.parametrize("pieces", [1, 7, 100_000])
@pytest.mark.parametrize(
    ("verb", "body", "expected"),
    [
        ("filter", {"Pod": {}, "NodeNames": ["n1", "n2"]}, {"NodeNames": ["n1", "n2"]}),
        ("prioritize", {"NodeNames": ["n1", "n2"]}, [{"Host": "n1", "Score": 0}, {"Host": "n2", "Score": 0}]),
        ("bind", ARGUMENTS, {}),
    ],
)
def test_each_verb(pieces: int, verb: str, body: object, expected: object) -> None:
    server = Server()
    assert answered(request(verb, body), pieces, server) == [expected]
    assert [(path, sent["target"]["name"], sent["metadata"]) for path, sent in server.bound] == (
        [("/api/v1/namespaces/team/pods/w/binding", "n2", {"name": "w", "namespace": "team", "uid": "u-1"})] if verb == "bind" else []
    )


def test_a_binding_that_is_rejected() -> None:
    [answer] = answered(request("bind", ARGUMENTS), 100, Server(KubeError(409, "Conflict", "it has a node already")))
    assert "409" in answer["Error"]
