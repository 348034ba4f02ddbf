# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""`lab down` leaves the machine as it was before `lab up`."""

from __future__ import annotations

import sys

from e2e.cluster import REPOSITORY, run


def test_an_instance_leaves_nothing_behind() -> None:
    assert run([sys.executable, str(REPOSITORY / "tools/lab/check-down")], seconds=600).endswith(", 0 faults\n")
