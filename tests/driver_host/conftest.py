# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A host with a repository of drivers, for all tests of this folder."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from driver_host.host import DriverHost
from driver_host.packages import VERSIONS, make
from gpushare_lab import debian
from gpushare_lab.cache import Cache
from gpushare_lab.places import cache_root


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DriverHost]:
    folder = tmp_path_factory.mktemp("packages")
    folder.chmod(0o755)
    cache = Cache(cache_root(os.environ))
    repositories = make(folder, debian.nvidia_smi(cache), VERSIONS, os.uname().release)
    with DriverHost(f"{debian.root_file_system(cache)}:O", repositories) as made:
        yield made
