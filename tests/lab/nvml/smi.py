# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Checks that NVIDIA's own nvidia-smi shows a set of simulated cards: on this machine, in a node or in a container."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Sequence

from lab.nvml.cards import DRIVER_VERSION, Card

FIELDS = "index,uuid,name,memory.total,memory.used,memory.free,pci.bus_id,driver_version,compute_mode,mig.mode.current"


def used_mib(card: Card) -> int:
    """What nvidia-smi calls used: without what the driver reserves."""
    return card.used_mib + sum(process.memory_mib for process in card.processes)


def check(run: Callable[..., str], cards: Sequence[Card]) -> None:
    """Raises AssertionError unless nvidia-smi shows exactly `cards`, in their order.

    `run(*arguments)` runs nvidia-smi with these arguments and returns what it prints.
    """
    if not cards:
        assert run("-L").strip() == "No devices found."
        return
    expected = [f"GPU {index}: {card.name} (UUID: {card.uuid})" for index, card in enumerate(cards)]
    assert run("-L").splitlines() == expected
    assert run(f"--query-gpu={FIELDS}", "--format=csv,noheader").splitlines() == [_row(index, card) for index, card in enumerate(cards)]
    _check_xml(ElementTree.fromstring(run("-q", "-x")), cards)
    _check_table(run(), cards)


def _row(index: int, card: Card) -> str:
    used = used_mib(card)
    mode = {0: "Default", 2: "Prohibited", 3: "Exclusive_Process"}[card.compute_mode]
    mig = "Disabled" if float(card.compute_capability) >= 8 else "[N/A]"
    return (
        f"{index}, {card.uuid}, {card.name}, {card.memory_mib} MiB, {used} MiB, "
        f"{card.memory_mib - card.reserved_mib - used} MiB, {card.pci}, {DRIVER_VERSION}, {mode}, {mig}"
    )


def _check_xml(log: ElementTree.Element, cards: Sequence[Card]) -> None:
    assert log.findtext("attached_gpus") == str(len(cards))
    found = log.findall("gpu")
    assert [one.get("id") for one in found] == [card.pci for card in cards]
    for one, card in zip(found, cards, strict=True):
        assert one.findtext("uuid") == card.uuid
        assert one.findtext("minor_number") == str(card.minor)
        assert one.findtext("serial") == card.serial
        assert one.findtext("fb_memory_usage/total") == f"{card.memory_mib} MiB"
        assert one.findtext("fb_memory_usage/reserved") == f"{card.reserved_mib} MiB"
        assert one.findtext("fb_memory_usage/used") == f"{used_mib(card)} MiB"
        processes = [
            (info.findtext("pid"), info.findtext("used_memory"), info.findtext("process_name"))
            for info in one.iterfind("processes/process_info")
        ]
        assert processes == [(str(p.pid), f"{p.memory_mib} MiB", p.name) for p in card.processes]


def _check_table(table: str, cards: Sequence[Card]) -> None:
    assert f"NVIDIA-SMI {DRIVER_VERSION}" in table
    for card in cards:
        assert card.pci in table
        # Of a size with six digits the table shows five and an ellipsis.
        assert re.search(rf"\b{used_mib(card)}MiB / +{str(card.memory_mib)[:5]}", table), table
