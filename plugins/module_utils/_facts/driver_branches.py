# Copyright: gpushare.kubernetes contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""The branches of NVIDIA's driver for data centre GPUs: of which kind each is, and when NVIDIA ends it.

Pure. Data: docs.nvidia.com/datacenter/tesla/drivers, "Supported Drivers and CUDA Toolkit Versions", as it was for the releases 580 (August
2025), 615 (September 2026) and 620 (November 2026). To bring it up to date, read the page of the newest release, and date it in
`looked_up.py` of preflight.
"""

from __future__ import annotations

from typing import NamedTuple, Optional

LONG_TERM, PRODUCTION, NEW_FEATURE = "long-term", "production", "new feature"
#: In place of a month: NVIDIA's page says that it has ended, and not when.
PAST = "ended"


class Branch(NamedTuple):
    """end: the last month with fixes, such as "2028-06", PAST, or "" where NVIDIA states none."""

    number: int
    kind: str
    end: str
    remark: str = ""

    def has_ended(self, today: str) -> bool:
        """today: such as "2026-11-29"."""
        return self.end == PAST or (bool(self.end) and self.end < today[:7])


#: The newest first. Of the first one with memory limits on, `gpu/pod_limits.py` of the runtime knows the call.
BRANCHES = (
    Branch(620, LONG_TERM, "2029-09", "the one to settle on for memory limits"),
    Branch(615, NEW_FEATURE, "", "the first one with memory limits"),
    Branch(610, NEW_FEATURE, "2026-08"),
    Branch(595, PRODUCTION, "2027-03", "the default of GPU Operator 26.7"),
    Branch(590, NEW_FEATURE, PAST),
    Branch(580, LONG_TERM, "2028-06", "the last one for Maxwell, Pascal and Volta"),
    Branch(575, NEW_FEATURE, PAST),
    Branch(570, PRODUCTION, "2026-02"),
    Branch(565, NEW_FEATURE, PAST),
    Branch(560, NEW_FEATURE, PAST),
    Branch(550, PRODUCTION, PAST),
    Branch(535, LONG_TERM, "2026-06"),
)
_BY_NUMBER = {branch.number: branch for branch in BRANCHES}
_OLDEST = BRANCHES[-1].number


def branch(number: int) -> Optional[Branch]:
    """None for one that is newer than these, or never was for data centres. All before the oldest of these have ended."""
    return _BY_NUMBER.get(number) or (Branch(number, "", PAST) if number < _OLDEST else None)


def lasting(today: str) -> "list[Branch]":
    """The long-term and production branches that have not ended, the newest first."""
    return [known for known in BRANCHES if known.kind != NEW_FEATURE and not known.has_ended(today)]
