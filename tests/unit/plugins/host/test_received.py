# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What the controller has sent is unpacked where nobody else writes, if it is whole; and nothing stays behind."""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._formats import tar
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host import received
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.received import ReceivedError, unpacked


def sent(folder: Path, content: bytes = b"") -> tuple[str, str]:
    packed = io.BytesIO()
    tar.add(packed, "wheels/a.whl", 1, [b"a"])
    tar.finish(packed)
    path = folder / "part.tar"
    path.write_bytes(content or packed.getvalue())
    return str(path), hashlib.sha256(path.read_bytes()).hexdigest()


def test_unpacked_and_gone(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    path, sha256 = sent(tmp_path)
    with unpacked(path, sha256, str(place)) as folder:
        assert os.listdir(folder) == ["a.whl"]
        assert Path(folder, "a.whl").read_bytes() == b"a"
        assert [one.stat().st_mode & 0o777 for one in (Path(folder), Path(folder).parent)] == [0o755, 0o755]
    assert list(place.iterdir()) == []
    with pytest.raises(ZeroDivisionError), unpacked(path, sha256, str(place)):
        raise ZeroDivisionError
    assert list(place.iterdir()) == []


def test_damage_on_the_way_and_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, sha256 = sent(tmp_path)
    with pytest.raises(ReceivedError, match="transfer was damaged"), unpacked(path, "0" * 64, str(tmp_path)):
        pass
    other = sent(tmp_path, b"x" * 1024)
    with pytest.raises(ReceivedError, match="cannot be unpacked"), unpacked(*other, str(tmp_path)):
        pass
    monkeypatch.setattr(received.shutil, "disk_usage", lambda _path: type("Usage", (), {"free": 1 << 20}))
    with pytest.raises(ReceivedError, match=r"1 MiB free in .*, expected 64 MiB"), unpacked(path, sha256, str(tmp_path)):
        pass
    assert [one.name for one in tmp_path.iterdir()] == ["part.tar"]
