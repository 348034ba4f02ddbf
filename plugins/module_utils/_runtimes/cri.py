# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The status that a running container runtime has of itself: the CRI's verbose Status over its unix socket.

This is the only source that knows the configuration of the process, not of the files. One unary gRPC call is spoken
by hand, because a host has neither grpcio nor, for certain, crictl: since Kubernetes 1.32 the package kubeadm no longer
brings it (kubernetes/release#3626), and hosts without internet would have to get it first. Response headers are not
decoded: a message that arrived whole is the answer, and a call that ends without one has failed.
"""

from __future__ import annotations

import json
import socket
import struct
import time
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Tuple, Union

from .plan import SilentError

# CRI v1 since containerd 1.6; v1alpha2 before.
METHODS = ("/runtime.v1.RuntimeService/Status", "/runtime.v1alpha2.RuntimeService/Status")
VERBOSE = b"\x08\x01"

_DATA, _HEADERS, _RST_STREAM, _SETTINGS, _PING, _GOAWAY, _WINDOW_UPDATE = 0x0, 0x1, 0x3, 0x4, 0x6, 0x7, 0x8
_END_STREAM, _END_HEADERS, _ACK = 0x1, 0x4, 0x1
_WINDOW = 1 << 24
#: Of a whole answer. containerd's configuration has some 10 KiB.
_LIMIT = 4 * 1024 * 1024
#: An integer of protobuf has at most 64 bits.
_VARINT_BYTES = 10


class CriError(SilentError):
    """The runtime did not answer; says which socket, and what came instead."""


class _RejectedError(CriError):
    """The runtime answered that it does not serve this method."""


@dataclass(frozen=True)
class RuntimeStatus:
    """conditions: name to (holds, reason with message); config: the plugin's running configuration, from its JSON."""

    conditions: Dict[str, Tuple[bool, str]]
    config: Dict[str, Any]


def status(address: str, timeout_s: float = 10.0) -> RuntimeStatus:
    """Ask the runtime at the unix socket `address`. CriError if it does not answer in time."""
    try:
        try:
            message = call(address, METHODS[0], VERBOSE, timeout_s)
        except _RejectedError as first:
            try:
                message = call(address, METHODS[1], VERBOSE, timeout_s)
            except _RejectedError:
                raise first from None
        return parse_status(message)
    except (OSError, EOFError) as error:
        raise CriError(f"the container runtime at {address} does not answer: {error}") from error
    except (ValueError, LookupError, RecursionError) as error:
        raise CriError(f"the container runtime at {address} answers what is not a CRI status: {error!r}") from error


def parse_status(message: bytes) -> RuntimeStatus:
    """A runtime.v1.StatusResponse."""
    conditions: Dict[str, Tuple[bool, str]] = {}
    config: Dict[str, Any] = {}
    for number, value in fields(message):
        if number == 1:
            for _dummy, condition in fields(_bytes(value)):
                parts = dict(fields(_bytes(condition)))
                reason = [_bytes(parts.get(key, b"")).decode("utf-8", "replace") for key in (3, 4)]
                conditions[_bytes(parts.get(1, b"")).decode()] = (bool(parts.get(2, 0)), ": ".join(filter(None, reason)))
        elif number == 2:
            entry = dict(fields(_bytes(value)))
            if entry.get(1) == b"config":
                config = json.loads(_bytes(entry.get(2, b"{}")))
    return RuntimeStatus(conditions, config)


def fields(message: bytes) -> Iterator[Tuple[int, Union[int, bytes]]]:
    """The fields of a protobuf message: (number, integer or bytes)."""
    at = 0
    while at < len(message):
        key, at = _varint(message, at)
        kind = key & 7
        if kind == 0:
            value, at = _varint(message, at)
            yield key >> 3, value
        else:
            size, at = _varint(message, at) if kind == 2 else ({1: 8, 5: 4}[kind], at)
            yield key >> 3, message[at : at + size]
            at += size


def call(address: str, method: str, request: bytes, timeout_s: float) -> bytes:
    """One unary call. CriError if the server ends it without a message."""
    deadline = time.monotonic() + timeout_s
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC) as connection:
        connection.settimeout(timeout_s)
        connection.connect(address)
        connection.sendall(_request(method, request))
        received = b""
        while True:
            kind, flags, stream, payload = _frame(connection, deadline)
            if kind == _SETTINGS and not flags & _ACK:
                connection.sendall(_framed(_SETTINGS, _ACK, 0, b""))
            elif kind == _PING and not flags & _ACK:
                connection.sendall(_framed(_PING, _ACK, 0, payload))
            elif kind == _GOAWAY or (kind == _RST_STREAM and stream == 1):
                raise CriError(f"the container runtime at {address} broke off {method}")
            elif kind == _DATA and stream == 1:
                received += payload
            size = struct.unpack(">I", received[1:5])[0] if len(received) >= 5 else 0
            if size > _LIMIT or len(received) > _LIMIT + 5:
                raise CriError(f"the container runtime at {address} answers {method} with more than {_LIMIT} bytes")
            if len(received) >= 5 + size:
                return received[5 : 5 + size]
            if stream == 1 and kind in (_DATA, _HEADERS) and flags & _END_STREAM:
                raise _RejectedError(f"the container runtime at {address} rejected {method}: its CRI plugin is not loaded")


def _request(method: str, message: bytes) -> bytes:
    literal: List[bytes] = [b"\x83", b"\x86", b"\x04" + _text(method), b"\x01" + _text("localhost")]
    literal += [b"\x00" + _text(name) + _text(value) for name, value in (("content-type", "application/grpc"), ("te", "trailers"))]
    return b"".join(
        (
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            _framed(_SETTINGS, 0, 0, struct.pack(">HI", 0x4, _WINDOW)),
            _framed(_WINDOW_UPDATE, 0, 0, struct.pack(">I", _WINDOW)),
            _framed(_HEADERS, _END_HEADERS, 1, b"".join(literal)),
            _framed(_DATA, _END_STREAM, 1, b"\x00" + struct.pack(">I", len(message)) + message),
        )
    )


def _text(text: str) -> bytes:
    """A string of HPACK, shorter than 127 octets, without Huffman coding."""
    return bytes([len(text)]) + text.encode("ascii")


def _framed(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    return struct.pack(">I", len(payload))[1:] + struct.pack(">BBI", kind, flags, stream) + payload


def _frame(connection: socket.socket, deadline: float) -> Tuple[int, int, int, bytes]:
    head = _exactly(connection, 9, deadline)
    kind, flags, stream = struct.unpack(">BBI", head[3:])
    size = int.from_bytes(head[:3], "big")
    if size > _LIMIT:
        raise EOFError(f"it announces a frame of {size} bytes")
    return kind, flags, stream, _exactly(connection, size, deadline)


def _exactly(connection: socket.socket, size: int, deadline: float) -> bytes:
    received = b""
    while len(received) < size:
        # Of the whole call: one that sends a byte now and then does not hold it up.
        connection.settimeout(max(0.001, deadline - time.monotonic()))
        part = connection.recv(size - len(received))
        if not part:
            raise EOFError("it closed the connection")
        received += part
    return received


def _varint(message: bytes, at: int) -> Tuple[int, int]:
    value = 0
    for place in range(_VARINT_BYTES):
        byte = message[at + place]
        value |= (byte & 0x7F) << 7 * place
        if byte < 0x80:
            return value, at + place + 1
    raise ValueError(f"an integer has more than {_VARINT_BYTES} bytes")


def _bytes(value: Union[int, bytes]) -> bytes:
    if isinstance(value, int):
        raise ValueError("a field is a number, expected text")
    return value
