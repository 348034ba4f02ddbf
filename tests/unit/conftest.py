# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What all unit tests have in common: a busy machine fails none of them."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest
import uvloop
from hypothesis import HealthCheck, settings

settings.register_profile("whatever the machine does", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("whatever the machine does")


@pytest.fixture(scope="module")
def on_uvloop() -> Iterator[None]:
    """`asyncio.run` as the extender runs."""

    def run(main: Coroutine[Any, Any, Any], **options: Any) -> Any:
        with asyncio.Runner(**{"loop_factory": uvloop.new_event_loop, **options}) as runner:
            return runner.run(main)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio, "run", run)
        yield


@pytest.fixture(scope="module", params=["asyncio", "uvloop"])
def each_loop(request: pytest.FixtureRequest) -> None:
    """`asyncio.run` as each of the daemons runs."""
    if request.param == "uvloop":
        request.getfixturevalue("on_uvloop")
