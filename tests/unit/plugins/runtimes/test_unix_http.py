# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Questions to a container runtime over its socket: a good answer is whole, in time and not too long."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes.plan import SilentError
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes.unix_http import get

MOST = 4 * 1024 * 1024


def asked(folder: Path, answer: bytes) -> bytes:
    """What `get` returns of a runtime that answers with these bytes, and goes on listening."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(folder / "s"))
        server.listen()

        def serve() -> None:
            connection, _ = server.accept()
            with connection:
                connection.recv(4096)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            return get(str(folder / "s"), "/info", 60)
        finally:
            thread.join()


def head(length: int, status: str = "200 OK") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n".encode()


@pytest.mark.parametrize("length", [0, 2, MOST])
def test_a_good_answer(length: int, tmp_path: Path) -> None:
    assert asked(tmp_path, head(length) + b"x" * length) == b"x" * length


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (head(MOST + 1) + b"x" * (MOST + 1), "answers /info with more than 4194304 bytes"),
        (head(2, "404 Not Found") + b"no", "answers 404: no"),
        (b"", "does not answer"),
        (b"what\r\n\r\n", "does not answer"),
    ],
)
def test_no_good_answer(answer: bytes, words: str, tmp_path: Path) -> None:
    with pytest.raises(SilentError, match=words):
        asked(tmp_path, answer)


def test_nobody_listens(tmp_path: Path) -> None:
    with pytest.raises(SilentError):
        get(str(tmp_path / "s"), "/info", 1)
