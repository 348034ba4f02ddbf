# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The public keys of a repository: their fingerprints, and the same keys written again.

A host may have no gpg. The written keys are made of the packets that were read and of nothing else, so that apt and rpm cannot see
another key in a file than the one whose fingerprint was compared. Subkeys are written only where their own fingerprints were
compared: old versions of rpm do not check who bound a subkey to its key, nor what for. RFC 9580, sections 4, 5.5, 6 and 9.1.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from dataclasses import dataclass, replace
from typing import Callable, Iterator, List, NamedTuple, Sequence, Tuple

from .._change.undo import Rejected
from .._formats.failure import Failure

#: A key file is some kilobytes; one of a whole distribution has some hundred.
LIMIT = 512 * 1024
_PUBLIC_KEY, _PUBLIC_SUBKEY, _USER_ID, _USER_ATTRIBUTE, _SIGNATURE = 6, 14, 13, 17, 2
_OF_A_KEY = (_PUBLIC_SUBKEY, _USER_ID, _USER_ATTRIBUTE, _SIGNATURE)
_PRIVATE = (5, 7)
# These packets carry no meaning for others: trust packets of a keyring, the marker, padding.
_PASSED_OVER = (12, 10, 21)
_FINGERPRINT = re.compile(r"[0-9A-F]{40}|[0-9A-F]{64}")
_BLOCK = re.compile(
    rb"^-----BEGIN PGP PUBLIC KEY BLOCK-----[ \t]*\r?\n(?:[!-9;-~]{1,64}: [^\r\n]*\r?\n)*[ \t]*\r?\n"
    rb"((?:[A-Za-z0-9+/=]{1,100}[ \t]*\r?\n)+?)(?:=[A-Za-z0-9+/]{4}[ \t]*\r?\n)?-----END PGP PUBLIC KEY BLOCK-----",
    re.MULTILINE,
)


class PublicKeyError(Failure, ValueError):
    """The file is not a list of public keys, or not of those that are expected; it says why."""


class _Packet(NamedTuple):
    tag: int
    body: bytes


@dataclass(frozen=True)
class Subkey:
    """A subkey with its signatures, which may be forged."""

    fingerprint: str
    packets: bytes


@dataclass(frozen=True)
class Key:
    """A public key with its names and signatures. fingerprint: of the primary key, in hexadecimal capitals."""

    fingerprint: str
    packets: bytes
    subkeys: Tuple[Subkey, ...] = ()

    @property
    def whole(self) -> bytes:
        """The packets, with those of the subkeys."""
        return b"".join([self.packets, *(subkey.packets for subkey in self.subkeys)])


def key_file(key: str, fetch: Callable[[str], bytes]) -> bytes:
    """The content of a key file. key: its text, its path, or its URL, which `fetch` reads. It raises Rejected if it cannot be had."""
    if not key.startswith(("-----BEGIN", "/", "https://", "http://", "file://")):
        raise Rejected(f"the key is {key[:80]!r}, expected its text, a URL or an absolute path; nothing was changed: correct it")
    if key.startswith("-----BEGIN"):
        return key.encode()
    try:
        if not key.startswith("/"):
            return fetch(key)
        with open(key, "rb") as stream:
            return stream.read(LIMIT + 1)
    except Exception as error:  # all that the way to it raises: names, TLS, HTTP, files
        cure = "nothing was changed: correct its address, name a proxy, or give the key itself"
        raise Rejected(f"the key {key[:200]} cannot be read ({type(error).__name__}: {str(error)[:200]}); {cure}") from error


def read_keys(data: bytes) -> List[Key]:
    """The keys of a file, in binary or as text. PublicKeyError if it holds anything else, or none."""
    if len(data) > LIMIT:
        raise PublicKeyError(f"the key file has {len(data)} bytes, expected at most {LIMIT}")
    # Each key and its subkeys, a list of packets each; what follows a subkey is its signatures until a name comes.
    keys: List[List[List[_Packet]]] = []
    current: List[_Packet] = []
    for packet in _packets(_dearmored(data)):
        if packet.tag == _PUBLIC_KEY:
            current = [packet]
            keys.append([current])
        elif packet.tag in _OF_A_KEY and keys:
            if packet.tag == _PUBLIC_SUBKEY:
                current = []
                keys[-1].append(current)
            elif packet.tag != _SIGNATURE:
                current = keys[-1][0]
            current.append(packet)
        elif packet.tag in _PRIVATE:
            raise PublicKeyError("the key file holds a private key, expected public keys only")
        elif packet.tag not in _PASSED_OVER:
            raise PublicKeyError(f"the key file holds an OpenPGP packet of kind {packet.tag} where a public key was expected")
    if not keys:
        raise PublicKeyError("the key file holds no public key")
    return [
        Key(
            _fingerprint(key[0].body), _written(key), tuple(Subkey(_fingerprint(packets[0].body), _written(packets)) for packets in subkeys)
        )
        for key, *subkeys in keys
    ]


def fingerprint(text: str) -> str:
    """A fingerprint as people write it, with spaces, colons or 0x, in hexadecimal capitals. PublicKeyError if it is none."""
    plain = re.sub(r"[\s:]", "", text).upper()
    plain = plain[2:] if plain.startswith("0X") else plain
    if not _FINGERPRINT.fullmatch(plain):
        raise PublicKeyError(
            f"{text[:80]!r} is not a fingerprint, expected 40 (or 64) hexadecimal digits; the last 8 or 16 of them are not enough"
        )
    return plain


