# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Hosts with real apt, dnf, zypper and rpm, and real repositories beside them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from packages.machine import BUILDERS, ZYPPER, Machine, Server, build, cache, layers, mounted, possible


@pytest.fixture(scope="session")
def below() -> dict[str, list[Path]]:
    """The root file systems by kind of host."""
    if why := possible():
        pytest.skip(why)
    common = layers(cache(), BUILDERS)
    return {"apt": common, "dnf": common, "zypper": layers(cache(), ZYPPER)}


@pytest.fixture(scope="session")
def repositories(below: dict[str, list[Path]], tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, dict[str, str]]]:
    """The folder that is served, and the fingerprints of its keys."""
    with mounted(tmp_path_factory.mktemp("build"), below["apt"]) as root:
        yield root / "srv", build(root)


@pytest.fixture
def server(repositories: tuple[Path, dict[str, str]]) -> Iterator[Server]:
    found = Server(repositories[0])
    yield found
    found.stop()


@pytest.fixture(params=["apt", "dnf", "zypper"])
def machine(
    request: pytest.FixtureRequest, below: dict[str, list[Path]], server: Server, repositories: tuple[Path, dict[str, str]], tmp_path: Path
) -> Iterator[Machine]:
    """An untouched host."""
    with mounted(tmp_path / "host", below[request.param]) as root:
        yield Machine(request.param, root, server, repositories[1])
