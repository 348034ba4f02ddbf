# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""An API server for tests that are coroutines, and a client of it. A test names the server first."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest

from gpushare_runtime.kube.client import KubeClient
from unit.fakes.runtime.kube.fake_api import FakeApi, connected, serving


@pytest.fixture
def fake_api() -> FakeApi:
    return FakeApi()


@pytest.fixture
def api(fake_api: FakeApi) -> AbstractAsyncContextManager[FakeApi]:
    return serving(fake_api)


@pytest.fixture
def client(fake_api: FakeApi, tmp_path: Path) -> AbstractAsyncContextManager[KubeClient]:
    return connected(fake_api, tmp_path)
