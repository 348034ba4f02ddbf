# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""An extender that does nothing: `python -m bench.scheduling.idle --kubeconfig FILE --port PORT`. What any extender costs at least.

Plain HTTP/1.1 on the loopback address. filter returns the nodes that it got, bind sends a Binding without annotations. No ledger, no
watch, no prioritize, no metrics. The Binding goes by an aiohttp session, as is usual: what the extender saves there is its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from typing import Any

import aiohttp

from gpushare_runtime.kube.credentials import Credentials, load

READY = "listening"


class Connection(asyncio.Protocol):
    """One of kube-scheduler's. Its requests come one after the other, each with its length."""

    def __init__(self, session: aiohttp.ClientSession, credentials: Credentials) -> None:
        self._session, self._credentials = session, credentials
        self._read = b""
        self._transport: asyncio.Transport | None = None
        self._bindings: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._read += data
        while True:
            head, end, rest = self._read.partition(b"\r\n\r\n")
            if not end:
                return
            length = next(int(line[15:]) for line in head.split(b"\r\n") if line[:15].lower() == b"content-length:")
            if len(rest) < length:
                return
            self._read = rest[length:]
            arguments = json.loads(rest[:length])
            if head.partition(b"\r\n")[0].split()[1].endswith(b"/bind"):
                task = asyncio.get_running_loop().create_task(self._bind(arguments))
                self._bindings.add(task)
                task.add_done_callback(self._bindings.discard)
            else:
                self._answer({"NodeNames": arguments["NodeNames"]})

    async def _bind(self, arguments: dict[str, Any]) -> None:
        name, namespace, uid = (arguments[key] for key in ("PodName", "PodNamespace", "PodUID"))
        target = {"apiVersion": "v1", "kind": "Node", "name": arguments["Node"]}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name, "namespace": namespace, "uid": uid}, "target": target}
        url = f"{self._credentials.server}/api/v1/namespaces/{namespace}/pods/{name}/binding"
        headers = {"Authorization": self._credentials.authorization() or ""}
        try:
            async with self._session.post(url, json=binding, headers=headers, ssl=self._credentials.ssl() or True) as response:
                text = await response.text()
                self._answer({} if response.ok else {"Error": text})
        except aiohttp.ClientError as error:
            self._answer({"Error": str(error)})

    def _answer(self, answer: dict[str, Any]) -> None:
        body = json.dumps(answer).encode()
        assert self._transport is not None
        head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: "
        self._transport.write(head + str(len(body)).encode() + b"\r\n\r\n" + body)


async def serve(kubeconfig: str, port: int) -> None:
    """Until it is stopped."""
    credentials, connector = load(kubeconfig), aiohttp.TCPConnector(limit=0, keepalive_timeout=60)
    async with aiohttp.ClientSession(connector=connector, cookie_jar=aiohttp.DummyCookieJar()) as session:
        server = await asyncio.get_running_loop().create_server(lambda: Connection(session, credentials), "127.0.0.1", port)
        print(READY, flush=True)
        await server.serve_forever()


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="bench.scheduling.idle", description="An extender that accepts every node.")
    parser.add_argument("--kubeconfig", required=True)
    parser.add_argument("--port", type=int, required=True)
    given = parser.parse_args()
    asyncio.run(serve(given.kubeconfig, given.port))


if __name__ == "__main__":
    main()
