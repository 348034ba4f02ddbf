# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""A unit that running pods contradict."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from gpushare_runtime.device_plugin.cards import CardReader
from gpushare_runtime.device_plugin.health import CardHealth
from gpushare_runtime.device_plugin.unit_change import changed_unit, recorded_card_units
from gpushare_runtime.inventory import Inventory
from gpushare_runtime.quantity import UNITS
from unit.runtime.device_plugin.device_manager import DeviceManager
from unit.runtime.device_plugin.fake_nvml import FakeNvml
from unit.runtime.device_plugin.local_pods import memory


def cards(unit: str) -> Inventory:
    return CardReader(FakeNvml(16384, 8192), UNITS[unit], CardHealth()).read()


def record(path: Path, units: int) -> None:
    """kubelet's file with one pod that was told this size of its card."""

    async def prefer(resource: str, available: list[str], must: list[str], size: int) -> list[str]:
        return available[:size]

    async def allocate(resource: str, ids: list[str]) -> dict[str, str]:
        return {"ALIYUN_COM_GPU_MEM_DEV": str(units), "NVIDIA_VISIBLE_DEVICES": "GPU-1"}

    manager = DeviceManager(path, prefer, allocate)
    manager.healthy = {"aliyun.com/gpu-mem": {"GPU-1-_-0", "GPU-1-_-1"}}
    asyncio.run(manager.admit(memory(None, 0, 2, uid="a")))


def test_what_kubelet_kept_of_our_answer_says_the_unit(tmp_path: Path) -> None:
    record(tmp_path / "checkpoint", 16)
    assert recorded_card_units(tmp_path / "checkpoint") == {"a": {16}}


@pytest.mark.parametrize(
    "text", [None, "", "[]", '{"Data":{"PodDeviceEntries":null}}', '{"Data":{"PodDeviceEntries":[{"AllocResp":"%"}]}}']
)
def test_a_file_that_says_nothing(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "checkpoint").write_text(text)
    assert recorded_card_units(tmp_path / "checkpoint") == {}


def test_another_unit_is_refused_while_such_a_pod_runs() -> None:
    why = changed_unit(cards("64MiB"), {"a": {16}, "b": {256}}, lambda: {"a", "b"})
    assert why == (
        "1 pods run with memory of cards that had 16 units (UID a), in units of 64 MiB the cards have 128, 256: "
        "delete these pods first, or start with --memory-unit GiB"
    )


def test_the_same_unit_and_pods_that_have_ended_are_no_hindrance() -> None:
    assert changed_unit(cards("GiB"), {"a": {16}}, lambda: {"a"}) == ""
    assert changed_unit(cards("64MiB"), {"a": {16}}, set) == ""
    # The original says the first card's size of every card.
    assert changed_unit(cards("GiB"), {"on the second card": {16}}, lambda: {"on the second card"}) == ""
