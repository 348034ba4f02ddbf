# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The leanest extender that does nothing: `python -m bench.scheduling.idle --kubeconfig FILE --port PORT [--pki FOLDER]`. A yardstick.

HTTP/1.1 by hand on uvloop, and JSON by orjson. filter returns the nodes that it got, prioritize gives none a score, bind sends a Binding
without annotations by the product's own client. No ledger, no watch, no metrics. pki: over the mutual TLS of the product, so that what
TLS costs is a figure of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import ssl
from pathlib import Path
from typing import Any, Final, cast

import orjson
import uvloop

from gpushare_runtime.extender.tls import TlsFiles
from gpushare_runtime.kube.client import KubeClient, KubeError, path
from gpushare_runtime.kube.credentials import load

READY: Final = "listening"
_HEAD: Final = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"


class Connection(asyncio.Protocol):
    """One of kube-scheduler's. Its requests come one after the other, each with its length."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._read = bytearray()
        self._begins = self._ends = 0
        self._transport: asyncio.Transport | None = None
        self._bindings: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._read += data
        if not self._ends:
            head = self._read.find(b"\r\n\r\n")
            if head < 0:
                return
            lines = bytes(self._read[:head]).lower()
            found = lines.index(b"content-length:") + 15
            end = lines.find(b"\r\n", found)
            self._begins, self._ends = head + 4, head + 4 + int(lines[found : end if end >= 0 else None])
        if len(self._read) < self._ends:
            return
        verb, body = bytes(self._read[: self._read.index(b" HTTP")]), bytes(self._read[self._begins : self._ends])
        del self._read[: self._ends]
        self._ends = 0
        arguments = orjson.loads(body)
        if verb.endswith(b"/filter"):
            self._answer({"NodeNames": arguments["NodeNames"]})
        elif verb.endswith(b"/prioritize"):
            self._answer([{"Host": name, "Score": 0} for name in arguments["NodeNames"]])
        else:
            task = asyncio.get_running_loop().create_task(self._bind(arguments))
            self._bindings.add(task)
            task.add_done_callback(self._bindings.discard)

    async def _bind(self, arguments: dict[str, Any]) -> None:
        name, namespace, uid = (arguments[key] for key in ("PodName", "PodNamespace", "PodUID"))
        target = {"apiVersion": "v1", "kind": "Node", "name": arguments["Node"]}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name, "namespace": namespace, "uid": uid}, "target": target}
        try:
            await self._client.create(path("api/v1", "namespaces", namespace, "pods", name, "binding"), binding)
            self._answer({})
        except KubeError as error:
            self._answer({"Error": str(error)})

    def _answer(self, answer: object) -> None:
        body = orjson.dumps(answer)
        assert self._transport is not None
        self._transport.write(_HEAD % (len(body), body))


def tls(pki: Path | None) -> ssl.SSLContext | None:
    """The product's context with the certificates of this folder, None for plain HTTP."""
    return TlsFiles(pki / "extender.crt", pki / "extender.key", pki / "ca.crt").context() if pki else None


async def serve(kubeconfig: str, port: int, pki: Path | None) -> None:
    """Until it is stopped."""
    async with KubeClient(load(kubeconfig), user_agent="bench-idle") as client:
        loop = asyncio.get_running_loop()
        server = await loop.create_server(lambda: Connection(client), "127.0.0.1", port, ssl=tls(pki))
        print(READY, flush=True)
        await server.serve_forever()


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="bench.scheduling.idle", description="An extender that accepts every node.")
    parser.add_argument("--kubeconfig", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--pki", type=Path, help="serve over mutual TLS with what `gpushare-pki ensure` made there")
    given = parser.parse_args()
    uvloop.run(serve(given.kubeconfig, given.port, given.pki))


if __name__ == "__main__":
    main()
