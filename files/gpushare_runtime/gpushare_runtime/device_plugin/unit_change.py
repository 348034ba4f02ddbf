# SPDX-License-Identifier: Apache-2.0
# Copyright: gpushare.kubernetes contributors
"""Whether pods that run were given their memory in another unit: kubelet counts ids, and would mix both. No I/O."""

from __future__ import annotations

from collections.abc import Callable, Set

from gpushare_runtime.quantity import Unit


def changed_unit(unit: Unit, before: str, holders: Set[str], live: Callable[[Set[str]], Set[str]]) -> str:
    """Why the unit cannot be used now, "" if it can.

    before: the name of the unit in which these pods (UIDs) were given memory, "" if nobody knows; live: those of them that run.
    """
    running = sorted(live(holders)) if before not in ("", unit.name) and holders else []
    if not running:
        return ""
    shown = ", ".join(running[:3]) + (f" and {len(running) - 3} more" if len(running) > 3 else "")
    return (
        f"{len(running)} pods run with memory in units of {before[:80]} (UID {shown}), this plugin is to give it in units of {unit.name}: "
        f"delete these pods first, or start with --memory-unit {before[:80]}"
    )
