# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""The fixtures of the device plugin's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from unit.fakes.runtime.device_plugin import cdi_folder
from unit.fakes.runtime.device_plugin.id_usage import Case


@pytest.fixture
def cdi(tmp_path: Path) -> Path:
    """A folder of specs."""
    return cdi_folder.made(tmp_path)


@pytest.fixture
def case() -> Case:
    """Usage of one node of which nothing is known yet."""
    return Case()
