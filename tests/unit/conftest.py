# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What all unit tests have in common: a busy machine fails none of them."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Coroutine, Generator, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from typing import Any

import pluggy
import pytest
import uvloop
from hypothesis import HealthCheck, settings

from unit import golden as golden_file
from unit.fakes.runtime.extender import virtual

_PASSED = pytest.StashKey[bool]()
settings.register_profile("whatever the machine does", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("whatever the machine does")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(golden_file.OPTION, action="store_true", help="write the sentences of these tests instead of comparing them")


@pytest.hookimpl(tryfirst=True, hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pluggy.Result[pytest.TestReport], None]:
    """A fixture learns whether its test has passed."""
    report = (yield).get_result()
    if report.when == "call":
        item.stash[_PASSED] = report.passed


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine by `asyncio.run`. Of a fixture that is an asynchronous context it gets what that yields."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None

    async def run() -> None:
        async with AsyncExitStack() as stack:
            arguments = {}
            for name in inspect.signature(pyfuncitem.obj).parameters:
                value = pyfuncitem.funcargs[name]
                is_context = isinstance(value, AbstractAsyncContextManager)
                arguments[name] = await stack.enter_async_context(value) if is_context else value
            await pyfuncitem.obj(**arguments)

    asyncio.run(run())
    return True


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Iterator[golden_file.Golden]:
    """See golden.py."""
    writes = request.config.getoption(golden_file.OPTION)
    if writes and hasattr(request.config, "workerinput"):
        pytest.fail(f"{golden_file.OPTION} is for one process: leave out -n")
    file = golden_file.Sentences(request.path.with_name(golden_file.FILE))
    test = f"{request.path.name}::{request.node.name}"
    said = golden_file.Golden(test, file, writes)
    if "tmp_path" in request.fixturenames:
        said.hide(request.getfixturevalue("tmp_path"), "TMP")
    yield said
    # After a failure the sentences that follow are not known.
    if request.node.stash.get(_PASSED, False):
        said.end()
        if writes:
            file.write(test, said.texts)


@pytest.fixture(scope="module")
def on_uvloop() -> Iterator[None]:
    """`asyncio.run` as the extender runs."""

    def run(main: Coroutine[Any, Any, Any], **options: Any) -> Any:
        with asyncio.Runner(**{"loop_factory": uvloop.new_event_loop, **options}) as runner:
            return runner.run(main)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(asyncio, "run", run)
        yield


@pytest.fixture
def virtual_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """`asyncio.run` in no time, see virtual.py."""
    monkeypatch.setattr(asyncio, "run", virtual.run)


@pytest.fixture(scope="module", params=["asyncio", "uvloop"])
def each_loop(request: pytest.FixtureRequest) -> None:
    """`asyncio.run` as each of the daemons runs."""
    if request.param == "uvloop":
        request.getfixturevalue("on_uvloop")
