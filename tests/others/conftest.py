# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""One API server for all tests of this folder."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from others.server import Server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    made = Server(tmp_path_factory.mktemp("server"))
    try:
        yield made
    finally:
        made.plane.stop()
