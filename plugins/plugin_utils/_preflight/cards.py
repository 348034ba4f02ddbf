# -*- coding: utf-8 -*-
# Copyright: gpushare.kubernetes contributors
# GNU General Public License v3.0 or later (see LICENSES/GPL-3.0-or-later.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the administrator expects of a host's driver and cards, and what the cards report about their own health.

Private to this collection, used on the controller only. Pure. preflight and verify judge by the same rules.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ansible_collections.gpushare.kubernetes.plugins.module_utils._facts.nvidia_smi import MINIMUM_DRIVER, SmiCard, SmiReport
from ansible_collections.gpushare.kubernetes.plugins.module_utils._formats.versions import numbers
from ansible_collections.gpushare.kubernetes.plugins.plugin_utils._preflight.reasons import ERROR, WARNING

_RESET_CURE = "stop what uses the card (drain the node), then run `nvidia-smi --gpu-reset -i {index}`, or reboot the host"
# The words of gpu_recovery_action with which the card cannot be used.
_UNUSABLE = ("reset", "gpu reset", "reboot", "node reboot")


@dataclass(frozen=True)
class Expected:
    """The variables gpushare_minimum_driver, gpushare_expect_cards and gpushare_expect_memory_mib; 0 expects nothing."""

    minimum_driver: str = MINIMUM_DRIVER
    cards: int = 0
    memory_mib: int = 0


@dataclass(frozen=True)
class CardFinding:
    """code: a stable word; severity: ERROR or WARNING."""

    code: str
    severity: str
    found: str
    expected: str
    cure: str


def judge_cards(report: SmiReport, expected: Expected) -> Iterator[CardFinding]:
    """All findings. A report with a problem is not compared with the expectations that the problem explains."""
    version, least = numbers(report.driver_version), numbers(expected.minimum_driver)
    if version is not None and least is not None and version < least:
        cure = "install a newer driver, or lower gpushare_minimum_driver"
        if expected.minimum_driver == MINIMUM_DRIVER:
            cure = "install a newer driver: older ones cannot give cards to containers"
        yield CardFinding("driver_too_old", ERROR, f"driver {report.driver_version}", f"{expected.minimum_driver} or newer", cure)
    count = len(report.cards)
    if expected.cards and count != expected.cards and (report.problem is None or report.cards):
        cure = "find the missing cards with `lspci -d 10de:` and `dmesg`, or correct gpushare_expect_cards"
        if count > expected.cards:
            cure = "correct gpushare_expect_cards"
        seen = f"{count} card{'' if count == 1 else 's'}"
        yield CardFinding("card_count_unexpected", ERROR, seen, f"{expected.cards} (gpushare_expect_cards)", cure)
    for card in report.cards:
        name = f"card {card.index} ({card.model})"
        if expected.memory_mib and card.memory_mib is not None and card.memory_mib < expected.memory_mib:
            wanted = f"{expected.memory_mib} MiB or more (gpushare_expect_memory_mib)"
            cure = "check that it is the intended card, and whether ECC takes memory of it; or correct gpushare_expect_memory_mib"
            yield CardFinding("card_memory_unexpected", ERROR, f"{name} with {card.memory_mib} MiB", wanted, cure)
        yield from _health(name, card)


def _health(name: str, card: SmiCard) -> Iterator[CardFinding]:
    repair, reset = card.repair, _RESET_CURE.format(index=card.index)
    if repair.failed:
        cure = "take the card out of use and have it replaced: NVIDIA accepts such cards for return"
        yield CardFinding("card_failing", ERROR, f"{name} with memory that it cannot repair", "a card that can repair its memory", cure)
    elif repair.action is not None and repair.action.lower() in _UNUSABLE:
        yield CardFinding("card_failing", ERROR, f"{name} that requests {repair.action!r}", "a card without a pending recovery", reset)
    elif repair.pending or repair.action is not None:
        what = f"requests {repair.action!r}" if repair.action else "has memory to retire or remap at the next reset"
        yield CardFinding(
            "card_repair_pending", WARNING, f"{name} that {what}", "a card without a pending repair", f"at a convenient time, {reset}"
        )
    for what, now, later in (("ECC", card.ecc.mode, card.ecc.pending_mode), ("MIG", card.mig_mode, card.pending_mig_mode)):
        if now and later and now != later:
            cure = f"its memory may change with it: {reset} at a convenient time, or take the change back"
            yield CardFinding(
                "card_mode_pending", WARNING, f"{name} with {what} {now}, {later} after the next reset", "no pending change", cure
            )
