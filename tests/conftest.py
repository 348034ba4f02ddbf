# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What the suites on a lab have in common."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from labs import Labs


@pytest.fixture(scope="session")
def labs() -> Iterator[Labs]:
    """The session's lab."""
    # Most tests have none.
    from labs import Labs

    found = Labs()
    try:
        yield found
    finally:
        found.close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The test that is run first waits for its lab, which has deadlines of its own."""
    for item in items:
        if "labs" in getattr(item, "fixturenames", ()) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(func_only=True))
