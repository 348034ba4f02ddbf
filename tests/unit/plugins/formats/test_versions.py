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
]


@pytest.mark.parametrize(("version", "other", "expected"), NEWER)
def test_newer(version: str | None, other: str | None, expected: bool) -> None:
    assert newer(version, other) is expected