def pinned(keys: Sequence[Key], expected: Sequence[str]) -> List[Key]:
    """The keys as they may be written: each one expected, with the expected subkeys and no others. PublicKeyError for another key.

    One of the expected ones suffices: a rotated key comes before the old one goes. A subkey that is not expected is left out without an
    error, because keys keep their expired ones.
    """
    wanted = [fingerprint(words) for words in expected]
    cure = "compare it with what the publisher announces, and correct the file or the fingerprint"
    strangers = [key.fingerprint for key in keys if key.fingerprint not in wanted]
    if strangers:
        raise PublicKeyError(f"the key file holds the key {strangers[0]}, expected {' or '.join(wanted)}: {cure}")
    return [replace(key, subkeys=tuple(kept for kept in key.subkeys if kept.fingerprint in wanted)) for key in keys]


def armored(keys: Sequence[Key]) -> bytes:
    """One block of text for each key, as rpm expects several of them."""
    return b"".join(_block(key.whole) for key in keys)


def armored_together(keys: Sequence[Key]) -> bytes:
    """One block of text for all keys: apt decodes several blocks as if they were one."""
    return _block(b"".join(key.whole for key in keys))


def _block(packets: bytes) -> bytes:
    text = base64.b64encode(packets)
    lines = [text[place : place + 64] for place in range(0, len(text), 64)]
    checksum = base64.b64encode(_crc24(packets).to_bytes(3, "big"))
    begin, end = b"-----BEGIN PGP PUBLIC KEY BLOCK-----", b"-----END PGP PUBLIC KEY BLOCK-----"
    return b"\n".join([begin, b"", *lines, b"=" + checksum, end, b""])


def _crc24(data: bytes) -> int:
    value = 0xB704CE
    for byte in data:
        value ^= byte << 16
        for _bit in range(8):
            value = (value << 1) ^ (0x1864CFB if value & 0x800000 else 0)
    return value & 0xFFFFFF


def _dearmored(data: bytes) -> bytes:
    if b"-----BEGIN PGP" not in data:
        return data
    if b"PRIVATE KEY BLOCK" in data:
        raise PublicKeyError("the key file holds a private key, expected public keys only")
    blocks = _BLOCK.findall(data)
    if len(blocks) != data.count(b"-----BEGIN PGP"):
        raise PublicKeyError("the key file has a block that is not a PGP PUBLIC KEY BLOCK or is damaged")
    try:
        return b"".join(base64.b64decode(b"".join(block.split()), validate=True) for block in blocks)
    except binascii.Error as error:
        raise PublicKeyError(f"the key file has a block that is damaged ({error})") from error


def _packets(data: bytes) -> Iterator[_Packet]:
    place = 0
    while place < len(data):
        first = data[place]
        if not first & 0x80:
            raise PublicKeyError("the key file is not a list of OpenPGP packets")
        start, size = _new_length(data, place + 1) if first & 0x40 else _old_length(data, place + 1, first & 3)
        if start + size > len(data):
            raise PublicKeyError("the key file ends in the middle of a packet")
        yield _Packet(first & 0x3F if first & 0x40 else (first & 0x3C) >> 2, data[start : start + size])
        place = start + size


def _new_length(data: bytes, place: int) -> "tuple[int, int]":
    first = _number(data, place, 1)
    if first < 192:
        return place + 1, first
    if first < 224:
        return place + 2, ((first - 192) << 8) + _number(data, place + 1, 1) + 192
    if first == 255:
        return place + 5, _number(data, place + 1, 4)
    raise PublicKeyError("the key file holds a packet in pieces, which no key is")


def _old_length(data: bytes, place: int, kind: int) -> "tuple[int, int]":
    if kind == 3:
        raise PublicKeyError("the key file holds a packet without a length, which no key is")
    size = 1 << kind
    return place + size, _number(data, place, size)


def _number(data: bytes, place: int, size: int) -> int:
    # Where the data ends within the number, a packet would begin behind its end, which `_packets` rejects.
    return int.from_bytes(data[place : place + size], "big")


def _serialized(packet: _Packet) -> bytes:
    # The old form with a length of four bytes is the one that every reader knows; a tag above 15 has the new form only.
    size = len(packet.body).to_bytes(4, "big")
    return (bytes([0x80 | packet.tag << 2 | 2]) if packet.tag < 16 else bytes([0xC0 | packet.tag, 255])) + size + packet.body


def _written(packets: Sequence[_Packet]) -> bytes:
    return b"".join(map(_serialized, packets))


def _fingerprint(body: bytes) -> str:
    version = _number(body, 0, 1)
    if version == 4 and len(body) < 2**16:
        # SHA-1 is what the fingerprint of a version 4 key is, not a choice.
        return hashlib.sha1(b"\x99" + len(body).to_bytes(2, "big") + body).hexdigest().upper()
    if version == 6:
        return hashlib.sha256(b"\x9b" + len(body).to_bytes(4, "big") + body).hexdigest().upper()
    raise PublicKeyError(f"the key file holds a key of version {version}, expected version 4 or 6")
