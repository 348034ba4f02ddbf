# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""What people get of a program's line: the cause at its end too, and nothing that a terminal would take amiss."""

from __future__ import annotations

import pytest
from ansible_collections.gpushare.kubernetes.plugins.module_utils._host.logged import told

CHECKPOINT = (
    'E1129 18:34:21.910881    1066 kubelet.go:1850] "Failed to start ContainerManager" err="start cpu manager error: could not restore '
    'state from checkpoint: configured policy \\"static\\" differs from state checkpoint policy \\"none\\", please drain this node and '
    'delete the CPU manager checkpoint file \\"/var/lib/kubelet/cpu_manager_state\\" before restarting Kubelet"'
)


def test_the_beginning_and_the_end_of_a_long_line() -> None:
    text = told(CHECKPOINT, 240)
    assert len(text) <= 240
    beginning, end = text.split(" … ")
    said = CHECKPOINT.partition("] ")[2].replace('\\"', '"')
    assert said.startswith(beginning)
    assert said.endswith(end)
    assert min(len(beginning), len(end)) > 60


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("E1129 10:00:00.500000       1 reflector.go:227] leaderelection.go:452] error", "leaderelection.go:452] error"),
        ("panic: a\x1b[31m b\n", "panic: a [31m b"),
        ("", ""),
        ("x" * 100, "x" * 100),
        # A cut beside a space.
        ("b" * 32 + " " + "c" * 100 + " " + "d" * 63, "b" * 32 + " … " + "d" * 63),
        ("x" * 10**7, "x" * 33 + " … " + "x" * 64),
    ],
)
def test_a_line(line: str, shown: str) -> None:
    assert told(line, 100) == shown
