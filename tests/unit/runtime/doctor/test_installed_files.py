# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The runtime's files are compared with what pip recorded of them."""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

from gpushare_runtime.doctor.findings import Findings
from gpushare_runtime.doctor.installed_files import judge_installed_files
from unit.fakes.runtime.doctor.fake_host import said


def digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()


PACKAGES = "lib/python3.11/site-packages"


def files_of(environment: Path) -> list[tuple[str, str]]:
    found = Findings()
    judge_installed_files(found, environment)
    return said(found)


def write(place: Path, content: str | bytes = b"") -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    place.write_bytes(content if isinstance(content, bytes) else content.encode())


def test_a_file_of_the_runtime_that_was_changed(tmp_path: Path) -> None:
    unknown = [("runtime_differs", f"no record of the installed files in {tmp_path}")]
    assert files_of(tmp_path) == unknown
    packages = tmp_path / PACKAGES
    write(packages / "gpushare_runtime/core/ledger.py", "x = 1\n")
    record = f"gpushare_runtime/core/ledger.py,sha256={digest(b'x = 1' + bytes([10]))},6\n../../../bin/gpushare-extender,sha256=abc,9\n"
    write(packages / "gpushare_runtime-0.1.0.dist-info/RECORD", record + "gpushare_runtime/x.pyc,,\n")
    assert files_of(tmp_path) == []
    # Another package, and another Python's folder, are none of ours.
    write(packages / "other-1.0.dist-info/RECORD", "other/x.py,sha256=abc,1\n")
    write(packages / "gpushare_runtime-0.1.0.data/RECORD", "gpushare_runtime/x.py,sha256=abc,1\n")
    write(tmp_path / "lib/pypy3/site-packages/gpushare_runtime-0.1.0.dist-info/RECORD", "gpushare_runtime/x.py,sha256=abc,1\n")
    assert files_of(tmp_path) == []
    write(packages / "gpushare_runtime/core/ledger.py", "x = 2\n")
    assert files_of(tmp_path) == [("runtime_differs", f"gpushare_runtime/core/ledger.py in {tmp_path} changed since it was installed")]
    found = Findings()
    judge_installed_files(found, tmp_path)
    assert "built again" in found.findings[0].cure


def test_of_many_files_that_are_gone_five_are_named(tmp_path: Path) -> None:
    packages = tmp_path / PACKAGES
    names = [f"gpushare_runtime/{name}.py" for name in ("a", "b", "c", "d d", "e", "f")]
    rows = [f"{name},sha256={digest(b'')},0" for name in names]
    rows += ["gpushare_runtime/g.py,md5=abc,1", "gpushare_runtime/h.txt,sha256=abc,1", "gpushare_runtime/i.py,sha256=abc"]
    record = packages / "gpushare_runtime-0.1.0.dist-info/RECORD"
    write(record, "\n".join(rows))
    # An empty file has the recorded hash, one that is gone has none.
    listed = ", ".join(names[:5])
    assert files_of(tmp_path) == [("runtime_differs", f"{listed} and 1 more in {tmp_path} changed since it was installed")]
    write(record, "\n".join([rows[0], '"gpushare_runtime/d,d.py",sha256=abc,0']))
    assert files_of(tmp_path) == [("runtime_differs", f"{names[0]}, gpushare_runtime/d,d.py in {tmp_path} changed since it was installed")]
    write(record, "\n".join(rows))
    for name in names:
        write(packages / name)
    assert files_of(tmp_path) == []
    record.unlink()
    assert files_of(tmp_path) == [("runtime_differs", f"no record of the installed files in {tmp_path}")]
