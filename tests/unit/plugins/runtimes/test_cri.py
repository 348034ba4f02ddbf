# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The hand-written gRPC call, held against a real gRPC server and against things that are none."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent import futures
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._runtimes import cri


def field(number: int, value: bytes | int) -> bytes:
    """One field of a protobuf message."""
    if isinstance(value, int):
        return varint(number << 3) + varint(value)
    return varint(number << 3 | 2) + varint(len(value)) + value


def varint(value: int) -> bytes:
    low, rest = value & 0x7F, value >> 7
    return bytes([low | 0x80]) + varint(rest) if rest else bytes([low])


def status_response(config: object) -> bytes:
    """As containerd answers: two conditions, and its configuration among other texts."""
    ready = field(1, b"RuntimeReady") + field(2, 1)
    network = field(1, b"NetworkReady") + field(3, b"NetworkPluginNotReady") + field(4, b"cni plugin not initialized")
    runtime = field(1, field(1, ready) + field(1, network))
    info = [field(1, key.encode()) + field(2, value.encode()) for key, value in (("golang", '"1.26"'), ("config", json.dumps(config)))]
    return runtime + b"".join(field(2, entry) for entry in info)


class Methods(grpc.GenericRpcHandler):
    """A server with these methods: path to what answers a request."""

    def __init__(self, methods: dict[str, Callable[[bytes, grpc.ServicerContext], bytes]]) -> None:
        self.methods = methods

    def service(self, details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler | None:
        found = self.methods.get(details.method)
        return grpc.unary_unary_rpc_method_handler(found) if found else None


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., str]]:
    """A gRPC server on a unix socket; gives its path."""
    servers = []

    def start(**methods: Callable[[bytes, grpc.ServicerContext], bytes]) -> str:
        server = grpc.server(futures.ThreadPoolExecutor(2))
        server.add_generic_rpc_handlers([Methods({f"/runtime.{name}.RuntimeService/Status": call for name, call in methods.items()})])
        path = tmp_path / "runtime.sock"
        server.add_insecure_port(f"unix:{path}")
        server.start()
        servers.append(server)
        return str(path)

    yield start
    for server in servers:
        server.stop(0)


def test_the_status_of_a_real_server_is_read(serve: Callable[..., str]) -> None:
    asked = []

    def answer(request: bytes, _context: grpc.ServicerContext) -> bytes:
        asked.append(request)
        return status_response({"containerd": {"defaultRuntimeName": "nvidia"}})

    status = cri.status(serve(v1=answer))
    assert asked == [field(1, 1)]
    assert status.config == {"containerd": {"defaultRuntimeName": "nvidia"}}
    assert status.conditions == {"RuntimeReady": (True, ""), "NetworkReady": (False, "NetworkPluginNotReady: cni plugin not initialized")}


def test_a_long_answer_comes_whole(serve: Callable[..., str]) -> None:
    config = {"registry": {str(number): "x" * 100 for number in range(20_000)}}
    assert cri.status(serve(v1=lambda _request, _context: status_response(config))).config == config


def test_before_v1_there_was_v1alpha2(serve: Callable[..., str]) -> None:
    assert cri.status(serve(v1alpha2=lambda _request, _context: status_response({"old": True}))).config == {"old": True}


def test_a_server_without_the_service_is_named(serve: Callable[..., str]) -> None:
    address = serve()
    with pytest.raises(cri.CriError, match=rf"{address} rejected /runtime.v1.RuntimeService/Status: its CRI plugin is not loaded"):
        cri.status(address)


def test_an_error_of_the_server_is_one(serve: Callable[..., str]) -> None:
    def fail(_request: bytes, context: grpc.ServicerContext) -> bytes:
        context.abort(grpc.StatusCode.UNAVAILABLE, "server is not initialized yet")
        raise AssertionError

    with pytest.raises(cri.CriError, match="rejected"):
        cri.status(serve(v1=fail))


@pytest.mark.parametrize(
    "message",
    [
        b"\x0b",
        b"\xff",
        b"\x80" * 10 + b"\x01",
        field(2, 5),
        field(2, field(1, b"config") + field(2, b"{")),
        field(2, field(1, b"config") + field(2, b"[" * 100_000)),
        field(1, field(1, field(1, b"\xff"))),
    ],
)
def test_an_answer_that_is_no_status_is_an_error(serve: Callable[..., str], message: bytes) -> None:
    with pytest.raises(cri.CriError, match="not a CRI status"):
        cri.status(serve(v1=lambda _request, _context: message))


def test_nobody_listens(tmp_path: Path) -> None:
    with pytest.raises(cri.CriError, match=r"does not answer: .*No such file"):
        cri.status(str(tmp_path / "none.sock"))


@pytest.mark.parametrize(
    ("said", "message"),
    [
        (b"HTTP/1.1 400 Bad Request\r\n\r\n", "does not answer"),
        (b"", "closed the connection"),
        (b"\0\0\x08\x07\0\0\0\0\0" + bytes(8), "broke off"),
        (b"\0\0\x04\x03\0\0\0\0\x01" + bytes(4), "broke off"),
        # A frame, and a message, that are longer than any status.
        (b"\xff\xff\xff\0\0\0\0\0\x01", "announces a frame of 16777215 bytes"),
        (b"\0\0\x05\0\0\0\0\0\x01" + b"\0\xff\xff\xff\xff", "with more than 4194304 bytes"),
    ],
)
def test_what_is_no_grpc_server_is_an_error(tmp_path: Path, said: bytes, message: str) -> None:
    def answer() -> None:
        connection, _peer = listener.accept()
        with connection:
            connection.recv(4096)
            connection.sendall(said)

    with listening(tmp_path) as listener:
        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(cri.CriError, match=message):
            cri.status(str(tmp_path / "s"), timeout_s=2)
        thread.join()


def test_a_server_that_says_nothing_does_not_hold_us_up(tmp_path: Path) -> None:
    started = time.monotonic()
    with listening(tmp_path), pytest.raises(cri.CriError, match="timed out"):
        cri.status(str(tmp_path / "s"), timeout_s=0.2)
    assert time.monotonic() - started < 2


def test_a_server_that_says_a_byte_now_and_then_does_not_hold_us_up(tmp_path: Path) -> None:
    over = threading.Event()

    def drip() -> None:
        connection, _peer = listener.accept()
        with connection, suppress(OSError):
            connection.sendall(b"\0\x10\0\x06\0\0\0\0\0")
            while not over.wait(0.1):
                connection.sendall(b"\0")

    with listening(tmp_path) as listener:
        thread = threading.Thread(target=drip)
        thread.start()
        try:
            # A ping of 4096 bytes would take seven minutes.
            with pytest.raises(cri.CriError, match="timed out"):
                cri.status(str(tmp_path / "s"), timeout_s=1)
        finally:
            over.set()
            thread.join()


def listening(folder: Path) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / "s"))
    listener.listen()
    return listener
