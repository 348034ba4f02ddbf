# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Archives of plain files in the format of GNU tar: the same files make the same bytes, and anything else in an archive is rejected.

tarfile reads the headers. It follows every form that an archive may have, so what it found is checked here: an archive has regular files
with short relative names, each of them once, and nothing else. Nothing is extracted by tarfile, so that no filter of it is needed.
"""

from __future__ import annotations

import os
import re
import tarfile
from dataclasses import dataclass
from typing import BinaryIO, Dict, Iterable, List, cast

from .failure import Failure

_BLOCK = 512
#: Bytes of one read or write.
CHUNK = 1 << 20
_LONGEST_NAME = 255
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+~!%:@=-]*(?:/[A-Za-z0-9][A-Za-z0-9._+~!%:@=-]*){0,4}")
_KINDS = {b"1": "a hard link", b"2": "a symbolic link", b"3": "a device", b"4": "a device", b"5": "a folder", b"6": "a pipe"}
#: Of one read of tarfile: a name or an extended header, which it has in memory.
_LONGEST_HEADER = 64 << 10


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


class _Headers:
    """A stream as tarfile reads it, which takes only headers, but of any length."""

    def __init__(self, stream: BinaryIO) -> None:
        self.seek, self.tell, self._read = stream.seek, stream.tell, stream.read

    def read(self, size: int) -> bytes:
        if not 0 <= size <= _LONGEST_HEADER:
            raise TarError(f"the archive has a header of {size} bytes, expected at most {_LONGEST_HEADER}")
        return self._read(size)


def members(stream: BinaryIO, limits: ArchiveLimits) -> Dict[str, Member]:
    """The files of an archive by name, in its order. Reads their headers only. TarError."""
    end = stream.seek(0, os.SEEK_END)
    stream.seek(0)
    found: Dict[str, Member] = {}
    total = at = 0
    try:
        with tarfile.open(fileobj=cast(BinaryIO, _Headers(stream)), mode="r:") as archive:
            for info in archive:
                if len(found) == limits.members:
                    raise TarError(f"more than {limits.members} files in the archive")
                _check(info, info.name in found)
                total += info.size
                if not 0 <= info.size <= limits.member_bytes or total > limits.bytes:
                    most = f"expected at most {limits.member_bytes}, {limits.bytes} in all"
                    raise TarError(f"{info.name} in the archive has {info.size} bytes, {most}")
                at = info.offset_data + -(-info.size // _BLOCK) * _BLOCK
                if at > end:
                    raise TarError(f"the archive ends within {info.name}")
                found[info.name] = Member(info.name, info.offset_data, info.size)
    except TarError:
        raise
    # Numbers of extended headers that are none, and headers that each announce another one.
    except (tarfile.TarError, ValueError, OverflowError, RecursionError) as error:
        raise TarError(f"the file is not an archive that tar reads ({error})") from error
    # tarfile takes a damaged header for the end.
    stream.seek(at)
    rest = iter(lambda: stream.read(CHUNK), b"")
    if at == end or any(any(part) for part in rest):
        raise TarError("the archive is cut off" if at == end else f"the archive has something else than a file at byte {at} or behind it")
    return found


def _check(info: tarfile.TarInfo, twice: bool) -> None:
    """TarError if this is not a plain file with a name that is allowed."""
    name = info.name
    if info.type not in (tarfile.REGTYPE, tarfile.AREGTYPE) or info.sparse is not None:
        raise TarError(f"{name[:80]!r} in the archive is {_KINDS.get(info.type, 'of another kind than a file')}, expected plain files only")
    if twice or not _NAME.fullmatch(name) or len(name) > _LONGEST_NAME:
        raise TarError(f"the archive has {name[:80]!r} {'twice' if twice else 'with a name that is not allowed'}")


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
