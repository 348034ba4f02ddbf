# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Certificates in PEM, and when one ends: a host's Python has no parser of X.509.

Pure. Of the DER the way to the validity is read, and nothing else: RFC 5280, sections 4.1 and 4.1.2.5 (read on 2026-11-29).
"""

from __future__ import annotations

import base64
import binascii
import re
from datetime import datetime, timezone
from typing import List, Optional, Tuple

_PEM = re.compile(r"-----BEGIN CERTIFICATE-----([A-Za-z0-9+/=\s]{1,20000})-----END CERTIFICATE-----")
_CLIENT = re.compile(r"""(?<![\w-])client-certificate-data["']?:[ \t]*["']?([A-Za-z0-9+/=]{1,30000})(?=["',}\s]|$)""")
#: While an authority is exchanged there are two, and a client shows a chain of a few.
_MOST = 8
_SEQUENCE, _VERSION, _UTC_TIME, _GENERALIZED_TIME = 0x30, 0xA0, 0x17, 0x18
_UTC, _GENERALIZED = re.compile(rb"[0-9]{12}Z"), re.compile(rb"[0-9]{14}Z")
# A length has at most so many bytes here: a certificate of more than 16 MiB is none.
_LENGTH_BYTES = 3


def certificates(pem: str) -> List[bytes]:
    """The first certificates in this text, in DER."""
    found = []
    for match in list(_PEM.finditer(pem))[:_MOST]:
        try:
            content = base64.b64decode("".join(match.group(1).split()), validate=True)
        except (binascii.Error, ValueError):
            continue
        if content:
            found.append(content)
    return found


def life_of(pem: str) -> Optional[Tuple[float, float]]:
    """The Unix times at which the first certificate in this text begins and ends; None where there is none that can be read."""
    first = next(iter(certificates(pem)), None)
    try:
        return None if first is None else _validity(first)
    except (ValueError, IndexError):
        return None


def client_life_of(kubeconfig: str) -> Optional[Tuple[float, float]]:
    """The same for the client certificate that is in the text of a kubeconfig, as in those of kubeadm."""
    data = _CLIENT.search(kubeconfig)
    try:
        pem = b"" if data is None else base64.b64decode(data.group(1), validate=True)
    except (binascii.Error, ValueError):
        return None
    return life_of(pem.decode("ascii", "replace"))


def _validity(der: bytes) -> Tuple[float, float]:
    """ValueError or IndexError for anything else."""
    to_be_signed = _inside(_inside(der, _SEQUENCE), _SEQUENCE)
    # The version may be left out; the serial number, the algorithm and the issuer come before the validity.
    at = _element(to_be_signed, 0)[2] if to_be_signed[0] == _VERSION else 0
    for _skipped in ("serialNumber", "signature", "issuer"):
        at = _element(to_be_signed, at)[2]
    validity = _inside(to_be_signed[at:], _SEQUENCE)
    kind, begin, second = _element(validity, 0)
    return _time(kind, begin), _time(*_element(validity, second)[:2])


def _time(kind: int, value: bytes) -> float:
    if kind == _UTC_TIME and _UTC.fullmatch(value):
        # Two digits of the year: from 1950 to 2049.
        value = (b"19" if value[:2] >= b"50" else b"20") + value
    elif kind != _GENERALIZED_TIME or not _GENERALIZED.fullmatch(value):
        raise ValueError("no time")
    return datetime.strptime(value.decode("ascii"), "%Y%m%d%H%M%SZ").replace(tzinfo=timezone.utc).timestamp()


def _inside(der: bytes, kind: int) -> bytes:
    found, value, _after = _element(der, 0)
    if found != kind:
        raise ValueError("another element")
    return value


def _element(der: bytes, at: int) -> Tuple[int, bytes, int]:
    """(tag, content, where the next one begins)."""
    size, at, kind = der[at + 1], at + 2, der[at]
    if size & 0x80:
        count = size & 0x7F
        if not 0 < count <= _LENGTH_BYTES:
            raise ValueError("no length")
        size, at = int.from_bytes(der[at : at + count], "big"), at + count
    if at + size > len(der):
        raise ValueError("it is cut off")
    return kind, der[at : at + size], at + size
