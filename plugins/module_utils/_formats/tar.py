# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Archives of plain files in the format of GNU tar: the same files make the same bytes, and anything else in an archive is rejected.

Python's tarfile follows every form that an archive may have, and reads a name of any length into memory. Here an archive has regular files
with short relative names, each of them once, and nothing else.
"""

from __future__ import annotations

import os
import re
import tarfile
from dataclasses import dataclass
from typing import BinaryIO, Dict, Iterable, List

from .failure import Failure

_BLOCK = 512
#: Bytes of one read or write.
CHUNK = 1 << 20
_LONGEST_NAME = 255
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+~!%:@=-]*(?:/[A-Za-z0-9][A-Za-z0-9._+~!%:@=-]*){0,4}")
_NUMBER = re.compile(rb"[0-7]{1,11}")
_KINDS = {b"1": "a hard link", b"2": "a symbolic link", b"3": "a device", b"4": "a device", b"5": "a folder", b"6": "a pipe"}
_LARGE = 0x80
_LONG_NAME, _PLAIN = b"L", (b"0", b"\0")


class TarError(Failure, ValueError):
    """No archive, or one with something in it that it may not have; says what, and where."""


@dataclass(frozen=True)
class ArchiveLimits:
    """How many files an archive may have, and how many bytes each of them and all together."""

    members: int
    member_bytes: int
    bytes: int


@dataclass(frozen=True)
class Member:
    """A file of an archive: where its content begins, and its length in bytes."""

    name: str
    offset: int
    size: int


def members(stream: BinaryIO, limits: ArchiveLimits) -> Dict[str, Member]:
    """The files of an archive by name, in its order. Reads their headers only. TarError."""
    end = stream.seek(0, os.SEEK_END)
    found: Dict[str, Member] = {}
    at, total, long_name = 0, 0, ""
    while True:
        if len(found) > limits.members:
            raise TarError(f"more than {limits.members} files in the archive")
        header = _read(stream, at, _BLOCK, end)
        if not any(header):
            break
        name, size = _checked_header(header, at)
        kind, at = header[156:157], at + _BLOCK
        if kind == _LONG_NAME and not long_name and size <= _LONGEST_NAME + 1:
            long_name = _text(_read(stream, at, size, end).rstrip(b"\0"))
        elif kind not in _PLAIN:
            raise TarError(f"{name[:80]!r} in the archive is {_KINDS.get(kind, 'of another kind than a file')}, expected plain files only")
        else:
            name, long_name = long_name or name, ""
            if not _NAME.fullmatch(name) or len(name) > _LONGEST_NAME or name in found:
                what = "twice" if name in found else "with a name that is not allowed"
                raise TarError(f"the archive has {name[:80]!r} {what}")
            total += size
            if size > limits.member_bytes or total > limits.bytes:
                raise TarError(
                    f"{name[:80]} in the archive has {size} bytes, expected at most {limits.member_bytes}, {limits.bytes} in all"
                )
            if at + size > end:
                raise TarError(f"the archive ends within {name[:80]}")
            found[name] = Member(name, at, size)
        at += -(-size // _BLOCK) * _BLOCK
    while at < end:
        if any(_read(stream, at, min(CHUNK, end - at), end)):
            raise TarError("the archive has something behind its end")
        at += CHUNK
    return found


def content(stream: BinaryIO, member: Member) -> Iterable[bytes]:
    """The bytes of a file, in parts of at most CHUNK. TarError if the archive has become shorter."""
    stream.seek(member.offset)
    left = member.size
    while left:
        part = stream.read(min(CHUNK, left))
        if not part:
            raise TarError(f"the archive ends within {member.name[:80]}")
        left -= len(part)
        yield part


def add(stream: BinaryIO, name: str, size: int, parts: Iterable[bytes]) -> None:
    """Append a file of this length. ValueError if the parts are longer or shorter, or if the name is not allowed."""
    if not _NAME.fullmatch(name) or len(name) > _LONGEST_NAME:
        raise ValueError(f"the archive cannot have a file {name[:80]!r}")
    info = tarfile.TarInfo(name)
    info.size, info.mode = size, 0o644
    stream.write(info.tobuf(tarfile.GNU_FORMAT))
    written = 0
    for part in parts:
        stream.write(part)
        written += len(part)
    if written != size:
        raise ValueError(f"{name} has {written} bytes, expected {size}: it was changed meanwhile")
    stream.write(bytes(-size % _BLOCK))


def finish(stream: BinaryIO) -> None:
    """Append the end of an archive."""
    stream.write(bytes(2 * _BLOCK))


def unpack(stream: BinaryIO, limits: ArchiveLimits, folder: str) -> List[str]:
    """Write all files into an empty folder, by the last part of their names. Returns their paths. TarError."""
    paths = []
    for member in members(stream, limits).values():
        path = os.path.join(folder, member.name.rpartition("/")[2])
        with open(path, "xb") as file:
            for part in content(stream, member):
                file.write(part)
        paths.append(path)
    return paths


def _read(stream: BinaryIO, at: int, size: int, end: int) -> bytes:
    if at + size > end:
        raise TarError("the archive is cut off" if end else "the archive is empty")
    stream.seek(at)
    return stream.read(size)


def _checked_header(header: bytes, at: int) -> "tuple[str, int]":
    """(name, size) of a block that is a header."""
    if header[257:262] != b"ustar":
        raise TarError(f"there is no header of a tar archive at byte {at}")
    fields = [header[start:stop].strip(b" \0") for start, stop in ((124, 136), (148, 156))]
    if header[124] == _LARGE:
        # 8 GiB or more, which no limit allows.
        fields[0] = b"%o" % int.from_bytes(header[125:136], "big")
    elif not _NUMBER.fullmatch(fields[0]):
        raise TarError(f"the header at byte {at} of the archive has no size that can be read")
    checksum = int(fields[1], 8) if _NUMBER.fullmatch(fields[1]) else -1
    size = int(fields[0], 8)
    if sum(header[:148]) + sum(header[156:]) + 8 * ord(" ") != checksum:
        raise TarError(f"the header at byte {at} of the archive is damaged")
    name, prefix = _text(header[:100].partition(b"\0")[0]), b""
    if header[257:265] == b"ustar\x0000":
        prefix = header[345:500].partition(b"\0")[0]
    return (f"{_text(prefix)}/{name}" if prefix else name), size


def _text(data: bytes) -> str:
    return data.decode("ascii", "backslashreplace")
