# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Archives of plain files: what is written is what tar reads, and nothing else is taken."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._formats import tar
from hypothesis import given
from hypothesis import strategies as st

LIMITS = tar.ArchiveLimits(members=4, member_bytes=1000, bytes=2000)
LONG = f"wheels/{'x' * 120}.whl"


def written(*files: tuple[str, bytes]) -> bytes:
    packed = io.BytesIO()
    for name, data in files:
        tar.add(packed, name, len(data), [data])
    tar.finish(packed)
    return packed.getvalue()


def by_tarfile(change: Callable[[tarfile.TarInfo], None], form: int = tarfile.GNU_FORMAT) -> bytes:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w", format=form) as archive:
        info = tarfile.TarInfo("a")
        info.size = 1
        change(info)
        archive.addfile(info, io.BytesIO(b"x") if info.isreg() else None)
    return packed.getvalue()


def header_of(size: int) -> bytes:
    info = tarfile.TarInfo("a")
    info.size = size
    return info.tobuf(tarfile.GNU_FORMAT)


def pax_headers(count: int) -> bytes:
    """Extended headers, of which each announces the next one."""
    info = tarfile.TarInfo("a")
    info.type, info.size = tarfile.XHDTYPE, 11
    return (info.tobuf(tarfile.GNU_FORMAT) + b"11 path=ab\n".ljust(512, b"\0")) * count


def as_(**fields: object) -> Callable[[tarfile.TarInfo], None]:
    return lambda info: [setattr(info, name, value) for name, value in fields.items()] and None


def read(data: bytes) -> dict[str, bytes]:
    stream = io.BytesIO(data)
    return {name: b"".join(tar.content(stream, member)) for name, member in tar.members(stream, LIMITS).items()}


def test_tar_reads_what_is_written_and_it_is_read_again() -> None:
    files = {"a": b"", "b/c.deb": b"x" * 513, LONG: b"long"}
    data = written(*files.items())
    assert read(data) == files
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        assert {one.name: one.mtime for one in archive} == dict.fromkeys(files, 0)
    # Other programs fill up to their own size of a block.
    assert read(data + bytes(10240)) == files
    assert read(by_tarfile(as_(name="p/" * 2 + "y" * 90 + "/z"), form=tarfile.USTAR_FORMAT)) == {"p/" * 2 + "y" * 90 + "/z": b"x"}


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (b"", "not an archive that tar reads (empty file)"),
        (b"no archive" * 100, "not an archive that tar reads (invalid header)"),
        (by_tarfile(as_(type=tarfile.SYMTYPE, linkname="/etc/shadow", size=0)), "'a' in the archive is a symbolic link"),
        (by_tarfile(as_(type=tarfile.LNKTYPE, linkname="b", size=0)), "'a' in the archive is a hard link"),
        (by_tarfile(as_(type=tarfile.DIRTYPE, size=0)), "is a folder"),
        (by_tarfile(as_(type=tarfile.FIFOTYPE, size=0)), "is a pipe"),
        (by_tarfile(as_(name="../a")), "with a name that is not allowed"),
        (by_tarfile(as_(name="/etc/passwd")), "with a name that is not allowed"),
        (by_tarfile(as_(name="b/../../a")), "with a name that is not allowed"),
        (by_tarfile(as_(name="b/.hidden")), "with a name that is not allowed"),
        (by_tarfile(as_(name="n" * 300)), "with a name that is not allowed"),
        (by_tarfile(as_(name="n" * 70_000)), "a header of 70144 bytes, expected at most 65536"),
        (by_tarfile(as_(name="ä" * 60), form=tarfile.PAX_FORMAT), "with a name that is not allowed"),
        (by_tarfile(as_(pax_headers={"GNU.sparse.map": "0,1", "GNU.sparse.size": "9"}), form=tarfile.PAX_FORMAT), "of another kind"),
        (pax_headers(2000), "not an archive that tar reads"),
        (header_of(-1), "has -1 bytes"),
        (written(("a", b"x"), ("a", b"y")), "'a' twice"),
        (written(*((str(n), b"") for n in range(6))), "more than 4 files"),
        (written(("a", b"x" * 1001)), "has 1001 bytes, expected at most 1000"),
        (written(("a", b"x" * 900), ("b", b"x" * 900), ("c", b"x" * 900)), "2000 in all"),
        (header_of(10 * 10**9), "has 10000000000 bytes, expected at most 1000"),
        (written(("a", b"x" * 900))[:700], "ends within a"),
        (written(("a", b"x"))[:1024], "cut off"),
        (written(("a", b"x")) + b"behind", "something else than a file at byte 1024"),
        (written(("a", b"x")).replace(b"a\0\0", b"b\0\0", 1), "not an archive that tar reads (bad checksum)"),
        (written(("a", b"x"))[:1024] + written(("b", b"x")).replace(b"b\0\0", b"c\0\0", 1), "something else than a file at byte 1024"),
    ],
    ids=lambda value: value[:40].replace(" ", "-") if isinstance(value, str) else "",
)
def test_whatever_else_is_in_an_archive_is_rejected(data: bytes, words: str) -> None:
    with pytest.raises(tar.TarError) as error:
        read(data)
    assert words in str(error.value)


def test_only_names_without_surprises_are_written() -> None:
    for name in ("../a", "/a", "a/../b", "a//b", "", "a b", "x" * 300):
        with pytest.raises(ValueError, match="cannot have a file"):
            tar.add(io.BytesIO(), name, 0, [])
    with pytest.raises(ValueError, match="changed meanwhile"):
        tar.add(io.BytesIO(), "a", 2, [b"x"])


def test_unpacked_by_the_last_part_of_the_names(tmp_path: Path) -> None:
    paths = tar.unpack(io.BytesIO(written(("wheels/a.whl", b"a"), ("packages/b.deb", b"b"))), LIMITS, str(tmp_path))
    assert {Path(path).name: Path(path).read_bytes() for path in paths} == {"a.whl": b"a", "b.deb": b"b"}
    with pytest.raises(OSError, match="File exists"):
        tar.unpack(io.BytesIO(written(("c/a.whl", b"c"))), LIMITS, str(tmp_path))


@given(st.binary(max_size=1500), st.integers(0, 1500))
def test_no_bytes_lead_to_anything_but_an_error_of_the_archive(noise: bytes, at: int) -> None:
    good = written(("a", b"x" * 600))
    try:
        found = read(good[:at] + noise + good[at + len(noise) :])
    except tar.TarError:
        return
    assert all(len(content) <= LIMITS.member_bytes for content in found.values())
