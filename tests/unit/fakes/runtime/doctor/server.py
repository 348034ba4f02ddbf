# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A small HTTP server in a thread, plain or with TLS: what it answers is the test's."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Answer = tuple[int, bytes]
"""(status, body)."""


@contextmanager
def serving(answer: Callable[[str, str], Answer], tls: ssl.SSLContext | None = None, hosts: list[str] | None = None) -> Iterator[str]:
    """Its address and port. answer: of a path and the Authorization header, "" without one. hosts: gets the names that it was called by."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if hosts is not None:
                hosts.append(self.headers["Host"])
            status, body = answer(self.path, self.headers.get("Authorization", ""))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_words: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        if tls:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}"
        server.shutdown()
