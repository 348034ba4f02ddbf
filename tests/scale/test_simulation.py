# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The simulation of very many binds, small: nothing is given twice, and each fault that it is there for is noticed."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from bench.binds.flaws import switched_on
from bench.binds.run import run
from unit.fakes.runtime.extender import virtual

BINDS = 700


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def test_no_gpu_is_given_twice() -> None:
    found = virtual.run(run(1, BINDS))
    assert (found["node_over"], found["ledger_excess"], found["half_bound"]) == (0, 0, 0), found["first"]
    # What was put to the test.
    assert found["bound"] >= BINDS
    assert found["leader changed"] >= 1
    assert found["extender killed"] >= 1
    assert found["arrived late"] >= 10
    assert found["processes_orphaned"] >= 50


@pytest.mark.parametrize(("flaw", "what"), [("hole-8", "ledger_excess"), ("hole-14", "half_bound"), ("assume", "ledger_excess")])
def test_a_fault_of_every_day_is_noticed(flaw: str, what: str) -> None:
    """The rarer ones need more binds: `python -m bench.binds --without-each`."""
    with switched_on(flaw):
        assert virtual.run(run(1, BINDS))[what]
