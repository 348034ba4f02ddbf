# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The extender's verbs over HTTP/2, as thin as python-h2 allows: only for the comparison, h2 is no dependency of the runtime."""

from __future__ import annotations

import asyncio
from typing import Any

import h2.config
import h2.connection
import h2.events

from gpushare_runtime.extender.http_protocol import HttpRequest, HttpResponse
from gpushare_runtime.extender.http_server import Endpoints


class Http2(asyncio.Protocol):
    """One connection."""

    def __init__(self, endpoints: Endpoints) -> None:
        self._endpoints = endpoints
        self._h2 = h2.connection.H2Connection(h2.config.H2Configuration(client_side=False, header_encoding="utf-8"))
        self._requests: dict[int, tuple[str, str, bytearray]] = {}
        self._waiting: dict[int, bytes] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def connection_made(self, transport: Any) -> None:
        self._transport = transport
        self._h2.initiate_connection()
        # Bodies of some ten kB each come without waiting for a window.
        self._h2.increment_flow_control_window(16 * 1024 * 1024)
        self._transport.write(self._h2.data_to_send())

    def data_received(self, data: bytes) -> None:
        for event in self._h2.receive_data(data):
            if isinstance(event, h2.events.RequestReceived):
                headers = dict(event.headers)
                self._requests[event.stream_id] = str(headers[":method"]), str(headers[":path"]), bytearray()
            elif isinstance(event, h2.events.DataReceived):
                self._requests[event.stream_id][2].extend(event.data)
                self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
            elif isinstance(event, h2.events.StreamEnded):
                task = asyncio.ensure_future(self._answer(event.stream_id, *self._requests.pop(event.stream_id)))
                self._tasks.add(task)
                task.add_done_callback(self._tasks.discard)
            elif isinstance(event, h2.events.WindowUpdated):
                for stream in list(self._waiting):
                    self._send(stream, self._waiting.pop(stream))
        self._transport.write(self._h2.data_to_send())

    async def _answer(self, stream: int, method: str, path: str, sent: bytearray) -> None:
        made = self._endpoints.handle(HttpRequest(method, path, bytes(sent), verified=True))
        response = made if isinstance(made, HttpResponse) else await made
        body = response.body
        head = [(":status", str(response.status)), ("content-type", response.content_type), ("content-length", str(len(body)))]
        self._h2.send_headers(stream, head)
        self._send(stream, body)
        self._transport.write(self._h2.data_to_send())

    def _send(self, stream: int, body: bytes) -> None:
        while body:
            size = min(self._h2.local_flow_control_window(stream), self._h2.max_outbound_frame_size, len(body))
            if not size:
                self._waiting[stream] = body
                return
            self._h2.send_data(stream, body[:size], end_stream=size == len(body))
            body = body[size:]
