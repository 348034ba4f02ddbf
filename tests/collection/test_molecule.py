# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Every role by its scenario on unprepared hosts: check mode, the change, nothing the second time, and what a user sees of it."""

from __future__ import annotations

import pytest

from collection.scenarios import ANYWHERE, ON_LAB, run
from labs import ONE, Labs


@pytest.fixture(scope="session")
def inventory(labs: Labs) -> str:
    """In the order of an installation, the scenarios share a cluster."""
    return str(labs.bare(ONE).inventory)


@pytest.mark.parametrize("scenario", ON_LAB)
def test_on_hosts(scenario: str, inventory: str) -> None:
    wrong, output = run(scenario, inventory)
    assert wrong == [], output[-8000:]


@pytest.mark.parametrize("scenario", ANYWHERE)
def test_anywhere(scenario: str) -> None:
    wrong, output = run(scenario)
    assert wrong == [], output[-8000:]
