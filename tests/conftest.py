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
