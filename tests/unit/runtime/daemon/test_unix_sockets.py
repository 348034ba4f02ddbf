# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Of the sockets in a folder, only dead ones of ours are removed."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from gpushare_runtime.daemon.unix_sockets import remove_dead, try_binding


def test_only_dead_sockets_of_these_names_are_removed(tmp_path: Path) -> None:
    for name in ("ours-dead", "other-dead"):
        with socket.socket(socket.AF_UNIX) as left:
            left.bind(str(tmp_path / name))
    (tmp_path / "ours-file").write_text("no socket")
    with socket.socket(socket.AF_UNIX) as live:
        live.bind(str(tmp_path / "ours-live"))
        live.listen()
        remove_dead(tmp_path, lambda name: name.startswith("ours"))
    assert sorted(os.listdir(tmp_path)) == ["other-dead", "ours-file", "ours-live"]
    remove_dead(tmp_path / "missing", bool)


def test_a_socket_that_cannot_be_there_has_its_reason(tmp_path: Path) -> None:
    try_binding(tmp_path / "free")
    assert os.listdir(tmp_path) == []
    with pytest.raises(FileNotFoundError):
        try_binding(tmp_path / "missing/socket")
    with pytest.raises(OSError, match="too long"):
        try_binding(tmp_path / ("x" * 200))
