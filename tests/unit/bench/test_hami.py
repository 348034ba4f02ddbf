# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""What HAMi's extender is asked in the benchmark."""

from __future__ import annotations

from typing import Any

import pytest

from bench.scheduling import hami, objects
from gpushare_runtime.core.protocol import RESOURCE_MEMORY


def limits(pod: dict[str, Any]) -> dict[str, str]:
    found: dict[str, str] = pod["spec"]["containers"][0]["resources"]["limits"]
    return found


def test_its_pods_ask_for_the_same_memory_as_ours() -> None:
    ours = [int(limits(objects.pending(number))[RESOURCE_MEMORY]) for number in range(20)]
    others = [limits(hami.pending(number)) for number in range(20)]
    assert [int(one["nvidia.com/gpumem"]) for one in others] == [1024 * units for units in ours]
    assert {one["nvidia.com/gpu"] for one in others} == {"1"}


def test_without_its_program_the_variable_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(hami.VARIABLE, "/nowhere")
    with pytest.raises(SystemExit, match=hami.VARIABLE):
        hami.program()
