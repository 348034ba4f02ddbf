# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Which of two versions is the newer one, by their numbers."""

from __future__ import annotations

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._formats.versions import newer

NEWER = [
    ("580.2", "580.1", True),
    ("580.1", "580.1", False),
    (None, "1", False),
    ("1", None, True),
    (None, None, False),
    ("1000", "999", True),
    ("1.10", "1.9", True),
    # As a program prints it.
    (" v1.36.3-rc.1\n", "1.36.2", True),
    (" v1.36.3-rc.1\n", "1.36.3", False),
    ("none", None, False),
]


@pytest.mark.parametrize(("version", "other", "expected"), NEWER)
def test_newer(version: str | None, other: str | None, expected: bool) -> None:
    assert newer(version, other) is expected
